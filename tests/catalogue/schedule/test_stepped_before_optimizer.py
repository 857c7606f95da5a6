"""SCH001: the schedule moves before the optimizer does."""

from __future__ import annotations

import pytest

DATA = """
import warnings
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
warnings.filterwarnings("ignore")
x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update():
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""
GUILTY = {
    "top_of_the_epoch": """
scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
for epoch in range(3):
    scheduler.step()  # <- SCH001
    for _ in range(4):
        update()
""",
    "between_backward_and_step": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
for _ in range(6):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    scheduler.step()  # <- SCH001
    optimizer.step()
""",
    "class": """
class Trainer:
    def __init__(self):
        self.schedule = lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9 ** epoch)
    def fit(self, epochs):
        for epoch in range(epochs):
            self.before_epoch()
            for _ in range(12):
                update()
    def before_epoch(self):
        self.schedule.step()  # <- SCH001
Trainer().fit(4)
""",
    "two_optimizers": """
other = nn.Linear(6, 1)
second = torch.optim.Adam(other.parameters(), lr=0.01)
good = lr_scheduler.ExponentialLR(optimizer, 0.9)
late = lr_scheduler.ExponentialLR(second, 0.9)
for _ in range(5):
    update()
    good.step()
    late.step()  # <- SCH001
    second.zero_grad()
    F.mse_loss(other(x), y).backward()
    second.step()
""",
    "long_epochs": """
scheduler = lr_scheduler.MultiStepLR(optimizer, [2, 3])
def batches():
    yield from range(40)
for epoch in range(3):
    scheduler.step()  # <- SCH001
    for _ in batches():
        update()
""",
}
QUIET = {
    "after_the_epoch": """
scheduler = lr_scheduler.StepLR(optimizer, 1)
for epoch in range(3):
    for _ in range(4):
        update()
    scheduler.step()
""",
    "caught_up_after_a_restart": """
scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
for _ in range(3):
    scheduler.step()
for epoch in range(3, 6):
    for _ in range(4):
        update()
    scheduler.step()
""",
    "caught_up_by_one": """
scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
def advance():
    scheduler.step()
scheduler.step()
for epoch in range(1, 4):
    update()
    advance()
""",
    "resumed": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 20)
for _ in range(3):
    update()
    scheduler.step()
states = optimizer.state_dict(), scheduler.state_dict()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 20)
optimizer.load_state_dict(states[0])
scheduler.load_state_dict(states[1])
for _ in range(4):
    update()
    scheduler.step()
""",
    "skipped_by_a_scaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=2)
scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
for i in range(5):
    optimizer.zero_grad()
    scaler.scale(F.mse_loss(model(x), y)).backward()
    if i == 0:
        model.weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
""",
    "from_rate_zero": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 10))
for _ in range(6):
    scheduler.step()
    update()
""",
    "plateau_before_training": """
scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
for _ in range(4):
    with torch.no_grad():
        scheduler.step(F.mse_loss(model(x), y).item())
    update()
""",
    "epoch_given": """
scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4)
for epoch in range(4):
    scheduler.step(epoch)
    update()
""",
    "in_micro_batches": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 0.99 ** step)
for i in range(12):
    (F.mse_loss(model(x), y) / 2).backward()
    scheduler.step()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "generator_every_few": """
other = nn.Linear(6, 1)
second = torch.optim.Adam(other.parameters(), lr=0.01)
schedules = [lr_scheduler.ExponentialLR(o, 0.9) for o in (optimizer, second)]
for i in range(10):
    update()
    if i % 5 == 4:
        second.zero_grad()
        F.mse_loss(other(x), y).backward()
        second.step()
    for scheduler in schedules:
        scheduler.step()
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_it_is_found_at_its_line(guilty, script: str):
    assert guilty(DATA + script).findings[0].first_update == 0


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(quiet, script: str):
    quiet(DATA + script)
