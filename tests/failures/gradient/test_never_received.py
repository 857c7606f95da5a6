"""GRD005: a parameter that never receives a gradient, and one that another optimizer trains."""

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


def lint_reports(ran) -> list[str]:
    return [found.message for found in ran.findings if found.code == "GRD005"]


def test_what_another_optimizer_trains_is_left_alone(run):
    assert not lint_reports(run(SCRIPT + SECOND))


def test_what_none_trains_is_told(run):
    (message,) = lint_reports(run(SCRIPT))
    assert message.startswith("2 of 6 parameters of Adam")
    assert "kind.bias, kind.weight" in message


def test_an_optimizer_none_of_whose_parameters_are_trained_is_told(run):
    (message,) = lint_reports(run(REPLACED))
    assert message.startswith("All 2 parameters of Adam")
    assert message.endswith("Its steps do nothing.")


def test_an_optimizer_that_is_stepped_to_draw_its_schedule_is_left_alone(run):
    assert not lint_reports(run(SCHEDULE_ONLY))


def test_gradients_that_are_cleared_before_the_step_are_not_told_of_twice(run):
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
