"""OPT015: settings of the optimizer are exchanged or out of range."""

import pytest

SCRIPT = """
import torch
from torch import nn
x = torch.randn(64, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = {created}{mark}
for rows in [*torch.randperm(64).split(16), *torch.randperm(64).split(16)]:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x[rows]), x[rows].sum(1, keepdim=True)).backward()
    optimizer.step()
"""
FAULTY = {
    "betas": "torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.999, 0.9))",
    "betas in a list": "torch.optim.Adam(model.parameters(), 1e-3, betas=[0.99, 0.9])",
    "momentum": "torch.optim.SGD(model.parameters(), lr=1e-6, momentum=1.0)",
    "eps": "torch.optim.Adam(model.parameters(), eps=1e8)",
    "a dictionary": "(c := {'momentum': 1.0}) and torch.optim.SGD(model.parameters(), momentum=c['momentum'])",
}
CORRECT = {
    "betas of NovoGrad": "type('Novograd', (torch.optim.Adam,), {})(model.parameters(), betas=(0.95, 0.5))",
    "the usual betas": "torch.optim.Adam(model.parameters(), betas=(0.9, 0.999))",
    "betas of a GAN": "torch.optim.Adam(model.parameters(), betas=(0.5, 0.9))",
    "no momentum": "torch.optim.Adam(model.parameters(), betas=(0.0, 0.9))",
    "equal betas": "torch.optim.Adam(model.parameters(), betas=(0.9, 0.9))",
    "eps of 1": "torch.optim.RMSprop(model.parameters(), eps=1.0, momentum=0.9)",
    "much momentum": "torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.99)",
}
IN_A_RUN = {
    "from a dictionary": "torch.optim.Adam(model.parameters(), **{'lr': 1e-3, 'betas': (0.999, 0.9)})",
    "of one group": "torch.optim.SGD([{'params': model[0].parameters()}, {'params': model[2].parameters(), "
    "'momentum': 1.5}], lr=1e-6)",
}


@pytest.mark.parametrize("created", FAULTY.values(), ids=FAULTY)
def test_lint_reports_such_settings(lint_reports, created):
    lint_reports(SCRIPT.format(created=created, mark="  # <- OPT015"))


@pytest.mark.parametrize("created", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_other_settings(lint_is_clean, created):
    lint_is_clean(SCRIPT.format(created=created, mark=""), "OPT015")


@pytest.mark.parametrize("created", [*FAULTY.values(), *IN_A_RUN.values()], ids=[*FAULTY, *IN_A_RUN])
def test_run_reports_such_settings(run_reports, created):
    run_reports(SCRIPT.format(created=created, mark="  # <- OPT015"))


@pytest.mark.parametrize("created", CORRECT.values(), ids=CORRECT)
def test_run_ignores_other_settings(run_is_clean, created):
    run_is_clean(SCRIPT.format(created=created, mark=""))
