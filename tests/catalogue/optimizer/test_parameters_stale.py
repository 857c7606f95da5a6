"""OPT002: an optimizer for tensors that the model has not got any more."""

from __future__ import annotations

import pytest

DATA = """
import copy
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(96, 6)
y = torch.randint(0, 3, (96,))
def build(classes=3):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, classes))
model = build()
"""
GUILTY = {
    "model_built_again": """
optimizer = optim.Adam(model.parameters())
model = build()
for _ in range(6):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # <- OPT002
""",
    "head_replaced": """
class Trainer:
    def __init__(self):
        self.model = build(10)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
    def adapt(self, classes):
        self.model[2] = nn.Linear(8, classes)
    def fit(self):
        for a, b in DataLoader(TensorDataset(x, y), batch_size=12):
            loss = F.cross_entropy(self.model(a), b)
            loss.backward()
            self.optimizer.step()  # <- OPT002
            self.model.zero_grad()
trainer = Trainer()
trainer.adapt(3)
trainer.fit()
""",
    "weight_reassigned": """
optimizer = optim.AdamW(model.parameters())
nn.init.orthogonal_(model[0].weight)
model[0].weight = nn.Parameter(model[0].weight.detach() * 0.5)
def update(a, b):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(a), b)
    loss.backward()
    optimizer.step()  # <- OPT002
for _ in range(5):
    update(x, y)
""",
    "rolled_back_by_a_copy": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
def epoch(model):
    for i in range(8):
        (F.cross_entropy(model(x[i * 12 : i * 12 + 12]), y[i * 12 : i * 12 + 12]) / 2).backward()
        if i % 2:
            optimizer.step()  # <- OPT002
            model.zero_grad()
epoch(model)
best = copy.deepcopy(model)
model = copy.deepcopy(best)
epoch(model)
epoch(model)
""",
}
LOOP = """
for _ in range(10):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
QUIET = {
    "in_order": "optimizer = optim.Adam(model.parameters())" + LOOP,
    "head_used_later": """
heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])
net = nn.Sequential(model[0], nn.ReLU(), heads[0])
optimizer = optim.Adam([*model[0].parameters(), *heads.parameters()])
for i in range(10):
    optimizer.zero_grad()
    F.cross_entropy(heads[i >= 6](torch.relu(model[0](x))), y).backward()
    optimizer.step()
""",
    "ema": """
optimizer = optim.Adam(model.parameters())
average = copy.deepcopy(model)
for _ in range(10):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()):
            a.lerp_(p, 0.1)
        average(x)
""",
    "reptile": """
optimizer = optim.SGD(model.parameters(), lr=0.5)
for _ in range(6):
    learner = copy.deepcopy(model)
    for _ in range(3):
        learner.zero_grad()
        F.cross_entropy(learner(x), y).backward()
        with torch.no_grad():
            for p in learner.parameters():
                p.sub_(0.1 * p.grad)
    for p, q in zip(model.parameters(), learner.parameters()):
        p.grad = (p - q).detach()
    optimizer.step()
""",
    "master_weights": """
model = build().bfloat16()
masters = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = optim.Adam(masters)
for _ in range(8):
    model.zero_grad()
    F.cross_entropy(model(x.bfloat16()).float(), y).backward()
    for m, p in zip(masters, model.parameters()):
        m.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for m, p in zip(masters, model.parameters()):
            p.copy_(m)
""",
    "raw_tensors": """
temperature, unused = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(3))
optimizer = optim.Adam([*model.parameters(), temperature, unused])
for _ in range(8):
    optimizer.zero_grad()
    F.cross_entropy(model(x) * temperature, y).backward()
    optimizer.step()
""",
    "another_model_by_hand": """
latents = nn.ParameterList([nn.Parameter(torch.randn(6)) for _ in range(4)])
other = build()
optimizer = optim.Adam(latents.parameters())
for i in range(8):
    optimizer.zero_grad()
    other.zero_grad()
    F.cross_entropy(other(x + latents[i % 2]), y).backward()
    optimizer.step()
    with torch.no_grad():
        for p in other.parameters():
            p -= 0.05 * p.grad
""",
    "restored_in_place": """
optimizer = optim.Adam(model.parameters())
best = copy.deepcopy(model.state_dict())
"""
    + LOOP
    + "model.load_state_dict(best)"
    + LOOP,
    "sweep": """
for lr in (0.1, 0.01, 0.001):
    model = build()
    optimizer = optim.Adam(model.parameters(), lr=lr)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_it_is_found_at_its_line(guilty, script: str):
    assert "in no model that is called" in guilty(DATA + script).findings[0].message


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(quiet, script: str):
    quiet(DATA + script)
