"""LOS046: a loss that averages errors, or sums weights, with their signs."""

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
    "the score of the right class": (
        MSE,
        "best_non_target_score = model[:3](x[rows]).amax(1); loss = (best_non_target_score - out).mean()",
    ),
    "squared in a variable": (MSE, "error = (out - target) ** 2; loss = error.mean()"),
    "a quantile": (MSE, "e = target - out; loss = torch.max(0.9 * e, -0.1 * e).mean()"),
    "reduced for printing": (MSE, "loss = criterion(out, target); bias = (out - target).mean(); print(bias)"),
}
PENALTIES = {
    "one line": (MSE, "loss = criterion(out, target) + 1e-4 * sum(p.sum() for p in model.parameters())  # <- LOS046"),
    "a loop": (
        MSE,
        """l1 = 0.0
    for p in model.parameters():
        l1 += torch.sum(p)  # <- LOS046
    loss = F.mse_loss(out, target) + 0.001 * l1""",
    ),
    "a list of them": (
        MSE,
        """weights = list(model.parameters())
    loss = F.mse_loss(out, target) + 0.001 * sum(torch.sum(w) for w in weights)  # <- LOS046""",
    ),
    "a loop over names": (
        MSE,
        """reg = torch.tensor(0.0)
    for name, weight in model.named_parameters():
        if "bias" not in name:
            reg = reg + weight.mean()  # <- LOS046
    loss = criterion(out, target)
    loss += 0.1 * reg""",
    ),
    "layers": (
        MSE,
        "loss = criterion(out, target) + 1e-3 * sum([m.weight.sum() for m in model.modules()])  # <- LOS046",
    ),
    "one layer": (MSE, "loss = criterion(out, target) + 1e-3 * critic.weight.sum()  # <- LOS046"),
    "squared too late": (
        MSE,
        "loss = F.mse_loss(out, target) + sum(p.sum() ** 2 for p in model.parameters())  # <- LOS046",
    ),
    "a positive sum": (
        MSE,
        "loss = F.mse_loss(out, target) + sum(abs(w.sum()) for w in model.parameters())  # <- LOS046",
    ),
    "all in one vector": (
        MSE,
        "loss = F.mse_loss(out, target) + torch.cat([p.view(-1) for p in model.parameters()]).sum()  # <- LOS046",
    ),
    "a function of the penalty": (
        "return sum(p.sum() for p in target.parameters())  # <- LOS046",
        "loss = F.mse_loss(out, target) + 0.01 * criterion(out, model)",
    ),
}
OTHER_SUMS = {
    "absolute values": (MSE, "loss = criterion(out, target) + 1e-4 * sum(p.abs().sum() for p in model.parameters())"),
    "norms": (MSE, "loss = criterion(out, target) + 1e-4 * sum(torch.norm(p, 1) for p in model.parameters())"),
    "squares": (MSE, "loss = criterion(out, target) + 1e-4 * sum((p ** 2).sum() for p in model.parameters())"),
    "all parameters take part": (
        MSE,
        "loss = criterion(out, target) + 0.0 * sum(p.sum() for p in model.parameters())",
    ),
    "a dummy loss in a loop": (
        MSE,
        """dummy = 0.0
    for p in model.parameters():
        dummy += p.sum()
    loss = criterion(out, target) + dummy * 0""",
    ),
    "counted": (MSE, "loss = criterion(out, target) / sum(p.numel() for p in model.parameters())"),
    "printed": (MSE, "loss = criterion(out, target); print(sum(p.mean().item() for p in model.parameters()))"),
    "the loss of a test": (MSE, "loss = sum(p.sum() for p in model.parameters())"),
    "gates": (
        MSE,
        "loss = criterion(out, target) + 0.01 * sum(torch.sigmoid(p).sum() for p in model.parameters())",
    ),
    "positive weights": (
        MSE,
        """loss = criterion(out, target) + 0.01 * critic.weight.sum()
    critic.weight.data.clamp_(min=0)""",
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_it(lint_reports, name):
    criterion, loss = FAULTY[name]
    lint_reports(HEAD.replace("{criterion}", criterion).replace("{loss}", loss))


@pytest.mark.parametrize("name", CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, name):
    criterion, loss = CORRECT[name]
    lint_is_clean(HEAD.replace("{criterion}", criterion).replace("{loss}", loss))


@pytest.mark.parametrize("name", PENALTIES)
def test_lint_reports_penalties_that_sum_weights_with_their_signs(lint_reports, name):
    criterion, loss = PENALTIES[name]
    lint_reports(HEAD.replace("{criterion}", criterion).replace("{loss}", loss))


@pytest.mark.parametrize("name", OTHER_SUMS)
def test_lint_ignores_norms_and_sums_that_are_no_penalty(lint_is_clean, name):
    criterion, loss = OTHER_SUMS[name]
    lint_is_clean(HEAD.replace("{criterion}", criterion).replace("{loss}", loss))


def test_lint_accepts_an_example_of_autograd(lint_is_clean):
    script = """
import torch
x = torch.randn(10, 20, requires_grad=True)
y = torch.randn(10, 5, requires_grad=True)
w = torch.randn(20, 5, requires_grad=True)
out = torch.mean(y - torch.matmul(x, w))
out.backward()
print(y.grad)
"""
    lint_is_clean(script, "LOS046")
