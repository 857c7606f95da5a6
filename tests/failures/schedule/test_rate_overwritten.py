"""SCH016: rates of a schedule that the program sets back."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.optim.lr_scheduler import *

x = torch.randn(320, 6)
y = x.sum(1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def fit(epochs, before, *schedulers):
    for epoch in range(epochs):
        before(epoch)
        for rows in torch.randperm(320).split(80):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
        for each in schedulers:
            each.step()%s

def set_rate(rate):
    for group in optimizer.param_groups:
        group["lr"] = rate
"""
FAULTY = {
    "in each epoch": "fit(10, lambda epoch: set_rate(0.1), StepLR(optimizer, 2, 0.5))",
    "a cosine": "fit(10, lambda epoch: set_rate(0.1), CosineAnnealingLR(optimizer, 10))",
}
CORRECT = {
    "no other rate": "fit(10, lambda epoch: None, StepLR(optimizer, 2, 0.5))",
    "only in the first epochs": """
fit(12, lambda epoch: set_rate(0.1) if epoch < 5 else None, ExponentialLR(optimizer, 0.8))
""",
    "one restart": "fit(10, lambda epoch: set_rate(0.1) if epoch == 5 else None, ExponentialLR(optimizer, 0.8))",
    "two schedulers": """
fit(10, lambda epoch: None, ExponentialLR(optimizer, 0.5), ExponentialLR(optimizer, 2.0))
""",
    "a constant schedule": "fit(10, lambda epoch: set_rate(0.1), LambdaLR(optimizer, lambda epoch: 1.0))",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_overwritten_rates(run, script):
    ran = run(HEAD % "  # <- SCH016" + script)
    line = next(n for n, text in enumerate(ran.path.read_text().splitlines(), 1) if "SCH016" in text)
    assert ("SCH016", line) in ran.reported_lines


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_other_rates(run, script):
    assert not [each for each in run(HEAD % "" + script).findings if each.code == "SCH016"]
