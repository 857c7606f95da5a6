"""CKP007: training ends with the initial weights."""

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
    "a copy of the model": """
best, best_score = copy.deepcopy(model), 1e9
for epoch in range(12):
    loss = update()
    if loss.item() > best_score:
        best = copy.deepcopy(model)
with torch.no_grad():
    print(best(x[:20]).mean())  # <- CKP007
""",
}

CORRECT = {
    "the initial weights again for each trial": """
begin = copy.deepcopy(model.state_dict())
for trial in range(3):
    model.load_state_dict(begin)
    for step in range(12):
        update()
""",
    "a reference that is used in training": """
reference = copy.deepcopy(model)
for step in range(12):
    with torch.no_grad():
        reference(x)
    update()
with torch.no_grad():
    print(reference(x[:20]).mean())
""",
    "the best weights of an early epoch": """
for step in range(12):
    update()
    if step == 1:
        best = copy.deepcopy(model.state_dict())
model.load_state_dict(best)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
