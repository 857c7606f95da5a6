"""GRD015: hand-written updates that climb the loss."""

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
    "add_": """
for step in range(20):
    loss = nn.functional.mse_loss(model(x), y)
    model.zero_grad()
    loss.backward()  # <- GRD015
    for p in model.parameters():
        p.data.add_(p.grad, alpha=0.001)
""",
}

CORRECT = {
    "a score that is maximised": """
for step in range(20):
    score = -nn.functional.mse_loss(model(x), y)
    model.zero_grad()
    score.backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=0.001)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
