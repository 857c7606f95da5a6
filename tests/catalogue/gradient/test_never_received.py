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


def told(ran) -> list[str]:
    return [found.message for found in ran.findings if found.code == "GRD005"]


def test_what_another_optimizer_trains_is_left_alone(run):
    assert not told(run(SCRIPT + SECOND))


def test_what_none_trains_is_told(run):
    (message,) = told(run(SCRIPT))
    assert message.startswith("2 of 6 parameters of Adam") and "kind.bias, kind.weight" in message
