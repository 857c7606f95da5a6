"""MDL014: language models without a causal mask, in the source."""

import pytest

HEAD = """
import math
import torch
from torch import nn
from torch.nn import functional as F
"""
TRAINING = """
model = LM()
optimizer = torch.optim.AdamW(model.parameters())
for tokens in loader:
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAULTY = {
    "layers of an encoder": """
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(32, 4, batch_first=True) for _ in range(2)])
    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)  # <- MDL014
        return self.head(x)
"""
    + TRAINING,
    "attention by hand": """
class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        return torch.softmax(scores, dim=-1) @ v  # <- MDL014

class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.attn, self.head = nn.Embedding(50, 32), Attention(32), nn.Linear(32, 50)
    def forward(self, ids):
        return self.head(self.attn(self.emb(ids)))
"""
    + TRAINING,
    "scaled dot products and windows of a dataset": """
class Windows(torch.utils.data.Dataset):
    def __init__(self, ids, block):
        self.ids, self.block = ids, block
    def __len__(self):
        return len(self.ids) - self.block
    def __getitem__(self, i):
        chunk = self.ids[i:i + self.block + 1]
        return chunk[:-1], chunk[1:]

class LM(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb, self.qkv, self.head = nn.Embedding(50, d), nn.Linear(d, 3 * d), nn.Linear(d, 50)
    def forward(self, ids):
        q, k, v = self.qkv(self.emb(ids)).chunk(3, dim=-1)
        return self.head(F.scaled_dot_product_attention(q, k, v))  # <- MDL014

def train(model, loader, optimizer):
    for x, y in loader:
        logits = model(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "a bidirectional LSTM": """
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(50, 32), nn.Linear(64, 50)
        self.rnn = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
    def forward(self, ids):
        out, _ = self.rnn(self.emb(ids))  # <- MDL014
        return self.head(out)
"""
    + TRAINING,
    "multi-head attention, a mask that is not passed": """
def get_batch(data, block, n):
    start = torch.randint(len(data) - block - 1, (n,))
    x = torch.stack([data[s:s + block] for s in start])
    y = torch.stack([data[s + 1:s + 1 + block] for s in start])
    return x, y

class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.mha = nn.MultiheadAttention(32, 4, batch_first=True)
    def forward(self, ids, targets):
        x = self.emb(ids)
        mask = torch.triu(torch.ones(ids.size(1), ids.size(1)), 1).bool()
        x = x + self.mha(x, x, x)[0]  # <- MDL014
        return F.cross_entropy(self.head(x).transpose(1, 2), targets)

lm = LM()
opt = torch.optim.AdamW(lm.parameters())
for step in range(100):
    loss = lm(*get_batch(data, 16, 8))
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
}

ENCODER = """
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, batch_first=True), 2)
    def forward(self, ids):
        x = self.emb(ids)
        return self.head(self.enc(x))
"""

CORRECT = {
    "a mask": ENCODER.replace("self.enc(x)", "self.enc(x, nn.Transformer.generate_square_subsequent_mask(ids.size(1)))")
    + TRAINING,
    "a mask made of positions": ENCODER.replace(
        "return self.head(self.enc(x))",
        "t = torch.arange(ids.size(1))\n        return self.head(self.enc(x, mask=t[None] > t[:, None]))",
    )
    + TRAINING,
    "a masked language model": ENCODER
    + """
model = LM()
optimizer = torch.optim.AdamW(model.parameters())
for tokens in loader:
    hidden = torch.rand(tokens.shape) < 0.15
    logits = model(tokens.masked_fill(hidden, 49))
    loss = F.cross_entropy(logits[hidden], tokens[hidden])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "only the last position is predicted": ENCODER.replace("self.head(self.enc(x))", "self.head(self.enc(x)[:, -1])")
    + """
model = LM()
optimizer = torch.optim.AdamW(model.parameters())
for i in range(0, 1000, 16):
    logits = model(data[i:i + 16][None])
    steps = data[1:] - data[:-1]
    loss = F.cross_entropy(logits, data[i + 16][None])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "the last position is taken in the loss": ENCODER
    + """
model = LM()
optimizer = torch.optim.AdamW(model.parameters())
for i in range(0, 1000, 16):
    x, y = data[i:i + 16], data[i + 1:i + 17]
    loss = F.cross_entropy(model(x[None])[:, -1], y[-1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a tagger that counts changes": ENCODER
    + """
model = LM()
optimizer = torch.optim.AdamW(model.parameters())
for tokens, tags in loader:
    changes = (tags[:, 1:] != tags[:, :-1]).float().mean()
    loss = F.cross_entropy(model(tokens).transpose(1, 2), tags)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(changes)
""",
    "a translator": """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
    def forward(self, source):
        return self.rnn(self.emb(source))[0].mean(1)

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.head = nn.Embedding(50, 64), nn.GRU(64, 64, batch_first=True), nn.Linear(64, 50)
    def forward(self, memory, ids):
        return self.head(self.rnn(self.emb(ids), memory[None])[0])

encoder, decoder = Encoder(), Decoder()
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
for source, target in loader:
    logits = decoder(encoder(source), target[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "attention with a mask by hand": """
class LM(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb, self.qkv, self.head = nn.Embedding(50, d), nn.Linear(d, 3 * d), nn.Linear(d, 50)
        self.register_buffer("allowed", torch.ones(64, 64).tril().bool())
    def forward(self, ids):
        q, k, v = self.qkv(self.emb(ids)).chunk(3, dim=-1)
        n = ids.size(1)
        scores = (q @ k.transpose(1, 2)).masked_fill(~self.allowed[:n, :n], float("-inf"))
        return self.head(scores.softmax(-1) @ v)
"""
    + TRAINING,
}

BOTH_WAYS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(50, 32), nn.Linear(%s, 2)
        self.rnn = nn.LSTM(32, 16, bidirectional=True)
    def forward(self, ids):
        x = self.emb(ids.permute(1, 0))
        %s

def pairs(tokens):
    return tokens[:, :-1], tokens[:, 1:]

model = Model()
opt = torch.optim.Adam(model.parameters())
for tokens, labels in loader:
    loss = F.cross_entropy(model(tokens), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
CORRECT |= {
    "the first and last position": BOTH_WAYS
    % (64, "outputs, _ = self.rnn(x)\n        return self.head(torch.cat((outputs[0], outputs[-1]), -1))"),
    "one position per direction": BOTH_WAYS
    % (32, "out, _ = self.rnn(x)\n        return self.head(torch.cat((out[-1, :, :16], out[0, :, 16:]), 1))"),
    "final states": BOTH_WAYS % (32, "_, (h, c) = self.rnn(x)\n        return self.head(torch.cat((h[-2], h[-1]), 1))"),
    "class token": ENCODER.replace(
        "return self.head(self.enc(x))", "x = self.enc(x)\n        return self.head(x[:, 0, :])"
    )
    + BOTH_WAYS[BOTH_WAYS.index("def pairs") :].replace("Model()", "LM()"),
}
FAULTY["all positions of both directions"] = BOTH_WAYS.replace("model(tokens), labels", "model(tokens), tokens") % (
    32,
    "out, _ = self.rnn(x)  # <- MDL014\n        return self.head(out).transpose(0, 1)",
)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_models_that_read_their_targets(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_causal_models_and_other_tasks(lint_is_clean, script):
    lint_is_clean(HEAD + script)
