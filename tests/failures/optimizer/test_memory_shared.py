"""OPT008: two parameters in the same memory."""

import pytest

HEAD = """
import copy
import torch
from torch import nn

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def update(network=model):
    loss = nn.functional.mse_loss(network(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""

FAULTY = {
    "a view of another parameter": """
part = nn.Parameter(model[0].weight.data[:4])
optimizer = torch.optim.SGD([*model.parameters(), part], lr=0.01)
for step in range(4):
    loss = nn.functional.mse_loss(model(x), y) + part.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- OPT008
""",
}

CORRECT = {
    "views of a flat buffer": """
flat = torch.randn(16)
first, second = nn.Parameter(flat[:8]), nn.Parameter(flat[8:])
optimizer = torch.optim.SGD([*model.parameters(), first, second], lr=0.01)
for step in range(4):
    loss = nn.functional.mse_loss(model(x * first + second), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
