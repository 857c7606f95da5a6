"""GRD004: what becomes of the batches that do not fill a window."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(88, 6)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)  # 11 batches
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
"""

GUILTY = {
    "cleared at the start of the epoch": """
for epoch in range(3):
    optimizer.zero_grad()
    for i, (a, b) in enumerate(loader):  # <- GRD004
        (mse(model(a), b) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "into the next epoch": """
for epoch in range(3):
    for i, (a, b) in enumerate(loader):  # <- GRD004
        (mse(model(a), b) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "in a class with a counter for each epoch": """
class Trainer:
    def __init__(self):
        self.optimizer = torch.optim.AdamW(model.parameters())
    def epoch(self):
        micro = 0
        self.optimizer.zero_grad(set_to_none=True)
        for a, b in loader:  # <- GRD004
            (mse(model(a), b) / 2).backward()
            micro += 1
            if micro == 2:
                micro = 0
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
trainer = Trainer()
for _ in range(3):
    trainer.epoch()
""",
    "cleared by hand": """
def epoch():
    for p in model.parameters():
        p.grad = None
    for i, (a, b) in enumerate(loader):  # <- GRD004
        (mse(model(a), b) / 3).backward()
        if i % 3 == 2:
            optimizer.step()
            for p in model.parameters():
                p.grad = None
for _ in range(3):
    epoch()
""",
}

QUIET = {
    "a short window that is stepped": """
for epoch in range(3):
    for i, (a, b) in enumerate(loader):
        (mse(model(a), b) / (3 if i > 7 else 4)).backward()
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "stepped after the loop": """
for epoch in range(3):
    for i, (a, b) in enumerate(loader):
        (mse(model(a), b) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a counter that runs on": """
seen = 0
for epoch in range(4):
    for a, b in loader:
        (mse(model(a), b) / 4).backward()
        seen += 1
        if seen % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "a probe after the epoch": """
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        mse(model(a), b).backward()
        optimizer.step()
    mse(model(x), y).backward()
    optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_it_is_found(guilty, script):
    guilty(HEAD + script)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(quiet, script):
    quiet(HEAD + script)
