"""OPT003: frozen parameters that keep changing."""

from __future__ import annotations

import pytest

DATA = """
import torch
import torch.nn.functional as F
from torch import nn, optim
x = torch.randn(64, 6)
y = torch.randint(0, 3, (64,))
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
def freeze(module):
    for p in module.parameters():
        p.requires_grad = False
"""
FAULTY = {
    "old_gradient_stays": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # <- OPT003
    model[2].zero_grad()
    if i < 3:
        model[0].zero_grad()
    if i == 3:
        freeze(model[0])
""",
    "momentum_and_zeros": """
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for i in range(8):
    if i == 4:
        freeze(model[0])
    optimizer.zero_grad(set_to_none=False)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # <- OPT003
""",
    "weight_decay_and_zeros": """
class Trainer:
    def __init__(self):
        self.optimizer = optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    def epoch(self, updates):
        for _ in range(updates):
            self.optimizer.zero_grad(set_to_none=False)
            F.cross_entropy(model(x), y).backward()
            self.optimizer.step()  # <- OPT003
trainer = Trainer()
trainer.epoch(4)
model[0].requires_grad_(False)
trainer.epoch(4)
""",
    "accumulation": """
optimizer = optim.Adam(model.parameters())
for i in range(16):
    if i == 6:
        freeze(model[2])
    (F.cross_entropy(model(x), y) / 2).backward()
    if i % 2:
        optimizer.step()  # <- OPT003
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
""",
}
CORRECT = {
    "cleared_to_none": """
optimizer = optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
for i in range(8):
    if i == 4:
        freeze(model[0])
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "frozen_from_the_start": """
freeze(model[0])
optimizer = optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1, momentum=0.9)
for i in range(8):
    optimizer.zero_grad(set_to_none=False)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "zeros_without_momentum": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    if i == 4:
        freeze(model[0])
    optimizer.zero_grad(set_to_none=False)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "both_halves_at_the_end": """
G, D = nn.Linear(4, 6), nn.Linear(6, 1)
og, od = optim.Adam(G.parameters()), optim.Adam(D.parameters())
bce = F.binary_cross_entropy_with_logits
for _ in range(6):
    z = torch.randn(64, 4)
    D.requires_grad_(True)
    od.zero_grad()
    (bce(D(x), torch.ones(64, 1)) + bce(D(G(z).detach()), torch.zeros(64, 1))).backward()
    D.requires_grad_(False)
    og.zero_grad()
    bce(D(G(z)), torch.ones(64, 1)).backward()
    og.step()
    od.step()
""",
    "evolution_strategy": """
freeze(model)
optimizer = optim.Adam(model.parameters(), lr=0.01)
for _ in range(8):
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
""",
    "unfrozen_again": """
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for i in range(12):
    model[0].requires_grad_(i % 4 < 2)
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script: str):
    assert "requires_grad=False" in run_reports(DATA + script).findings[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(DATA + script)
