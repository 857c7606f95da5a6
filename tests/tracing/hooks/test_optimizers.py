"""Reports of optimizers: their creation, their steps with the gradients that they used, and ``zero_grad``."""

import gc
import math
import threading

import pytest
import torch
from torch import nn

from trueloop.tracing.events import (
    BackwardEnded,
    GradientsCleared,
    OptimizerCreated,
    PartlyTracedStep,
    StepStarted,
    StepTaken,
)
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows
from trueloop.tracing.trackers.gradient_ledger import GradientLedger


class Weight(nn.Module):
    """A model with one parameter; a call shows that it belongs to the program."""

    def __init__(self, *values):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(values or (1.0, 1.0)))

    def forward(self):
        return self.weight.sum()


def kinds(refs):
    return sorted(ref.name for ref in refs)


def test_an_optimizer_that_is_built(attached):
    _, events_of = attached
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.optim.Adam(model.parameters())
    events = events_of(OptimizerCreated)
    assert [(event.kind, event.stateful) for event in events] == [("SGD", False), ("SGD", True), ("Adam", True)]
    assert [(len(event.parameters), len(event.trainable)) for event in events] == [(2, 1)] * 3
    assert all(event.location.source_location.path == __file__ for event in events)


def test_a_simple_step(attached):
    _, events_of = attached
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], lr=0.1)
    model(torch.tensor([[3.0, 0.0]])).sum().backward()
    optimizer.step()
    (event,) = events_of(StepTaken)
    (built,) = events_of(OptimizerCreated)
    assert event.optimizer is built.optimizer
    assert event.learning_rates == (0.1, 0.5)
    assert kinds(event.parameters) == kinds(event.with_gradient) == ["bias", "weight"]
    assert event.grad_norm == pytest.approx(math.hypot(3, 1))
    assert (event.update, event.closure, event.scaler) == (0, False, None)
    assert not event.zero_gradients()
    assert not event.frozen
    assert event.location.source_location.path == __file__
    (started,) = events_of(StepStarted)
    assert (started.optimizer, started.location, started.frozen) == (event.optimizer, event.location, frozenset())
    assert started.live_optimizer is started.live_parameters is event.live_parameters is None, "while dispatched only"


def test_gradients_that_are_zero_missing_or_not_finite(attached):
    attachment, events_of = attached
    weights = [nn.Parameter(torch.ones(3)) for _ in range(4)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    (weights[0].sum() * 0 + weights[1].sum() * math.inf + weights[2].sum()).backward()
    optimizer.step()
    (event,) = events_of(StepTaken)
    of = attachment.stream.registry.ref
    assert event.zero_gradients() == {of(weights[0])}
    assert event.gradient_norms == {of(weights[0]): 0, of(weights[1]): math.inf, of(weights[2]): pytest.approx(3**0.5)}
    assert event.with_gradient == {of(weight) for weight in weights[:3]}
    assert not math.isfinite(event.grad_norm)


def test_no_gradients_at_all(attached):
    _, events_of = attached
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    optimizer.step()
    (event,) = events_of(StepTaken)
    assert event.grad_norm is None
    assert not event.with_gradient


def test_cleared_between_backward_and_step(attached, track):
    _, events_of = attached
    model, windows = Weight(), track(AccumulationWindows)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model().backward()
    optimizer.zero_grad()
    optimizer.step()
    (event,) = events_of(StepTaken)
    assert (event.with_gradient, windows.ended_by(event.optimizer).backwards) == (frozenset(), 1)


def test_sparse_gradients_are_not_read(attached):
    _, events_of = attached
    words = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(words.parameters())
    words(torch.tensor([1, 1, 3])).sum().backward()
    optimizer.step()
    (event,) = events_of(StepTaken)
    assert (event.grad_norm, len(event.with_gradient)) == (None, 1)
    assert not event.zero_gradients()


def test_frozen_parameters(attached):
    attachment, events_of = attached
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    sum(weight.sum() for weight in weights).backward()
    weights[0].requires_grad_(False)
    optimizer.step()
    (started,), (event,) = events_of(StepStarted), events_of(StepTaken)
    assert started.frozen == event.frozen == {attachment.stream.registry.ref(weights[0])}


def test_gradients_are_computed_within_a_closure(attached, track):
    attachment, events_of = attached
    windows, ledger, backwards, reused = track(AccumulationWindows), track(GradientLedger), 0, []
    model = Weight(2.0, 1.0)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, lr=0.1)
    calls = []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = model() ** 2
        loss.backward()
        return loss

    for step in (lambda: optimizer.step(closure), lambda: optimizer.step(closure=closure)):
        step()
        backwards += windows.ended_by(attachment.stream.registry.ref(optimizer)).backwards
        reused.append(ledger.reused_by(attachment.stream.registry.ref(optimizer)))
    events = events_of(StepTaken)
    assert [event.closure for event in events] == [True, True]
    assert backwards == len(calls) == len(events_of(BackwardEnded))
    assert all(event.grad_norm > 0 and len(event.with_gradient) == 1 for event in events)
    assert reused == [None, None]
    assert attachment.stream.update == 2


def test_a_raising_step_does_not_count_and_the_next_one_does(attached):
    attachment, events_of = attached
    model = Weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail():
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            optimizer.step(fail)
    assert (attachment.stream.update, events_of(StepTaken)) == (0, [])
    model().backward()
    optimizer.step()
    assert attachment.stream.update == 1
    (event,) = events_of(StepTaken)
    assert not event.closure


class Wrapper(torch.optim.Optimizer):
    """Steps another optimizer."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, inner.defaults)

    def step(self, closure=None):
        return self.inner.step(closure)


class Below(torch.optim.SGD):
    """Calls the step it overrides."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("make", [lambda p: Wrapper(torch.optim.SGD(p, lr=0.1)), lambda p: Below(p, lr=0.1)])
def test_a_step_within_a_step_is_one(attached, make):
    attachment, events_of = attached
    model = Weight()
    optimizer = make(list(model.parameters()))
    for _ in range(3):
        model().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert attachment.stream.update == 3
    assert len(events_of(StepStarted)) == len(events_of(StepTaken)) == 3
    assert attachment.program.step_depth == 0


def test_one_step_for_each_parameter_within_a_backward(attached, track):
    attachment, _ = attached
    ledger, reused = track(GradientLedger), []
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizers = {weight: torch.optim.SGD([weight], lr=0.1) for weight in weights}

    def step(weight):
        optimizers[weight].step()
        reused.append(ledger.reused_by(attachment.stream.registry.ref(optimizers[weight])))
        optimizers[weight].zero_grad()

    for weight in weights:
        weight.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        sum(weight.sum() for weight in weights).backward()
    assert attachment.stream.update == 6
    assert reused == [None] * 6


def test_a_step_on_another_thread_is_not_traced(attached, track):
    attachment, events_of = attached
    windows = track(AccumulationWindows)
    model, other = Weight(), Weight()
    optimizer, elsewhere = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other))
    model().backward()

    def train():
        other().backward()
        elsewhere.step()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    optimizer.step()
    (event,) = events_of(StepTaken)
    assert windows.ended_by(event.optimizer).backwards == 1
    assert attachment.stream.update == 1
    assert torch.equal(other.weight, torch.full((2,), 0.9))


def test_the_first_step_after_a_gap_is_not_reported(attached):
    attachment, events_of = attached
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def update():
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    while attachment.stream.full_tracing:
        update()
    seen = len(events_of(StepTaken))
    update()
    assert len(events_of(StepTaken)) == seen
    attachment.sampling._start_full(3)
    for _ in range(3):
        update()
    assert len(events_of(StepTaken)) == seen + 2
    assert len(events_of(PartlyTracedStep)) == 1
    assert attachment.stream.update == seen + 4


def test_optimizers_are_not_kept(attached):
    attachment, events_of = attached
    torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1).step()
    assert len(events_of(StepTaken)) == 1
    gc.collect()
    assert attachment.program.optimizers.items() == []


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("by", ["optimizer", "model"])
def test_cleared_gradients(attached, by, to_none):
    attachment, events_of = attached
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clear = {"optimizer": optimizer, "model": model}[by].zero_grad
    clear(set_to_none=to_none)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    clear(set_to_none=to_none)
    model(torch.ones(1, 2)).sum().backward()
    clear(set_to_none=to_none)
    events = events_of(GradientsCleared)
    assert len(events) == 2, "first there was no gradient"
    assert all(event.parameters == set(map(attachment.stream.registry.ref, model.parameters())) for event in events)
    assert all(event.location.source_location.path == __file__ for event in events)
    assert all((p.grad is None) is to_none for p in model.parameters())


def test_a_part_of_the_model(attached):
    attachment, events_of = attached
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    model[1].zero_grad()
    (event,) = events_of(GradientsCleared)
    assert event.parameters == {attachment.stream.registry.ref(model[1].weight)}


def test_a_custom_zero_grad_is_reported_once(attached):
    _, events_of = attached

    class Careful(nn.Linear):
        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none)
            for child in self.children():
                child.zero_grad(set_to_none)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([Careful(2, 2), nn.Linear(2, 2)])

        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none)
            for part in self.parts:
                part.zero_grad(set_to_none)

    for model in (Careful(2, 2), Both()):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            sum(parameter.sum() for parameter in model.parameters()).backward()
            optimizer.step()
        sum(parameter.sum() for parameter in model.parameters()).backward()
        model.zero_grad()
    assert [len(event.parameters) for event in events_of(GradientsCleared)] == [2, 4]
