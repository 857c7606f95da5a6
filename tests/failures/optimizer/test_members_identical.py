"""OPT014: ensembles whose members are the same model."""

import pytest

HEAD = """
import copy
import torch
from torch import nn

torch.manual_seed(3)
x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)

def make():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

def train(model, seed=0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(seed)
    for rows in torch.randperm(96, generator=generator).split(24):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model
"""
PREDICT = """
with torch.no_grad():
    predictions = [model(x) for model in models]{mark}
print(torch.stack(predictions).std(0).mean())
"""
MARK = "  # <- OPT014"
FAULTY = {
    "copies on the same batches": "first = make()\nmodels = [train(copy.deepcopy(first)) for _ in range(3)]\n",
    "a seed in the function": """
def member():
    torch.manual_seed(0)
    return train(make())

models = nn.ModuleList(member() for _ in range(4))
""",
}
CORRECT = {
    "other seeds": "models = [train(make(), seed) for seed in range(4)]\n",
    "copies on other batches": "first = make()\nmodels = [train(copy.deepcopy(first), seed) for seed in range(3)]\n",
    "two runs that are compared": "first = make()\nmodels = [train(copy.deepcopy(first)) for _ in range(2)]\n",
    "copies of a trained model": "first = train(make())\nmodels = [first, *(copy.deepcopy(first) for _ in range(3))]\n",
    "clients": """
models = [train(make(), seed) for seed in range(3)]
mean = {k: sum(m.state_dict()[k] for m in models) / 3 for k in models[0].state_dict()}
for model in models:
    model.load_state_dict(mean)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_identical_members(run_reports, script):
    run_reports(HEAD + script + PREDICT.format(mark=MARK))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script + PREDICT.format(mark=""))
