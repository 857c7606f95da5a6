"""The ledger of used and mixed gradients is exact for every way to clear and to accumulate gradients."""

from __future__ import annotations

import gc
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from trueloop.tracing.trackers.gradient_ledger import GradientLedger


class Loop:
    """A model, an optimizer, and a ledger that receives their events."""

    def __init__(self, device="cpu") -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to(device)
        self.inputs = torch.randn(3, 4, device=device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.parameters = list(self.net.parameters())

    def backward(self, **options) -> None:
        self.net(self.inputs).square().mean().backward(**options)

    def step(self) -> int:
        self.optimizer.step()
        reused = self.ledger.reused_by(self.ref(self.optimizer))
        return 0 if reused is None else len(reused.parameters)

    def zero(self) -> None:
        self.optimizer.zero_grad()


@pytest.fixture
def make_loop(attached, track):
    """A function that returns a loop, made while its events are traced, with the ledger and the refs of objects."""

    def make(device="cpu") -> Loop:
        loop = Loop(device)
        loop.ledger, loop.ref = track(GradientLedger), attached[0].stream.registry.ref
        return loop

    return make


def by_hand(clear):
    def zero(loop: Loop) -> None:
        for parameter in loop.parameters:
            clear(parameter)

    return zero


def set_to_none(parameter):
    parameter.grad = None


CLEARS = {
    "zero_grad": Loop.zero,
    "unseen zero_grad": lambda loop: torch.optim.Optimizer.zero_grad.__wrapped__(loop.optimizer),
    "zeros": lambda loop: loop.optimizer.zero_grad(set_to_none=False),
    "none": by_hand(set_to_none),
    "zero_": by_hand(lambda p: p.grad.zero_()),
    "data.zero_": by_hand(lambda p: p.grad.data.zero_()),
    "detach.zero_": by_hand(lambda p: p.grad.detach().zero_()),
    "decayed": by_hand(lambda p: p.grad.mul_(0.9)),
}


@pytest.mark.parametrize("clear", CLEARS.values(), ids=CLEARS)
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("before", [False, True])
def test_every_way_to_clear_is_right(make_loop, clear, window, before):
    loop = make_loop()
    for update in range(4):
        if before and update:
            clear(loop)
        for _ in range(window):
            loop.backward()
        assert loop.step() == 0
        if not before:
            clear(loop)


@pytest.mark.parametrize("window", [1, 3])
def test_never_clearing_is_found_at_the_second_step(make_loop, window):
    loop, found = make_loop(), []
    for _ in range(3):
        for _ in range(window):
            loop.backward()
        found.append(loop.step())
    assert found == [0, 4, 4]


def test_clearing_half_of_the_model_is_reported_for_the_other_half(make_loop):
    loop, found = make_loop(), []
    for _ in range(3):
        loop.backward()
        found.append(loop.step())
        loop.net[0].zero_grad()
    assert found == [0, 2, 2]


@pytest.mark.parametrize("clear", [c for name, c in CLEARS.items() if name != "decayed"])
def test_adding_to_a_used_gradient_is_fine_until_the_step(make_loop, clear):
    """A GAN: the generator's pass reaches the discriminator, which clears before its own."""
    loop = make_loop()
    for _ in range(3):
        loop.backward()
        assert loop.step() == 0
        loop.backward()
        clear(loop)


@pytest.fixture
def without_garbage_collection():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_new_gradient_object_counts_as_added_to(make_loop, without_garbage_collection):
    """The garbage collector clears weak references to gradients that hold their parameter by their graph."""
    loop, found = make_loop(), []
    for _ in range(3):
        loop.backward(create_graph=True)
        found.append(loop.step())
    assert found == [0, 4, 4]
    for parameter in loop.parameters:
        parameter.grad = None  # or the graph would hold them in a cycle


def test_no_value_is_read_on_a_device(make_loop):
    loop, found = make_loop("meta"), []
    for _ in range(2):
        loop.backward()
        loop.optimizer.step()
        found.append(len(loop.ledger._reused))  # `reused_by` would read the norm
    assert found == [0, 0]


def test_freed_objects_are_forgotten(make_loop):
    loop = make_loop()
    loop.backward()
    loop.step()
    ledger = loop.ledger
    assert len(ledger._used) == 4
    del loop
    gc.collect()
    make_loop().backward()
    assert not ledger._used


def test_the_lines_of_the_earlier_uses(make_loop):
    loop = make_loop()
    for _ in range(2):
        loop.backward()
        loop.step()
    reused, line = loop.ledger.reused_by(loop.ref(loop.optimizer)), Loop.backward.__code__.co_firstlineno + 1
    assert reused.location.source_location.line == line
    assert loop.ledger.already_used_by(loop.ref(loop.optimizer)) is None
    loop.step()
    used, line = loop.ledger.already_used_by(loop.ref(loop.optimizer)), Loop.step.__code__.co_firstlineno + 1
    assert (len(used.parameters), used.location.source_location.line) == (4, line)


def test_gradients_cleared_before_a_step_used_them(make_loop):
    loop = make_loop()
    loop.backward()
    loop.step()
    loop.zero()
    assert not loop.ledger.unused_when_cleared
    loop.backward()
    loop.net[0].zero_grad(set_to_none=False)
    assert loop.ledger.unused_when_cleared == {loop.ref(parameter) for parameter in loop.net[0].parameters()}
    loop.zero()
    assert loop.ledger.unused_when_cleared == {loop.ref(parameter) for parameter in loop.net[2].parameters()}


def test_a_used_gradient_counts_as_used_until_added_to(make_loop):
    loop = make_loop()
    loop.backward()
    loop.step()
    clip_grad_norm_(loop.parameters, 1e-3)
    assert len(loop.ledger.used_when_clipped) == 4
    clip_grad_norm_(loop.parameters, math.inf)
    assert len(loop.ledger.used_when_clipped) == 4
    clip_grad_value_(loop.parameters[0], 1e-6)
    assert loop.ledger.used_when_clipped == {loop.ref(loop.parameters[0])}
    loop.backward()
    clip_grad_norm_(loop.parameters, 1e-3)
    assert not loop.ledger.used_when_clipped


def test_a_factor_remains_until_it_is_divided_out_or_used(make_loop):
    loop, scaler = make_loop(), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = loop.ref(loop.optimizer)
    for unscale in (False, True):
        scaler.scale(loop.net(loop.inputs).sum()).backward()
        if unscale:
            clip_grad_norm_(loop.parameters, math.inf)
            assert len(loop.ledger.scaled_when_clipped) == 4
            scaler.unscale_(loop.optimizer)
            clip_grad_norm_(loop.parameters, 1.0)
            assert not loop.ledger.scaled_when_clipped
        loop.step()
        assert len(loop.ledger.still_scaled_by(optimizer)) == (0 if unscale else 4)
        loop.zero()
    loop.backward()
    loop.step()
    assert not loop.ledger.still_scaled_by(optimizer)


def test_nothing_is_known_after_a_gap(attached, make_loop):
    loop = make_loop()
    while attached[0].stream.full_tracing:
        loop.zero()
        loop.backward()
        loop.step()
    loop.step()
    attached[0].sampling._start_full(3)
    assert not loop.ledger._used
    loop.backward()
    assert loop.step() == 0  # the first step of a burst is no `StepTaken`, but its gradients are used
    loop.backward()
    assert loop.step() == 4


def test_gradients_that_a_step_changes_are_used(attached, make_loop):
    class Decayed(torch.optim.SGD):
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                parameter.grad.add_(parameter, alpha=0.1)
            return super().step(closure)

    loop, found = make_loop(), []
    loop.optimizer = Decayed(loop.parameters, lr=0.1)
    for _ in range(3):
        loop.backward()
        found.append(loop.step())
    assert found == [0, 4, 4]
