"""SCH011: a scheduler that is created again in every epoch."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import *
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau
x = torch.randn(96, 6)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
def epoch_of(optimizer, after=None, size=16):
    total = 0.0
    for part in torch.randperm(96).split(size):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[part]), x[part].sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        total += loss.item()
        if after is not None:
            after.step()
    return total
"""

FAULTY = {
    "a cosine over all epochs, in a function": """
def run(epoch):
    scheduler = CosineAnnealingLR(optimizer, T_max=10)  # <- SCH011
    epoch_of(optimizer)
    scheduler.step()
for epoch in range(10):
    run(epoch)
""",
    "in a method, through a table": """
class Trainer:
    schedules = {"step": lambda o: MultiStepLR(o, [3, 6])}  # <- SCH011
    def __init__(self):
        self.optimizer = optimizer
    def one_epoch(self):
        self.scheduler = self.schedules["step"](self.optimizer)
        epoch_of(self.optimizer)
        self.scheduler.step()
    def fit(self):
        for _ in range(6):
            self.one_epoch()
Trainer().fit()
""",
    "a schedule over all batches": """
for epoch in range(5):
    scheduler = OneCycleLR(optimizer, 0.1, total_steps=5 * 6)  # <- SCH011
    epoch_of(optimizer, scheduler)
""",
    "a function of the epoch": """
for epoch in range(5):
    decay = LambdaLR(optimizer, lambda e: 0.9 ** e)  # <- SCH011
    epoch_of(optimizer)
    decay.step()
""",
    "a linear decay over all batches, by a function": """
def linear(optimizer, total):
    return LambdaLR(optimizer, lambda k: max(0.0, 1 - k / total))  # <- SCH011
for epoch in range(5):
    decay = linear(optimizer, 30)
    epoch_of(optimizer, decay)
""",
    "a plateau that forgets": """
for epoch in range(6):
    plateau = ReduceLROnPlateau(optimizer, patience=2)
    plateau.step(epoch_of(optimizer))  # <- SCH011
""",
    "steps after each batch": """
for epoch in range(5):
    scheduler = StepLR(optimizer, step_size=20)  # <- SCH011
    epoch_of(optimizer, scheduler)
""",
    "late in the run": """
for epoch in range(60):
    scheduler = StepLR(optimizer, 20)  # <- SCH011
    epoch_of(optimizer)
    scheduler.step()
""",
}

CORRECT = {
    "warm restarts by hand": """
for cycle in range(4):
    scheduler = CosineAnnealingLR(optimizer, T_max=3)
    for epoch in range(3):
        epoch_of(optimizer)
        scheduler.step()
    optimizer.param_groups[0]["lr"] = 0.1
""",
    "a cycle for each epoch": """
for epoch in range(5):
    cycle = OneCycleLR(optimizer, 0.1, total_steps=6)
    epoch_of(optimizer, cycle)
""",
    "restarts of a function": """
for epoch in range(5):
    cycle = LambdaLR(optimizer, lambda k: 0.8 ** k)
    epoch_of(optimizer, cycle)
""",
    "one for each stage": """
for stage, rate in enumerate((0.1, 0.03, 0.01)):
    optimizer.param_groups[0]["lr"] = rate
    scheduler = StepLR(optimizer, 2, 0.5)
    for epoch in range(4):
        epoch_of(optimizer)
        scheduler.step()
""",
    "folds with optimizers of their own": """
for fold in range(4):
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = CosineAnnealingLR(own, T_max=3)
    for epoch in range(3):
        epoch_of(own)
        scheduler.step()
""",
    "folds with optimizers of their own, cut short": """
for fold in range(4):
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(own, 10)
    epoch_of(own)
    scheduler.step()
""",
    "each goes on where the last one stopped": """
state = None
for epoch in range(6):
    scheduler = StepLR(optimizer, 2, 0.5)
    if state is not None:
        scheduler.load_state_dict(state)
    epoch_of(optimizer)
    scheduler.step()
    state = scheduler.state_dict()
""",
    "last_epoch is passed": """
for epoch in range(6):
    scheduler = StepLR(optimizer, 2, 0.5, last_epoch=epoch - 1)
    epoch_of(optimizer)
    scheduler.step()
""",
    "the next rate follows from the one before": """
for epoch in range(6):
    scheduler = ExponentialLR(optimizer, 0.9)
    epoch_of(optimizer)
    scheduler.step()
""",
    "a factor of the epoch": """
for epoch in range(6):
    scheduler = LambdaLR(optimizer, lambda _, factor=0.9 ** epoch: factor)
    epoch_of(optimizer)
    scheduler.step()
""",
    "several over one optimizer": """
schedulers = [StepLR(optimizer, size) for size in (10, 20, 30)]
for epoch in range(4):
    epoch_of(optimizer)
    for each in schedulers:
        each.step()
""",
    "a plateau for each stage": """
for stage in range(3):
    plateau = ReduceLROnPlateau(optimizer, patience=2)
    for epoch in range(4):
        plateau.step(epoch_of(optimizer))
""",
    "created once": """
scheduler = StepLR(optimizer, 20)
for epoch in range(6):
    epoch_of(optimizer)
    scheduler.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
