"""The account of used and mixed gradients: exact over every way to clear and to accumulate."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.tracing.gradient_ledger import GradientLedger


class Loop:
    """A model, an optimizer and an account that is told what happens."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.ledger = GradientLedger()
        self.parameters = list(self.net.parameters())

    def backward(self, **options) -> None:
        self.ledger.on_backward_start()
        self.net(torch.randn(3, 4)).square().mean().backward(**options)
        self.ledger.on_backward_end(None)

    def step(self) -> int:
        found = len(self.ledger.find_reused(self.parameters)[0])
        self.optimizer.step()
        self.ledger.on_step(self.parameters)
        return found

    def zero(self) -> None:
        self.optimizer.zero_grad()
        self.ledger.on_cleared(self.parameters)


def by_hand(clear):
    def zero(loop: Loop) -> None:
        for parameter in loop.parameters:
            clear(parameter)

    return zero


def none(parameter):
    parameter.grad = None


CLEARS = {
    "zero_grad": Loop.zero,
    "unseen zero_grad": lambda loop: loop.optimizer.zero_grad(),
    "zeros": lambda loop: loop.optimizer.zero_grad(set_to_none=False),
    "none": by_hand(none),
    "zero_": by_hand(lambda p: p.grad.zero_()),
    "data.zero_": by_hand(lambda p: p.grad.data.zero_()),
    "detach.zero_": by_hand(lambda p: p.grad.detach().zero_()),
    "decayed": by_hand(lambda p: p.grad.mul_(0.9)),
}


@pytest.mark.parametrize("clear", CLEARS.values(), ids=CLEARS)
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("before", [False, True])
def test_every_way_to_clear_is_right(clear, window, before):
    loop = Loop()
    for update in range(4):
        if before and update:
            clear(loop)
        for _ in range(window):
            loop.backward()
        assert loop.step() == 0
        if not before:
            clear(loop)


@pytest.mark.parametrize("window", [1, 3])
def test_never_clearing_is_found_at_the_second_step(window):
    loop, found = Loop(), []
    for _ in range(3):
        for _ in range(window):
            loop.backward()
        found.append(loop.step())
    assert found == [0, 4, 4]


def test_clearing_half_of_the_model_is_reported_for_the_other_half():
    loop, found = Loop(), []
    for _ in range(3):
        loop.backward()
        found.append(loop.step())
        loop.net[0].zero_grad()
    assert found == [0, 2, 2]


@pytest.mark.parametrize("clear", [c for name, c in CLEARS.items() if name != "decayed"])
def test_adding_to_a_used_gradient_is_fine_until_the_step(clear):
    """A GAN: the generator's pass reaches the discriminator, which clears before its own."""
    loop = Loop()
    for _ in range(3):
        loop.backward()
        assert loop.step() == 0
        loop.backward()
        clear(loop)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_new_gradient_object_counts_as_added_to():
    loop, found = Loop(), []
    for _ in range(3):
        loop.backward(create_graph=True)
        found.append(loop.step())
    assert found == [0, 4, 4]
    for parameter in loop.parameters:
        parameter.grad = None  # or the graph would hold them in a cycle


def test_no_value_is_read_on_a_device():
    torch.manual_seed(0)
    net = nn.Linear(3, 2, device="meta")
    ledger, parameters = GradientLedger(), list(net.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    found = []
    for _ in range(2):
        ledger.on_backward_start()
        net(torch.randn(2, 3, device="meta")).sum().backward()
        ledger.on_backward_end(None)
        found.append(len(ledger.find_reused(parameters)[0]))
        optimizer.step()
        ledger.on_step(parameters)
    assert found == [0, 2]


def test_freed_objects_are_forgotten():
    loop = Loop()
    loop.backward()
    loop.step()
    assert loop.ledger.is_used(loop.parameters[0])
    ledger = loop.ledger
    del loop
    ledger.on_backward_start()
    assert not ledger._used
