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


def test_an_optimizer_without_any_gradient_but_zero_is_a_warning(run):
    script = """
for _ in range(70):
    optimizer.zero_grad()
    loss = torch.nan_to_num((critic(real) / 0 * 0).mean())
    loss.backward()
    for p in critic.parameters():
        p.grad.nan_to_num_()
    optimizer.step()
"""
    (found,) = [each for each in run(HEAD + script).report.findings if each.code == "GRD006"]
    assert str(found.severity) == "warning"
    assert "in all 70 updates" in found.message


def test_a_loss_that_reaches_zero_is_no_warning(run):
    script = """
for _ in range(60):
    optimizer.zero_grad()
    (5e-4 + critic(real) * 0.001).relu().mean().backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.5
"""
    assert not messages(run(HEAD + script))
