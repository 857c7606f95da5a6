"""GRD016: updates that are computed and not stored."""

import pytest

HEAD = """
import copy
import torch
from torch import nn

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

"""

FAULTY = {
    "a new tensor": """
for step in range(20):
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    for p in model.parameters():
        p = p - 0.01 * p.grad  # <- GRD016
""",
}

CORRECT = {
    "measured gradients": """
for step in range(20):
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    print(sum(p.grad.norm() for p in model.parameters()))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
