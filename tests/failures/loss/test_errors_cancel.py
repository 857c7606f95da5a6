"""LOS046: a loss that averages errors with their signs."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

x = torch.randn(192, 8)
y = x.sum(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
critic = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def criterion(prediction, target):
    {criterion}


for rows in torch.arange(192).split(32):
    optimizer.zero_grad()
    out, target = model(x[rows]), y[rows]
    {loss}
    loss.backward()
    optimizer.step()
"""
MSE = "return (prediction - target).pow(2).mean()"
FAULTY = {
    "a mean": (MSE, "loss = (out - target).mean()  # <- LOS046"),
    "a squared mean": (MSE, "loss = torch.mean(target - out) ** 2  # <- LOS046"),
    "an absolute sum": (MSE, "loss = torch.abs((out - target).sum())  # <- LOS046"),
    "a variable": (MSE, "error = out - target; loss = error.mean().pow(2)  # <- LOS046"),
    "a function": ("return torch.mean(prediction - target)  # <- LOS046", "loss = criterion(out, target)"),
}
CORRECT = {
    "squared errors": (MSE, "loss = criterion(out, target)"),
    "absolute errors": (MSE, "loss = (out - target).abs().mean()"),
    "a penalty of the bias": (MSE, "loss = F.mse_loss(out, target) + 0.1 * (out - target).mean() ** 2"),
    "scores of a critic": (MSE, "loss = (critic(out[:, None]) - critic(y[rows][:, None])).mean()"),
    "squared in a variable": (MSE, "error = (out - target) ** 2; loss = error.mean()"),
    "a quantile": (MSE, "e = target - out; loss = torch.max(0.9 * e, -0.1 * e).mean()"),
    "reduced for printing": (MSE, "loss = criterion(out, target); bias = (out - target).mean(); print(bias)"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_it(lint_reports, name):
    criterion, loss = FAULTY[name]
    lint_reports(HEAD.replace("{criterion}", criterion).replace("{loss}", loss))


@pytest.mark.parametrize("name", CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, name):
    criterion, loss = CORRECT[name]
    lint_is_clean(HEAD.replace("{criterion}", criterion).replace("{loss}", loss))
