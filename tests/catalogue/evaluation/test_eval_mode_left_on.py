"""EVL002: training goes on in eval mode."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 6)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:96], y[:96]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[96:], y[96:]), batch_size=16)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def validate(net=model):
    net.eval()
    with torch.no_grad():
        return sum(nn.functional.mse_loss(net(a), b).item() for a, b in held_out)
"""

GUILTY = {
    "train() before the loop only": """
model.train()
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()  # <- EVL002
    validate()
""",
    "a class": """
class Trainer:
    def fit(self, epochs):
        for _ in range(epochs):
            self.epoch()
            validate()
    def epoch(self):
        for a, b in train:
            loss = nn.functional.l1_loss(model(a), b)
            loss.backward()
            optimizer.step()  # <- EVL002
            optimizer.zero_grad()
Trainer().fit(2)
""",
    "validation within an epoch": """
for number, (a, b) in enumerate(DataLoader(train.dataset, batch_size=6, shuffle=True)):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()  # <- EVL002
    if number == 7:
        validate()
""",
    "accumulation and bf16": """
def run():
    for number, (a, b) in enumerate(train):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(a)
        (nn.functional.mse_loss(out.float(), b) / 2).backward()
        if number % 2:
            optimizer.step()  # <- EVL002
            optimizer.zero_grad()
for _ in range(3):
    run()
    validate()
""",
    "held-out data without a loader": """
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()  # <- EVL002
    model.eval()
    with torch.no_grad():
        print(nn.functional.mse_loss(model(x[96:]), y[96:]))
""",
}

LOOP = """
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
"""
QUIET = {
    "train() in every epoch": f"""
for _ in range(3):
    model.train()
{LOOP}
    validate()
""",
    "eval mode from the start": f"""
model.eval()
for _ in range(3):
{LOOP}
    validate()
""",
    "frozen batch normalisation": f"""
for _ in range(3):
    model.train()
    model[1].eval()
{LOOP}
    validate()
""",
    "the last stage in eval mode, on purpose": f"""
for number in range(4):
    model.train()
    if number >= 2:
        model.eval()
{LOOP}
    validate()
    if number >= 2:
        model.eval()
""",
    "neither dropout nor batch normalisation": """
plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
sgd = torch.optim.SGD(plain.parameters(), lr=0.01)
for _ in range(3):
    for a, b in train:
        sgd.zero_grad()
        nn.functional.mse_loss(plain(a), b).backward()
        sgd.step()
    validate(plain)
""",
    "an input is optimised in eval mode": f"""
for _ in range(2):
    model.train()
{LOOP}
    validate()
image = torch.zeros(1, 6, requires_grad=True)
climb = torch.optim.Adam([image], lr=0.1)
for _ in range(6):
    climb.zero_grad()
    (-model(image).sum()).backward()
    climb.step()
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_found(guilty, script):
    guilty(HEAD + script)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes(quiet, script):
    quiet(HEAD + script)
