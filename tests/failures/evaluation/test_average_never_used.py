"""EVL013: averages that are never used."""

import pytest

HEAD = """
import copy
import io
import torch
from torch import nn

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""

FAULTY = {
    "a model": """
average = copy.deepcopy(model)
for step in range(30):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.mul_(0.9).add_(fast, alpha=0.1)  # <- EVL013
with torch.no_grad():
    print(model(x[:10]).mean())
""",
}

CORRECT = {
    "saved": """
average = copy.deepcopy(model)
for step in range(30):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.mul_(0.9).add_(fast, alpha=0.1)
with torch.no_grad():
    print(model(x[:10]).mean())
torch.save(average.state_dict(), io.BytesIO())
""",
    "used": """
average = copy.deepcopy(model)
for step in range(30):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.mul_(0.9).add_(fast, alpha=0.1)
with torch.no_grad():
    print(average(x[:10]).mean())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
