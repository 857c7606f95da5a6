"""SCH014: runs that end during the warm-up of the learning rate."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.optim.lr_scheduler import *

x = torch.randn(320, 6)
y = x.sum(1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

def fit(*schedulers, epochs=16):
    for epoch in range(epochs):
        for rows in torch.randperm(320).split(32):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
            for each in schedulers:
                each.step()
"""

FAULTY = {
    "a function": """
def rate(step, warmup=2000, total=10_000):
    return step / warmup if step < warmup else max(0.0, (total - step) / (total - warmup))
fit(LambdaLR(optimizer, rate))  # <- SCH014
""",
    "a scheduler of PyTorch": """
fit(LinearLR(optimizer, start_factor=0.01, total_iters=1000))  # <- SCH014
""",
}

CORRECT = {
    "a short warm-up": "fit(LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10)))",
    "a long one that is nearly done": "fit(LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 200)))",
    "warm-up and decay": """
fit(SequentialLR(optimizer, [LinearLR(optimizer, 0.1, total_iters=10), ExponentialLR(optimizer, 0.99)], [10]))
""",
    "a test of rates": """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
fit(ExponentialLR(optimizer, 1.05))
""",
    "a test of the program": "fit(LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4000)), epochs=12)",
    "one cycle": "fit(OneCycleLR(optimizer, max_lr=0.02, total_steps=160))",
    "a second scheduler": """
fit(LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 800)), StepLR(optimizer, 1000))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_warm_ups_that_never_end(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_other_schedules(run, script):
    assert not [each for each in run(HEAD + script).findings if each.code == "SCH014"]
