"""LOS007: a log-softmax over the samples or the positions, and correct look-alikes."""

from __future__ import annotations

import pytest

DATA = """
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(64, 6)
y = x[:, :4].argmax(1)
"""

LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
"""

CORRECT = {
    "over the classes": "model = nn.Linear(6, 4)\nloss_of = lambda z, y: F.nll_loss(z.log_softmax(1), y)" + LOOP,
    "over the last of two": "model = nn.Linear(6, 4)\nloss_of = lambda z, y: F.nll_loss(z.log_softmax(-1), y)" + LOOP,
    "cross_entropy": "model = nn.Linear(6, 4)\nloss_of = nn.CrossEntropyLoss(label_smoothing=0.1)" + LOOP,
    "one sample without a batch": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.nll_loss(z[0].log_softmax(0), y[0])" + LOOP,
    "tokens, flattened": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.nll_loss(z.view(8, 8, 4).log_softmax(2).view(-1, 4), y)" + LOOP,
    "tokens, transposed": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.nll_loss(z.view(8, 8, 4).log_softmax(-1).transpose(1, 2), y.view(8, 8))" + LOOP,
    "tokens, by cross_entropy": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.cross_entropy(z.view(8, 8, 4).permute(0, 2, 1), y.view(8, 8))" + LOOP,
    "soft targets by hand over the last dimension": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: -(F.one_hot(y, 4).view(8, 8, 4) * z.view(8, 8, 4).log_softmax(-1)).sum() / 64" + LOOP,
    "contrastive, both ways": """
model = nn.Linear(6, 8)
def loss_of(z, y):
    alike = F.normalize(z) @ F.normalize(z.roll(1, 0)).T
    labels = torch.arange(len(z))
    return (F.cross_entropy(alike, labels) + F.cross_entropy(alike.T, labels)) / 2
"""
    + LOOP,
    "attention over the samples inside": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.cross_entropy(z.softmax(0) @ torch.eye(4), y)" + LOOP,
}

FAULTY = {
    "over the samples": """
model = nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(dim=0))
criterion = nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = criterion(model(x), y)  # <- LOS007
    loss.backward()
    optimizer.step()
""",
    "a class and accumulation": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 4)
    def forward(self, x):
        return F.log_softmax(self.head(x), dim=0)
    def loss(self, x, y):
        return F.nll_loss(self(x), y)  # <- LOS007
net = Net()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(4):
    part = slice(step % 2 * 32, step % 2 * 32 + 32)
    (net.loss(x[part], y[part]) / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "over the positions, under autocast": """
model = nn.Conv1d(6, 4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
series, labels = x.view(8, 8, 6).transpose(1, 2), y.view(8, 8)
for _ in range(3):
    with torch.autocast("cpu", torch.bfloat16):
        out = torch.log_softmax(model(series), -1)
        loss = F.nll_loss(out, labels)  # <- LOS007
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "the default dimension of three-dimensional input, in a closure": """
import warnings
warnings.filterwarnings("ignore")
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
softmax = nn.LogSoftmax()
def closure():
    optimizer.zero_grad()
    out = softmax(model(x.view(16, 4, 6)))
    loss = F.nll_loss(out.reshape(-1, 4), y)  # <- LOS007
    loss.backward()
    return loss
for _ in range(3):
    optimizer.step(closure)
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(DATA + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    (found,) = run_reports(DATA + script).findings
    assert "normalises over the " in found.message
