"""GRD006: a gradient that is always zero, and a bias that only cancels out."""

from __future__ import annotations

HEAD = """
import torch
from torch import nn

real = torch.randn(64, 5) + 2
critic = nn.Sequential(nn.Linear(5, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
ones = torch.ones(64, 1)
"""
DIFFERENCE = """
for _ in range(80):
    optimizer.zero_grad()
    critic(real).backward(-ones)
    critic(torch.randn(64, 5)).backward(ones)
    optimizer.step()
"""
DEAD = """
nn.init.constant_(critic[0].bias, -1000.0)
critic[1] = nn.ReLU()
for _ in range(80):
    optimizer.zero_grad()
    (critic(real) - 1).square().mean().backward()
    optimizer.step()
"""


def lint_reports(ran) -> list[str]:
    return [found.message for found in ran.findings if found.code == "GRD006"]


def test_the_last_bias_of_a_critic_cancels_out_and_is_left_alone(run):
    assert not lint_reports(run(HEAD + DIFFERENCE))


def test_a_layer_that_died_is_told_with_its_bias(run):
    (message,) = lint_reports(run(HEAD + DEAD))
    assert "0.bias, 0.weight" in message


def test_a_run_without_an_optimizer_says_so(run):
    report = run("import torch\nfrom torch import nn\nnn.Linear(2, 1)(torch.ones(3, 2)).sum().backward()\n").report
    reasons = {each.code: each.reason for each in report.verdicts if each.code in ("GRD006", "GRD007")}
    assert reasons == {"GRD006": "no optimizer stepped", "GRD007": "no optimizer stepped"}
