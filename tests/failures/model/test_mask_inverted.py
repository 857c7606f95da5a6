"""MDL006: inverted masks, and correct programs that look like it."""

from __future__ import annotations

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
PAD = 0
q = k = v = torch.randn(2, 5, 8)
tokens = torch.randint(1, 9, (2, 5))
layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
encoder, attention = nn.TransformerEncoder(layer, 2), nn.MultiheadAttention(8, 2, batch_first=True)
"""

CORRECT = {
    "attends to the past": "F.scaled_dot_product_attention(q, k, v, attn_mask=torch.tril(torch.ones(5, 5)).bool())\n",
    "ignores the future": "encoder(q, mask=torch.triu(torch.ones(5, 5, dtype=torch.bool), diagonal=1))\n",
    "inverted already": "mask = torch.triu(torch.ones(5, 5), 1).bool()\n"
    "F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)\n"
    "encoder(q, mask=torch.ones(5, 5).tril() == 0)\n",
    "additive": "mask = torch.triu(torch.full((5, 5), float('-inf')), diagonal=1)\n"
    "F.scaled_dot_product_attention(q, k, v, attn_mask=mask)\nencoder(q, mask)\n"
    "encoder(q, mask=torch.triu(torch.ones(5, 5), 1).masked_fill(torch.ones(5, 5).triu(1) == 1, float('-inf')))\n",
    "scaled, or converted": "mask = torch.triu(torch.ones(5, 5), 1) * float('-1e9')\nencoder(q, mask=mask)\n"
    "encoder(q, mask=torch.triu(torch.ones(5, 5), 1).to(torch.bool))\n"
    "encoder(q, mask=torch.triu(torch.ones(5, 5), 1).type(torch.bool))\n",
    "from nn.Transformer": "encoder(q, mask=nn.Transformer.generate_square_subsequent_mask(5), is_causal=True)\n"
    "F.scaled_dot_product_attention(q, k, v, is_causal=True)\n",
    "ignores padding": "encoder(q, src_key_padding_mask=tokens == PAD)\n"
    "attention(q, k, v, key_padding_mask=tokens.eq(PAD))\n"
    "def run(batch):\n    return encoder(q, src_key_padding_mask=~batch['attention_mask'].bool())\n",
    "a mask of padding, as an argument": """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 1)
    def forward(self, x, attention_mask):
        return self.encoder(x, src_key_padding_mask=attention_mask)
print(Classifier()(q, tokens == PAD))
""",
    "does not attend to padding": "F.scaled_dot_product_attention(q, k, v, attn_mask=(tokens != PAD)[:, None])\n",
    "inverted by the caller, in a block": """
class Attend(nn.Module):
    def forward(self, x, keep):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=keep[:, None, :])
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Attend()
    def forward(self, tokens):
        pad = tokens == PAD
        return self.attend(q, ~pad)
""",
    "two callers that differ": """
def attend(x, mask):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
attend(q, (tokens != PAD)[:, None])
attend(q, (tokens == PAD)[:, None])
""",
    "ignores padding, with a position for a class token": """
def run(tokens):
    mask = torch.cat([torch.zeros(len(tokens), 1, dtype=torch.bool), tokens == PAD], dim=1)
    return encoder(q, src_key_padding_mask=mask)
""",
    "lengths": """
lengths = torch.tensor([2, 5])
positions = torch.arange(5)
keep = positions[None, :] < lengths[:, None]
F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None])
attention(q, k, v, key_padding_mask=torch.logical_not(keep))
encoder(q, src_key_padding_mask=torch.arange(5)[None] >= lengths.unsqueeze(1))
""",
    "both conditions": """
future = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
F.scaled_dot_product_attention(q, k, v, attn_mask=~(future | (tokens == PAD)[:, None]))
F.scaled_dot_product_attention(q, k, v, attn_mask=(tokens != PAD)[:, None] & ~future)
""",
    "a number that is no padding": """
embedding = nn.Embedding(9, 8, padding_idx=0)
def run(is_end):
    return encoder(q, src_key_padding_mask=is_end != 0)
""",
    "user-defined attention": """
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 8)
    def forward(self, x, mask, key_padding_mask=None):
        return self.last(x * key_padding_mask[..., None])
Own()(q, mask=torch.tril(torch.ones(5, 5)), key_padding_mask=tokens != PAD)
""",
    "one or the other": "def run(mask, causal):\n    mask = mask if causal else torch.triu(torch.ones(5, 5)).bool()\n"
    "    mask = mask[None]\n    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)\n",
}

BROKEN = {
    "padding, through a block": """
class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
    def forward(self, x, pad_mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=pad_mask[:, None, :])  # <- MDL006
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.ModuleList([Attend() for _ in range(2)])
    def forward(self, x, tokens):
        pad = tokens == PAD
        for attend in self.attend:
            x = x + attend(x, pad)
        return x
""",
    "padding, by the lengths": """
def attend(x, lengths):
    steps = torch.arange(x.shape[1])
    past_end = steps[None, :] >= lengths[:, None]
    return F.scaled_dot_product_attention(x, x, x, attn_mask=past_end[:, None, :])  # <- MDL006
""",
    "tokens that are no zeros": """
embedding = nn.Embedding(9, 8, padding_idx=0)
def encode(tokens):
    return encoder(embedding(tokens), src_key_padding_mask=(tokens != 0))  # <- MDL006
print(encode(tokens))
""",
    "padding, in a function with an option": """
def attend(x, mask=None):
    return F.scaled_dot_product_attention(  # <- MDL006
        x, x, x, attn_mask=mask[:, None] if mask is not None else None)
padding = tokens.eq(PAD)
attend(q, mask=padding)
attend(q)
""",
    "a function": "out = F.scaled_dot_product_attention(  # <- MDL006\n"
    "    q, k, v, torch.triu(torch.ones(5, 5), diagonal=1).bool())\n",
    "a buffer, from a book": """
class Attention(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("mask", torch.triu(torch.ones(length, length), diagonal=1).bool())
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = self.mask[: x.shape[1], : x.shape[1]]
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # <- MDL006
""",
    "a layer in a class": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), num_layers=2)
    def forward(self, x):
        past = torch.ones(len(x), len(x), device=x.device).tril() == 1
        return self.encoder(x, mask=past)  # <- MDL006
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
""",
    "padding, in a helper": """
def encode(x, tokens):
    return encoder(x, src_key_padding_mask=tokens != PAD)  # <- MDL006
print(encode(q, tokens))
""",
    "a tokenizer's mask, as an argument": """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 1)
    def forward(self, x, attention_mask):
        return self.encoder(x, src_key_padding_mask=attention_mask.bool())  # <- MDL006
def train(model, loader):
    for batch in loader:
        model(batch["x"], batch["attention_mask"])
""",
    "padding, with a position for a class token": """
mask = tokens != PAD
mask = torch.cat([torch.zeros(len(tokens), 1, dtype=torch.bool), mask], dim=1)
encoder(q, src_key_padding_mask=mask)  # <- MDL006
""",
    "a tokenizer's mask": """
def step(batch, x):
    keep = batch["attention_mask"].bool()
    with torch.autocast("cuda", torch.bfloat16):
        return attention(x, x, x, key_padding_mask=keep)[0]  # <- MDL006
""",
}
FLOATING = {
    "a causal mask of a layer": "mask = torch.triu(torch.ones(5, 5), diagonal=1)\nencoder(q, mask=mask)  # <- MDL006\n",
    "a bias of almost 0": """
future = torch.triu(torch.ones(5, 5), diagonal=1)
encoder(q, mask=future * -1e-9)  # <- MDL006
""",
    "the other triangle, moved": """
mask = torch.tril(torch.ones(5, 5)).to(device="cpu").unsqueeze(0)
F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # <- MDL006
""",
    "a buffer": """
class Attention(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))
    def forward(self, q, k, v):
        mask = self.mask[: q.shape[1], : q.shape[1]]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # <- MDL006
""",
}


@pytest.mark.parametrize("name", FLOATING)
def test_lint_reports_a_mask_that_is_added(lint_reports, name):
    (found,) = lint_reports(HEAD + FLOATING[name])
    assert "masks nothing" in found.message
    assert found.severity == "error"


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL006")


@pytest.mark.parametrize("name", BROKEN)
def test_lint_reports_it(lint_reports, name):
    (found,) = lint_reports(HEAD + BROKEN[name], fixes=True)
    wrong = "the padding" if "padding" in name or "token" in name else "the future"
    assert f"attends only to {wrong}." in found.message


MULTIPLIED = {
    "a graph attention layer": """
def attend(h, a, adj):
    e = F.leaky_relu(h @ a.T)
    e = e * adj  # <- MDL006
    att = F.softmax(e, dim=1)
    return att @ h
""",
    "a method of the product": """
class Pool(nn.Module):
    def forward(self, h, mask):
        scores = self.score(h).squeeze(-1)
        weights = (scores * mask.float()).softmax(dim=-1)  # <- MDL006
        return (weights.unsqueeze(-1) * h).sum(1)
""",
}
NOT_MULTIPLIED = {
    "the lowest number, in one arm": """
class Attention(nn.Module):
    def forward(self, q, k, v, mask=None):
        scores = q @ k.transpose(-2, -1)
        if mask is not None:
            lowest = float(np.finfo(torch.tensor(0, dtype=scores.dtype).numpy().dtype).min)
            scores = scores.masked_fill(mask, lowest)
            weights = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
        else:
            weights = torch.softmax(scores, dim=-1)
        return weights @ v
class Range:
    min = 0
""",
    "masked again in the arm with a mask": """
def attend(scores, v, mask):
    if mask is not None:
        scores = scores.masked_fill(mask == 0, 0)
        weights = F.softmax(scores, dim=-1) * mask
    else:
        weights = F.softmax(scores, dim=-1)
    return weights @ v
""",
    "a soft maximum of values": """
def soft_maximum(values, ended, temperature):
    attention_mask = None
    values[ended == 1] = 0
    return ((values / temperature).softmax(-1) * values).sum(-1)
""",
    "filled with minus infinity": """
def attend(scores, mask):
    return torch.softmax(scores.masked_fill(mask == 0, float("-inf")), dim=-1)
""",
    "renormalised after the softmax": """
def masked_softmax(scores, mask):
    result = F.softmax(scores * mask, dim=-1)
    result = result * mask
    return result / (result.sum(dim=-1, keepdim=True) + 1e-13)
""",
    "masked weights in one expression": """
def masked_softmax(scores, mask):
    return F.softmax(scores * mask, dim=-1) * mask
""",
    "a large negative number is added": """
def attend(scores, mask):
    scores = scores * mask + (1 - mask) * -1e9
    return F.softmax(scores, dim=-1)
""",
    "a temperature": """
def attend(scores, scale):
    return F.softmax(scores * scale, dim=-1)
""",
}


MULTIPLIED |= {
    "a mask of zeros and ones is added": """
class Attend(nn.Module):
    def forward(self, scores, mask):
        scores = scores + mask.unsqueeze(1).float()  # <- MDL006
        return scores.softmax(-1)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Attend()
    def forward(self, tokens):
        mask = tokens != 0
        return self.attend(self.scores(tokens), mask)
""",
    "a triangle is added": """
def attend(q, k):
    scores = q @ k.transpose(-2, -1)
    causal_mask = torch.tril(torch.ones(q.size(1), q.size(1)))
    return F.softmax(scores + causal_mask, dim=-1)  # <- MDL006
""",
    "filled with 0": """
class AttentionPool(nn.Module):
    def forward(self, x, valid):
        s = self.score(torch.tanh(x)).squeeze(-1)
        s = s.masked_fill(~valid, 0.0)  # <- MDL006
        a = torch.softmax(s, dim=1)
        return (a.unsqueeze(-1) * x).sum(1)
""",
    "filled with a small number instead of a large negative one": """
def attend(scores, mask):
    scores = scores.masked_fill(mask == 0, 1e-9)  # <- MDL006
    return F.softmax(scores, dim=-1)
""",
    "filled with -1": """
def attend(scores, padding_mask):
    scores.masked_fill_(padding_mask, -1)  # <- MDL006
    return scores.softmax(-1)
""",
    "filled in place": """
def attend(q, k, v, pad):
    scores = q @ k.transpose(-2, -1)
    scores.masked_fill_(pad[:, None], 0)  # <- MDL006
    return F.softmax(scores / 8, dim=-1) @ v
""",
    "items set to 0": """
def attend(scores, lengths):
    mask = torch.arange(scores.size(1))[None] >= lengths[:, None]
    scores[mask] = 0  # <- MDL006
    return scores.softmax(1)
""",
    "chosen by where": """
def attend(scores, mask):
    return F.softmax(torch.where(mask, scores, torch.zeros_like(scores)), dim=-1)  # <- MDL006
""",
    "a module for the softmax": """
class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)
    def forward(self, scores, mask):
        scores = scores.masked_fill(mask == 0, 0)  # <- MDL006
        return self.softmax(scores)
""",
    "multiplied by a view of the mask": """
def attend(scores, valid):
    scores *= valid.unsqueeze(1)  # <- MDL006
    return F.softmax(scores, -1)
""",
}
NOT_MULTIPLIED |= {
    "minus infinity is added": """
def attend(scores, tokens):
    mask = (tokens == 0).float() * -1e9
    bias = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf"))
    pad_mask = torch.where(tokens == 0, float("-inf"), 0.0)
    return F.softmax(scores + mask, dim=-1), F.softmax(scores + bias + pad_mask, dim=-1)
""",
    "an unknown mask is added": """
def attend(scores, attn_mask):
    return F.softmax(scores + attn_mask, dim=-1)
""",
    "filled with a large negative number": """
def attend(scores, mask):
    scores = scores.masked_fill(mask, -1e9)
    return F.softmax(scores, dim=-1).masked_fill(mask, 0)
""",
    "filled with 0 and masked again": """
def attend(scores, mask):
    scores = scores.masked_fill(mask, 0)
    weights = F.softmax(scores, dim=-1).masked_fill(mask, 0)
    return weights / weights.sum(-1, keepdim=True)
""",
    "not a number": """
def attend(scores):
    scores = scores.masked_fill(torch.isnan(scores), 0)
    scores[scores < 0] = 0
    return F.softmax(scores, dim=-1)
""",
    "filled with minus infinity after it": """
def attend(scores, mask, pad):
    scores = scores.masked_fill(mask, 0)
    scores = scores.masked_fill(pad, float("-inf"))
    return F.softmax(scores, dim=-1)
""",
    "the inputs are masked": """
def pool(x, valid):
    x = x.masked_fill(~valid[..., None], 0)
    return F.softmax(score(x), dim=1)
""",
}


MULTIPLIED |= {
    "a buffer that is cut to the length": """
class Attend(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("tril", torch.tril(torch.ones(n, n)))
    def forward(self, x):
        b, t, d = x.shape
        wei = x @ x.transpose(1, 2) / d ** 0.5
        wei = wei.masked_fill(self.tril[:t, :t] == 0, float("1e-9"))  # <- MDL006
        wei = wei.softmax(dim=-1)
        return (wei @ x).reshape(b, t, d)
""",
    "a constant of the module": """
NEG = -1e-10
def attend(x, pad):
    scores = x @ x.transpose(1, 2)
    scores = scores.masked_fill(pad[:, None, :], NEG)  # <- MDL006
    scores = scores - scores.amax(-1, keepdim=True)
    return torch.softmax(scores, -1) @ x
""",
    "a setting of a data class": """
from dataclasses import dataclass
@dataclass
class Settings:
    width: int = 8
    blocked: float = 1e-10
class Attend(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.settings, self.normalise = settings, nn.Softmax(dim=-1)
    def forward(self, x, mask):
        logits = torch.where(mask, x @ x.mT, self.settings.blocked)  # <- MDL006
        return self.normalise(logits / 2) @ x
""",
    "a helper that masks": """
def hide(scores, allowed, value=1e-9):
    return scores.masked_fill(~allowed, value)  # <- MDL006
def attend(x):
    n = x.shape[1]
    allowed = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
    scores = hide(x @ x.mT, allowed)
    return F.softmax(scores.float(), dim=-1).type_as(x) @ x
""",
    "a helper that gets the scores": """
def weights(scores):
    scores = scores * 0.125
    return scores.softmax(-1)
def attend(x, mask):
    return weights((x @ x.mT).masked_fill(mask == 0, 1e-9)) @ x  # <- MDL006
""",
    "a list of heads": """
class Attend(nn.Module):
    def forward(self, q, k, v, heads, mask):
        att = [(q[h] @ k[h].mT) * mask for h in range(heads)]
        parts = [torch.softmax(torch.where(mask == 1, a, 1e-9), dim=-1) @ v for a in att]  # <- MDL006
        return torch.cat(parts, -1)
""",
    "the smallest positive number": """
import sys
def attend(scores, valid):
    scores[~valid] = -sys.float_info.min  # <- MDL006
    return F.log_softmax(scores, dim=1)
""",
    "a full tensor": """
def gat(h, a, adj):
    e = F.leaky_relu(h @ a)
    nothing = 9e-15 * torch.ones_like(e)
    attention = torch.where(adj > 0, e, nothing)  # <- MDL006
    return F.softmax(attention, dim=1) @ h
""",
    "a bias": """
def attend(scores, attention_mask):
    bias = (1.0 - attention_mask[:, None, None, :].float()) * -1e-9
    scores = scores + bias  # <- MDL006
    return scores.softmax(-1)
""",
    "a triangle under another name": """
class Attend(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("past", torch.tril(torch.ones(n, n)))
    def forward(self, x):
        n = x.size(1)
        scores = x @ x.mT * self.past[:n, :n]  # <- MDL006
        return torch.softmax(scores, dim=-1) @ x
""",
    "actions that are not allowed": """
from torch.distributions import Categorical
def act(logits, legal_mask):
    logits = logits.masked_fill(~legal_mask, 1e-8)  # <- MDL006
    return Categorical(logits=logits).sample()
""",
}
NOT_MULTIPLIED |= {
    "the lowest number of the type": """
NEG = -1e9
def attend(scores, mask, low=float("-inf")):
    first = scores.masked_fill(mask, torch.finfo(scores.dtype).min).softmax(-1)
    second = scores.masked_fill(mask, NEG).softmax(-1)
    return first + second + torch.where(mask, low, scores).softmax(-1)
""",
    "after the softmax": """
def attend(scores, mask, v):
    weights = scores.softmax(-1)
    weights = weights.masked_fill(mask, 0.0)
    return weights @ v
""",
    "an epsilon": """
def attend(scores, mask, v):
    scores = scores + 1e-9
    weights = F.softmax(scores, dim=-1)
    weights = weights * mask
    return (weights / (weights.sum(-1, keepdim=True) + 1e-9)) @ v
""",
    "losses and inputs": """
def loss_of(logits, targets, mask, x):
    x = x.masked_fill(mask[..., None], 1e-9)
    losses = F.cross_entropy(logits, targets, reduction="none").masked_fill(mask, 0)
    return losses.sum() / (~mask).sum(), logits.softmax(-1), x
""",
    "the rows of padded queries": """
def attend(scores, pad, keep):
    scores = scores.masked_fill(pad.unsqueeze(-1), 0.0)
    other = scores.masked_fill(~keep[:, :, None], 0.0)
    return scores.softmax(dim=-1), F.softmax(other, dim=-1)
""",
    "masked by the caller": """
def normalise(scores, mask):
    return F.softmax(scores * mask, dim=-1)
def attend(scores, mask):
    weights = normalise(scores, mask)
    weights = weights * mask
    return weights / weights.sum(-1, keepdim=True)
""",
    "outputs of a module that leaves out padding": """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 4)
    def forward(self, x, mask):
        return self.last(x) * mask[..., None]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Head()
    def forward(self, x, mask):
        return F.log_softmax(self.head(x, mask), dim=1)
""",
    "noise and dropout": """
def attend(scores, p):
    keep_mask = torch.rand_like(scores) > p
    return F.softmax(scores * keep_mask, dim=-1), F.softmax(torch.where(scores > 0, scores, 0.0), dim=-1)
""",
    "an unknown value, and one of two values": """
def attend(scores, mask, value, soft):
    fill = 0.0 if soft else float("-inf")
    first = scores.masked_fill(mask, value).softmax(-1)
    return first, scores.masked_fill(mask, fill).softmax(-1)
""",
    "one caller fills with minus infinity": """
def hide(scores, mask, value):
    return scores.masked_fill(mask, value)
def attend(scores, mask):
    return hide(scores, mask, float("-inf")).softmax(-1), hide(scores, mask, 0).sum()
""",
    "a learned bias": """
class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1e-9))
    def forward(self, scores, mask):
        return torch.softmax(scores + self.gain * mask + torch.where(mask, 0.0, float("-inf")), -1)
""",
}


@pytest.mark.parametrize("script", MULTIPLIED.values(), ids=MULTIPLIED)
def test_lint_reports_multiplied_scores(lint_reports, script):
    (found,) = lint_reports(HEAD + script)
    assert "masks nothing" in found.message


@pytest.mark.parametrize("script", NOT_MULTIPLIED.values(), ids=NOT_MULTIPLIED)
def test_lint_accepts_other_scores(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL006")
