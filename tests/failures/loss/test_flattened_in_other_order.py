"""LOS028: outputs (time, batch) and targets (batch, time) that are flattened."""

import pytest

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
songs = torch.randint(0, 6, (90, 13))
tags = songs.cumsum(1) % 6
class Tagger(nn.Module):
    def __init__(self, batch_first=False, outputs=6):
        super().__init__()
        self.batch_first = batch_first
        self.words, self.out = nn.Embedding(6, 8), nn.Linear(16, outputs)
        self.rnn = nn.GRU(8, 16, batch_first=batch_first)
    def forward(self, x):
        words = self.words(x)
        return self.out(self.rnn(words if self.batch_first else words.transpose(0, 1))[0])
model = Tagger()
optimizer = torch.optim.Adam(model.parameters())
def train(loss_of, parts=songs.split(18)):
    for epoch in range(2):
        for part in parts:
            optimizer.zero_grad()
            loss_of(part).backward()
            optimizer.step()
"""
FAULTY = {
    "a language model": """
train(lambda x: F.cross_entropy(model(x[:, :-1]).reshape(-1, 6), x[:, 1:].reshape(-1)))
""",
    "a tagger": """
for rows in torch.randperm(90).split(18):
    optimizer.zero_grad()
    F.cross_entropy(model(songs[rows]).reshape(-1, 6), tags[rows].reshape(-1)).backward()
    optimizer.step()
""",
    "log-probabilities": """
for rows in torch.randperm(90).split(18):
    optimizer.zero_grad()
    logs = F.log_softmax(model(songs[rows]), dim=-1)
    F.nll_loss(logs.view(-1, logs.size(-1)), tags[rows].flatten()).backward()
    optimizer.step()
""",
    "one number for each position": """
model = Tagger(outputs=1)
optimizer = torch.optim.Adam(model.parameters())
for rows in torch.randperm(90).split(18):
    optimizer.zero_grad()
    F.mse_loss(model(songs[rows]).view(-1), tags[rows].float().view(-1)).backward()
    optimizer.step()
""",
    "targets with padding": """
tags = torch.where(torch.arange(13) < 9, tags, -100)
for rows in torch.randperm(90).split(18):
    optimizer.zero_grad()
    F.cross_entropy(model(songs[rows]).flatten(0, 1), tags[rows].view(-1)).backward()
    optimizer.step()
""",
}
CORRECT = {
    "outputs that are transposed": """
train(lambda x: F.cross_entropy(model(x[:, :-1]).transpose(0, 1).reshape(-1, 6), x[:, 1:].reshape(-1)))
""",
    "targets that are transposed": """
train(lambda x: F.cross_entropy(model(x[:, :-1]).reshape(-1, 6), x[:, 1:].t().reshape(-1)))
""",
    "targets that are copied": """
train(lambda x: F.cross_entropy(model(x[:, :-1]).reshape(-1, 6), x[:, 1:].t().contiguous().view(-1)))
""",
    "batch first": """
model = Tagger(batch_first=True)
optimizer = torch.optim.Adam(model.parameters())
train(lambda x: F.cross_entropy(model(x[:, :-1]).reshape(-1, 6), x[:, 1:].reshape(-1)))
""",
    "batch first with tags": """
model = Tagger(batch_first=True)
optimizer = torch.optim.Adam(model.parameters())
for rows in torch.randperm(90).split(18):
    optimizer.zero_grad()
    F.cross_entropy(model(songs[rows]).reshape(-1, 6), tags[rows].reshape(-1)).backward()
    optimizer.step()
""",
    "parts of a long text with the time first": """
text = torch.randint(0, 6, (20 * 40,)).view(20, -1).t().contiguous()
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn, self.out = nn.Embedding(6, 8), nn.GRU(8, 16), nn.Linear(16, 6)
    def forward(self, x):
        return self.out(self.rnn(self.words(x))[0])
model = Words()
optimizer = torch.optim.Adam(model.parameters())
for start in range(0, 39, 13):
    optimizer.zero_grad()
    F.cross_entropy(model(text[start : start + 13]).view(-1, 6), text[start + 1 : start + 14].view(-1)).backward()
    optimizer.step()
""",
    "targets that are all equal": """
model = Tagger(outputs=1)
optimizer = torch.optim.Adam(model.parameters())
for rows in torch.randperm(90).split(18):
    optimizer.zero_grad()
    F.binary_cross_entropy_with_logits(model(songs[rows]).view(-1), torch.ones(18, 13).view(-1)).backward()
    optimizer.step()
""",
    "without flattening": """
train(lambda x: F.cross_entropy(model(x[:, :-1]).permute(1, 2, 0), x[:, 1:]))
""",
    "tokens that are all equal": """
songs = torch.ones(90, 13).long()
train(lambda x: F.cross_entropy(model(x[:, :-1]).reshape(-1, 6), x[:, 1:].reshape(-1)), songs.split(18))
""",
    "images": """
model = nn.Conv2d(3, 6, 3, padding=1)
optimizer = torch.optim.Adam(model.parameters())
images, masks = torch.randn(8, 3, 10, 12), torch.randint(0, 6, (8, 10, 12))
for step in range(5):
    optimizer.zero_grad()
    F.cross_entropy(model(images).permute(0, 2, 3, 1).reshape(-1, 6), masks.reshape(-1)).backward()
    optimizer.step()
""",
    "several outputs": """
model = nn.Linear(8, 24)
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(10, 8), torch.randint(0, 6, (10, 4))
for step in range(5):
    optimizer.zero_grad()
    F.cross_entropy(model(x).view(10, 4, 6).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
""",
    "targets repeated for each view": """
model = nn.Linear(8, 6)
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(3, 10, 8), torch.randint(0, 6, (10,))
for step in range(5):
    optimizer.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), y.expand(3, 10).reshape(-1)).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_another_order_is_reported(run, script):
    assert "LOS028" in {each.code for each in run(HEAD + script).findings}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_the_same_order_is_accepted(run, script):
    assert "LOS028" not in {each.code for each in run(HEAD + script).findings}
