"""PRC001: clipping of gradients that GradScaler has multiplied."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
mse = nn.functional.mse_loss
"""

GUILTY = {
    "plain": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    clip_grad_norm_(model.parameters(), 1.0)  # <- PRC001
    scaler.step(optimizer)
    scaler.update()
""",
    "by value, in a function": """
def update():
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    clip_grad_value_(model.parameters(), 0.5)  # <- PRC001
    scaler.step(optimizer)
    scaler.update()
for _ in range(3):
    update()
""",
    "accumulation, in a class": """
class Trainer:
    def micro(self, rows):
        scaler.scale(mse(model(x[rows]), y[rows]) / 2).backward()
    def step(self):
        nn.utils.clip_grad_norm_([p for p in model.parameters()], max_norm=0.1)  # <- PRC001
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
trainer = Trainer()
for _ in range(3):
    trainer.micro(slice(0, 32))
    trainer.micro(slice(32, 64))
    trainer.step()
""",
    "unscaled, but too late": """
for _ in range(3):
    optimizer.zero_grad()
    (scaler.scale(mse(model(x), y)) / 1).backward()
    clip_grad_norm_(model.parameters(), 1.0)  # <- PRC001
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
""",
}

QUIET = {
    "unscaled before": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "a scaler that is switched off": """
scaler = torch.amp.GradScaler("cpu", enabled=False)
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "a norm that is only read": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    norm = clip_grad_norm_(model.parameters(), float("inf"))
    scaler.step(optimizer)
    scaler.update()
""",
    "one loss scaled and another one not": """
other = nn.Linear(6, 1)
second = torch.optim.SGD(other.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    second.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
    mse(other(x), y).backward()
    clip_grad_norm_(other.parameters(), 1.0)
    second.step()
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_it_is_found(guilty, script):
    guilty(HEAD + script)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(quiet, script):
    quiet(HEAD + script)
