"""LOS001: cross-entropy over a softmax, and everything that only looks like it."""

from __future__ import annotations

import pytest

DATA = """
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(64, 6)
y = x[:, :4].argmax(1)
"""

GUILTY = {
    "layer": """
model = nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for _ in range(3):
    optimizer.zero_grad()
    loss = criterion(model(x), y)  # <- LOS001
    loss.backward()
    optimizer.step()
""",
    "class_and_method": """
from torch.nn.functional import cross_entropy
class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 4)
    def forward(self, x):
        return torch.softmax(self.head(torch.relu(self.body(x))), -1)
    def training_step(self, x, y):
        return cross_entropy(self(x), y, label_smoothing=0.1)  # <- LOS001
task = Task()
optimizer = torch.optim.Adam(task.parameters())
for _ in range(3):
    loss = task.training_step(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "tokens_and_bfloat16": """
model = nn.Linear(6, 4)
optimizer = torch.optim.AdamW(model.parameters())
tokens, targets = x.view(8, 8, 6), y.view(8, 8)
for _ in range(3):
    with torch.autocast("cpu", torch.bfloat16):
        probabilities = model(tokens).softmax(-1)
        loss = F.cross_entropy(probabilities.view(-1, 4), targets.view(-1))  # <- LOS001
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "accumulation_and_two_losses": """
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind, self.size = nn.Linear(6, 4), nn.Linear(6, 1)
    def forward(self, x):
        return {"kind": F.softmax(self.kind(x), dim=1), "size": self.size(x)}
model = Two()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def loss_of(out, y, z):
    kind = F.cross_entropy(out["kind"], y)  # <- LOS001
    return kind + 0.5 * F.mse_loss(out["size"], z)
for step in range(8):
    part = slice(step % 4 * 16, step % 4 * 16 + 16)
    (loss_of(model(x[part]), y[part], x[part].sum(1, keepdim=True)) / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "mean_of_each_by_hand": """
model = nn.Sequential(nn.Linear(6, 4), nn.Softmax(-1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction="none")  # <- LOS001
    each.mean().backward()
    optimizer.step()
""",
}

LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
"""
QUIET = {
    "logits": "model = nn.Linear(6, 4)\nloss_of = F.cross_entropy" + LOOP,
    "log_softmax_and_nll": "model = nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(1))\nloss_of = F.nll_loss" + LOOP,
    "log_softmax_twice": "model = nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(1))\nloss_of = F.cross_entropy" + LOOP,
    "logarithm_of_a_softmax": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.nll_loss(z.softmax(1).clamp_min(1e-9).log(), y)" + LOOP,
    "temperature": "model = nn.Linear(6, 4)\nloss_of = lambda z, y: F.cross_entropy(z.softmax(1) * 16, y)" + LOOP,
    "attention_over_positions": "model = nn.Linear(6, 4)\nloss_of = lambda z, y: F.cross_entropy(z.softmax(0), y)"
    + LOOP,
    "attention_inside": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.value, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 4)
    def forward(self, x):
        weights = (self.query(x) @ self.query(x).T).softmax(-1)
        return self.head(weights @ self.value(x))
model, loss_of = Net(), F.cross_entropy
"""
    + LOOP,
    "probabilities_as_targets": "model, teacher = nn.Linear(6, 4), nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.cross_entropy(z, teacher(x).detach().softmax(1))" + LOOP,
    "distillation": "model, teacher = nn.Linear(6, 4), nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.kl_div(z.log_softmax(1), teacher(x).detach().softmax(1), reduction='batchmean')" + LOOP,
    "entropy_bonus": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.cross_entropy(z, y) + 0.01 * (z.softmax(1) * z.log_softmax(1)).sum(1).mean()" + LOOP,
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_it_is_found_at_its_line(guilty, script: str):
    found = guilty(DATA + script).findings[0]
    assert "4 classes" in found.message
    assert "0.74" in found.message


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(quiet, script: str):
    quiet(DATA + script)
