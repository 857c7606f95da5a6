"""GRD006: a gradient that is always zero, and a bias that cancels out."""

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


def messages(ran) -> list[str]:
    return [found.message for found in ran.findings if found.code == "GRD006"]


def test_last_bias_of_a_critic_is_not_reported(run):
    assert not messages(run(HEAD + DIFFERENCE))


def test_dead_layer_is_reported_with_its_bias(run):
    (message,) = messages(run(HEAD + DEAD))
    assert "0.bias, 0.weight" in message


def test_run_without_optimizer_is_not_judged(run):
    report = run("import torch\nfrom torch import nn\nnn.Linear(2, 1)(torch.ones(3, 2)).sum().backward()\n").report
    reasons = {each.code: each.reason for each in report.verdicts if each.code in ("GRD006", "GRD007")}
    assert reasons == {"GRD006": "no update was seen", "GRD007": "no update was seen"}
