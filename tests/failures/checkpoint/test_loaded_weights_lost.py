"""CKP008: loaded weights are overwritten or not used."""

import pytest

HEAD = """
import copy
import io
import torch
from torch import nn

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
torch.manual_seed(0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def update(network=model):
    loss = nn.functional.mse_loss(network(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


file = io.BytesIO()
torch.save(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).state_dict(), file)
file.seek(0)
"""

FAULTY = {
    "loaded into another object": """
pretrained = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
pretrained.load_state_dict(torch.load(file))  # <- CKP008
for step in range(12):
    update()
""",
}

FAULTY["loaded from another model, then initialised"] = """
pretrained = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
model.load_state_dict(pretrained.state_dict())  # <- CKP008
model.apply(lambda m: nn.init.xavier_uniform_(m.weight) if isinstance(m, nn.Linear) else None)
for step in range(12):
    update()
"""
CORRECT = {
    "two states of memory, one after the other": """
first, second = (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(2))
for each in (first, second):
    model.load_state_dict(each.state_dict())
    with torch.no_grad():
        model(x)
for step in range(12):
    update()
""",
    "a copy in memory that is not called": """
best = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
best.load_state_dict(model.state_dict())
for step in range(12):
    update()
""",
    "a target network": """
target = copy.deepcopy(model)
target.load_state_dict(model.state_dict())
for step in range(12):
    update()
    target.load_state_dict(model.state_dict())
""",
    "a teacher": """
teacher = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
teacher.load_state_dict(torch.load(file))
for step in range(12):
    with torch.no_grad():
        teacher(x)
    update()
""",
    "a new head": """
model.load_state_dict(torch.load(file))
nn.init.xavier_uniform_(model[2].weight)
for step in range(12):
    update()
""",
    "noise": """
model.load_state_dict(torch.load(file))
with torch.no_grad():
    for p in model.parameters():
        p.add_(0.01 * torch.randn_like(p))
for step in range(12):
    update()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
