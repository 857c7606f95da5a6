"""MDL032: a padding mask along the queries."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""

FAULTY = {
    "heads": """
class Attention(nn.Module):
    def forward(self, q, k, v, ids):
        scores = torch.matmul(q, k.transpose(-2, -1)) / 8
        mask = (ids != self.pad).unsqueeze(1).unsqueeze(3)  # <- MDL032
        scores = scores.masked_fill(~mask, float("-inf"))
        return F.softmax(scores, dim=-1) @ v
""",
    "one head, by a parameter": """
def attend(q, k, v, padding_mask):
    scores = torch.bmm(q, k.transpose(1, 2))
    scores.masked_fill_(padding_mask.unsqueeze(-1), -1e4)  # <- MDL032
    return torch.softmax(scores, dim=2) @ v
""",
    "a method for masks": """
class Encoder(nn.Module):
    def make_src_mask(self, src):
        return (src != self.pad_idx)[:, None, :, None]  # <- MDL032

    def forward(self, src):
        return self.layers(self.embedding(src), self.make_src_mask(src))
""",
}
CORRECT = {
    "keys": """
def attend(q, k, v, ids):
    mask = (ids != 0).unsqueeze(1).unsqueeze(2)
    scores = (q @ k.transpose(-2, -1)).masked_fill(mask == 0, -1e9)
    return scores.softmax(-1) @ v
""",
    "keys, from the number of the padding": """
class Encoder(nn.Module):
    def forward(self, q, k, v, ids):
        mask = (ids != self.pad_idx).unsqueeze(1).unsqueeze(2)
        scores = (q @ k.transpose(-2, -1)).masked_fill(mask == 0, -1e9)
        return scores.softmax(-1) @ v
""",
    "keys, in two steps": """
def attend(q, k, v, ids, pad_idx):
    mask = (ids != pad_idx).unsqueeze(1)
    mask = mask.unsqueeze(2)
    scores = (q @ k.transpose(-2, -1)).masked_fill(~mask, -1e9)
    return scores.softmax(-1) @ v
""",
    "combined with a causal mask": """
class Decoder(nn.Module):
    def make_trg_mask(self, trg):
        pad = (trg != self.pad_idx).unsqueeze(1).unsqueeze(3)
        ahead = torch.tril(torch.ones(trg.shape[1], trg.shape[1])).bool()
        return pad & ahead
""",
    "queries and keys": """
def attend(q, k, v, mask):
    both = mask[:, :, None] * mask[:, None, :]
    scores = (q @ k.transpose(-2, -1)).masked_fill(both == 0, -1e9)
    return scores.softmax(-1) @ v
""",
    "pooling over the tokens": """
class Pool(nn.Module):
    def forward(self, x, mask):
        scores = self.score(x).masked_fill(mask.unsqueeze(-1) == 0, -1e9)
        return (x * scores.softmax(dim=1)).sum(1)
""",
    "values of the padding": """
def attend(q, k, v, mask):
    v = v.masked_fill(~mask[:, None, :, None], 0.0)
    scores = (q @ k.transpose(-2, -1)).masked_fill(~mask[:, None, None, :], -1e9)
    return scores.softmax(-1) @ v
""",
    "a mean over the tokens": """
def pooled(x, mask):
    mask = mask.unsqueeze(-1).float()
    return (x * mask).sum(1) / mask.sum(1)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_masks_of_the_queries(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_masks(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL032")
