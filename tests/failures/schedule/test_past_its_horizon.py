"""SCH003: a schedule that runs past its end."""

from __future__ import annotations

import pytest

DATA = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
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
FAULTY = {
    "epochs_but_stepped_per_update": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
for epoch in range(5):
    for _ in range(4):
        update()
        scheduler.step()  # <- SCH003
""",
    "more_epochs_than_planned": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
class Trainer:
    def fit(self, epochs):
        for epoch in range(epochs):
            for _ in range(20):
                update()
            self.end_of_epoch()
    def end_of_epoch(self):
        scheduler.step()  # <- SCH003
Trainer().fit(8)
""",
    "polynomial_sticks_at_zero": """
scheduler = lr_scheduler.PolynomialLR(optimizer, total_iters=6, power=0.9)
for _ in range(14):
    update()
    scheduler.step()  # <- SCH003
""",
    "warm_up_and_cosine": """
warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
cosine = lr_scheduler.CosineAnnealingLR(optimizer, 6)
scheduler = lr_scheduler.SequentialLR(optimizer, [warm, cosine], [3])
def end():
    scheduler.step()  # <- SCH003
for _ in range(15):
    update()
    end()
""",
    "chained_late_in_the_run": """
scheduler = lr_scheduler.ChainedScheduler(
    [lr_scheduler.ConstantLR(optimizer, 0.5, 5), lr_scheduler.CosineAnnealingLR(optimizer, 40)]
)
for i in range(60):
    (F.mse_loss(model(x), y) / 2).backward()
    if i % 1 == 0:
        optimizer.step()
        scheduler.step()  # <- SCH003
        optimizer.zero_grad()
""",
}
BELOW_ZERO = {
    "a_line_in_epochs_advanced_per_update": """
class Decay:
    def __init__(self, epochs, start):
        self.epochs, self.start = epochs, start
    def at(self, epoch):
        return 1.0 - max(0, epoch - self.start) / (self.epochs - self.start)
scheduler = lr_scheduler.LambdaLR(optimizer, Decay(4, 2).at)
for epoch in range(4):
    for _ in range(3):
        update()
        scheduler.step()  # <- SCH003
""",
    "more_epochs_than_the_line_has": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / 4.5)
for epoch in range(8):
    for _ in range(10):
        update()
    scheduler.step()  # <- SCH003
""",
}
CORRECT = {
    "a_line_down_to_zero": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / 12)
for _ in range(12):
    update()
    scheduler.step()
""",
    "the_step_below_zero_is_the_last": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / 12)
for _ in range(12):
    update()
    scheduler.step()
scheduler.step()
scheduler.step()
""",
    "exact": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
for _ in range(12):
    update()
    scheduler.step()
""",
    "one_short": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=11, eta_min=1e-4)
for _ in range(12):
    update()
    scheduler.step()
""",
    "warm_restarts": """
scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=4)
for _ in range(14):
    update()
    scheduler.step()
""",
    "cyclic": """
scheduler = lr_scheduler.CyclicLR(optimizer, 1e-3, 0.1, step_size_up=3)
for _ in range(14):
    update()
    scheduler.step()
""",
    "warm_up_then_constant": """
scheduler = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
for _ in range(14):
    update()
    scheduler.step()
""",
    "cosine_then_constant": """
parts = [lr_scheduler.CosineAnnealingLR(optimizer, 5), lr_scheduler.ConstantLR(optimizer, 0.1, 100)]
scheduler = lr_scheduler.SequentialLR(optimizer, parts, [5])
for _ in range(14):
    update()
    scheduler.step()
""",
    "milestones": """
scheduler = lr_scheduler.MultiStepLR(optimizer, [3, 5])
for _ in range(14):
    update()
    scheduler.step()
""",
    "plotted_without_training": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 5)
update()
rates = []
for _ in range(14):
    rates.append(optimizer.param_groups[0]["lr"])
    scheduler.step()
""",
    "one_cycle": """
scheduler = lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=12)
for _ in range(12):
    update()
    scheduler.step()
""",
    "a_new_one_per_stage": """
for stage in range(3):
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 5)
    for _ in range(5):
        update()
        scheduler.step()
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = 0.1
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script: str):
    assert "has a length of" in run_reports(DATA + script).findings[0].message


@pytest.mark.parametrize("script", BELOW_ZERO.values(), ids=BELOW_ZERO)
def test_run_reports_a_rate_below_zero(run_reports, script: str):
    assert "made the learning rate negative" in run_reports(DATA + script).findings[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(DATA + script)


LOOP_OF_ONE = """
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
{scheduler}
def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        {step}
"""


@pytest.mark.parametrize(
    "scheduler",
    [
        "scheduler = CosineAnnealingLR(optimizer, 1)  # <- SCH003",
        "scheduler = CosineAnnealingLR(optimizer, T_max=1, eta_min=1e-5)  # <- SCH003",
        "steps = 1\nscheduler = CosineAnnealingLR(optimizer, T_max=steps)  # <- SCH003",
    ],
)
def test_lint_reports_a_cosine_of_one_step(lint_reports, scheduler):
    lint_reports(LOOP_OF_ONE.format(scheduler=scheduler, step="scheduler.step()"))


@pytest.mark.parametrize(
    ("scheduler", "step"),
    [
        ("scheduler = CosineAnnealingLR(optimizer, 10)", "scheduler.step()"),
        ("scheduler = CosineAnnealingLR(optimizer, T_max=epochs)", "scheduler.step()"),
        ("scheduler = CosineAnnealingWarmRestarts(optimizer, 1, 2)", "scheduler.step()"),
        ("scheduler = CosineAnnealingLR(optimizer, T_max=1)", "print(scheduler.get_last_lr())"),
    ],
)
def test_lint_accepts_longer_cosines(lint_codes, scheduler, step):
    assert "SCH003" not in lint_codes(LOOP_OF_ONE.format(scheduler=scheduler, step=step))
