"""LOS053: the learned weight of a loss goes to zero."""

import pytest

CODE = """
import torch
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 2)
        self.w = {weight}

    def forward(self, x):
        return self.body(x)

net, head = Net(), nn.Linear(2, 1)
optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()])
for x, y, z in [(torch.randn(4, 8), torch.randn(4, 2), torch.randn(4, 1)) for _ in range(8)]:
    optimizer.zero_grad()
    out = net(x)
    first, last = F.mse_loss(out, y), F.l1_loss(head(out), z)
    {loss}
    loss.backward()
    optimizer.step()
    print(f"{net.w}")
"""


def code(loss: str, weight: str = "nn.Parameter(torch.ones(2))") -> str:
    return CODE.replace("{loss}", loss.replace("\n", "\n    ")).replace("{weight}", weight)


FAULTY = {
    "two weights": code("loss = net.w[0] * first + net.w[1] * last  # <- LOS053"),
    "one weight": code(
        "loss = first + F.l1_loss(head(out), z) * net.w  # <- LOS053", "nn.Parameter(torch.tensor(1.0))"
    ),
    "exponentials": code("s = net.w\nloss = torch.exp(-s[0]) * first + torch.exp(-s[1]) * last  # <- LOS053"),
}
CORRECT = {
    "with the logarithm": code("loss = torch.exp(-net.w[0]) * first + torch.exp(-net.w[1]) * last + net.w.sum()"),
    "with another name of the logarithm": code("s = net.w\nloss = torch.exp(-s[0]) * first + net.w[0] + last"),
    "a penalty": code("loss = net.w[0] * first + net.w[1] * last - torch.log(net.w).sum()"),
    "a softmax": code("share = torch.softmax(net.w, 0)\nloss = share[0] * first + share[1] * last"),
    "a number": code("loss = net.w * first + last", "0.5"),
    "a buffer": code("loss = net.w[0] * first + net.w[1] * last", "torch.ones(2)"),
    "a factor of the output": code("loss = F.mse_loss(net.w * out, y) + last"),
    "a temperature": code("deficit = first.item() - last.detach()\nloss = -(net.w * deficit).mean() + first + last"),
    "a temperature of the entropy": code(
        "entropy = out.softmax(1).log().mean()\nloss = first + last - (net.w * entropy.detach()).mean()"
    ),
    "scaled and normalised": code("weights = net.w / net.w.sum()\nloss = weights[0] * first + weights[1] * last"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_learned_weights(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS053")
