"""GRD005: parameters that never receive a gradient, and those that another optimizer trains."""

from __future__ import annotations

SCRIPT = """
import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.real, self.kind = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, x):
        h = self.body(x).relu()
        return self.real(h), self.kind(h)


critic = Critic()
first = torch.optim.Adam(critic.parameters(), lr=1e-3)
second = torch.optim.Adam(critic.parameters(), lr=1e-3)
for _ in range(80):
    x, kinds = torch.randn(32, 4), torch.randint(3, (32,))
    first.zero_grad()
    critic(x)[0].square().mean().backward()
    first.step()
"""
SECOND = """
    second.zero_grad()
    nn.functional.cross_entropy(critic(x)[1], kinds).backward()
    second.step()
"""

REPLACED = """
import torch
from torch import nn


class Once(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


net = nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
net = nn.Linear(4, 1)
for _ in range(80):
    optimizer.zero_grad()
    Once(net)(torch.randn(32, 4)).square().mean().backward()
    optimizer.step()
"""
SCHEDULE_ONLY = """
import torch
from torch import nn

net = nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
rates = []
for _ in range(100):
    optimizer.step()
    schedule.step()
    rates.append(schedule.get_last_lr())
"""


def messages(ran) -> list[str]:
    return [found.message for found in ran.findings if found.code == "GRD005"]


def test_parameters_of_another_optimizer_are_not_reported(run):
    assert not messages(run(SCRIPT + SECOND))


def test_parameters_without_gradient_are_reported(run):
    (message,) = messages(run(SCRIPT))
    assert message.startswith("2 of 6 parameters of Adam")
    assert "kind.bias, kind.weight" in message


def test_optimizer_without_any_gradient_is_reported(run):
    (message,) = messages(run(REPLACED))
    assert message.startswith("All 2 parameters of Adam")
    assert message.endswith("So its steps do nothing.")


def test_optimizer_stepped_to_plot_its_schedule_is_not_reported(run):
    assert not messages(run(SCHEDULE_ONLY))


def test_cleared_gradients_are_reported_by_GRD002_only(run):
    script = """
import torch
from torch import nn
model, x = nn.Linear(3, 1), torch.randn(64, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(120):
    model(x).square().mean().backward()
    optimizer.zero_grad()
    optimizer.step()
"""
    assert {found.code for found in run(script).findings} == {"GRD002"}
