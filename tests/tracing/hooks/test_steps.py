"""Steps of optimizers: what they used, and how many there were."""

import gc
import math
import threading

import pytest
import torch
from torch import nn

from trueloop.tracing.events import BackwardEnded, OptimizerCreated, StepTaken


class Weight(nn.Module):
    """A model that is a parameter; it is known to belong to the program when it is called."""

    def __init__(self, *values):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(values or (1.0, 1.0)))

    def forward(self):
        return self.weight.sum()


def test_parameters_without_a_model_are_traced_from_their_first_step(everything):
    _, told = everything
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [event.backwards for event in told(StepTaken)] == [0, 1, 1]
    assert [len(event.with_gradient) for event in told(StepTaken)] == [1, 1, 1]


def kinds(refs):
    return sorted(ref.name for ref in refs)


def test_an_optimizer_that_is_built(everything):
    _, told = everything
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.optim.Adam(model.parameters())
    events = told(OptimizerCreated)
    assert [(event.kind, event.stateful) for event in events] == [("SGD", False), ("SGD", True), ("Adam", True)]
    assert [(len(event.parameters), len(event.trainable)) for event in events] == [(2, 1)] * 3
    assert all(event.location.source_location.path == __file__ and event.predecessors == () for event in events)


def test_an_optimizer_that_replaces_another(everything):
    _, told = everything
    model = nn.Linear(2, 2)
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    first.step()
    second = torch.optim.Adam(model.parameters())
    before, after = told(OptimizerCreated)
    assert after.predecessors == (before.optimizer,)
    assert second is not first


def test_a_simple_step(everything):
    _, told = everything
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], lr=0.1)
    model(torch.tensor([[3.0, 0.0]])).sum().backward()
    optimizer.step()
    (event,) = told(StepTaken)
    (built,) = told(OptimizerCreated)
    assert event.optimizer is built.optimizer
    assert event.learning_rates == (0.1, 0.5)
    assert kinds(event.parameters) == kinds(event.with_gradient) == ["bias", "weight"]
    assert event.grad_norm == pytest.approx(math.hypot(3, 1))
    assert (event.update, event.backwards, event.closure, event.scaler) == (0, 1, False, None)
    assert (event.cleared_between, event.cleared_at, event.reused_at, event.grad_norm_after_backward) == (
        False,
        None,
        None,
        None,
    )
    assert not event.reused_gradients
    assert not event.zero_gradients
    assert not event.nonfinite_gradients
    assert not event.frozen
    assert event.location.source_location.path == __file__


def test_gradients_that_are_zero_missing_or_not_finite(everything):
    attachment, told = everything
    weights = [nn.Parameter(torch.ones(3)) for _ in range(4)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    (weights[0].sum() * 0 + weights[1].sum() * math.inf + weights[2].sum()).backward()
    optimizer.step()
    (event,) = told(StepTaken)
    of = attachment.stream.registry.ref
    assert event.zero_gradients == {of(weights[0])}
    assert event.nonfinite_gradients == {of(weights[1])}
    assert event.with_gradient == {of(weight) for weight in weights[:3]}
    assert not math.isfinite(event.grad_norm)


def test_no_gradients_at_all(everything):
    _, told = everything
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    optimizer.step()
    (event,) = told(StepTaken)
    assert (event.backwards, event.cleared_between, event.grad_norm) == (0, False, None)
    assert not event.with_gradient


def test_cleared_between_backward_and_step(everything):
    _, told = everything
    model = Weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model().backward()
    optimizer.zero_grad()
    optimizer.step()
    model().backward()
    model.weight.grad = None
    optimizer.step()
    by_call, by_hand = told(StepTaken)
    assert (by_call.backwards, by_call.cleared_between) == (1, True)
    assert by_call.cleared_at.source_location.path == __file__
    assert (by_hand.backwards, by_hand.cleared_between, by_hand.cleared_at) == (1, True, None)


def test_used_twice(everything):
    _, told = everything
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        weight.sum().backward()
        optimizer.step()
    first, *later = told(StepTaken)
    assert not first.reused_gradients
    assert all(len(event.reused_gradients) == 1 and event.reused_at.source_location.path == __file__ for event in later)


def test_a_window_of_several_backwards(everything):
    _, told = everything
    model = Weight(1.0, 1.0, 1.0, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model().backward()
    model.weight.grad.mul_(0.5)
    optimizer.step()
    (event,) = told(StepTaken)
    assert (event.backwards, event.grad_norm_after_backward, event.grad_norm) == (
        3,
        pytest.approx(6.0),
        pytest.approx(3.0),
    )


def test_sparse_gradients_are_not_read(everything):
    _, told = everything
    words = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(words.parameters())
    words(torch.tensor([1, 1, 3])).sum().backward()
    optimizer.step()
    (event,) = told(StepTaken)
    assert (event.grad_norm, len(event.with_gradient), event.backwards) == (None, 1, 1)
    assert not event.zero_gradients


def test_frozen_parameters_that_change(everything):
    attachment, told = everything
    still, moved = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([still, moved], lr=0.1, weight_decay=0.1)
    (still.sum() + moved.sum()).backward()
    still.grad = None
    for weight in (still, moved):
        weight.requires_grad_(False)
    optimizer.step()
    (event,) = told(StepTaken)
    assert len(event.frozen) == 2
    assert event.frozen_changed == {attachment.stream.registry.ref(moved)}


def test_gradients_are_computed_within_a_closure(everything):
    attachment, told = everything
    model = Weight(2.0, 1.0)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, lr=0.1)
    calls = []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = model() ** 2
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure=closure)
    events = told(StepTaken)
    assert [event.closure for event in events] == [True, True]
    assert sum(event.backwards for event in events) == len(calls) == len(told(BackwardEnded))
    assert all(event.grad_norm > 0 and len(event.with_gradient) == 1 and not event.reused_gradients for event in events)
    assert attachment.stream.update == 2


def test_a_raising_step_does_not_count_and_the_next_one_does(everything):
    attachment, told = everything
    model = Weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail():
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            optimizer.step(fail)
    assert (attachment.stream.update, told(StepTaken)) == (0, [])
    model().backward()
    optimizer.step()
    assert attachment.stream.update == 1
    (event,) = told(StepTaken)
    assert (event.backwards, event.closure) == (1, False)


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
def test_a_step_within_a_step_is_one(everything, make):
    attachment, told = everything
    model = Weight()
    optimizer = make(list(model.parameters()))
    for _ in range(3):
        model().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert attachment.stream.update == 3
    assert [event.backwards for event in told(StepTaken)] == [1, 1, 1]
    assert attachment.program.step_depth == 0


def test_one_step_for_each_parameter_within_a_backward(everything):
    attachment, told = everything
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizers = {weight: torch.optim.SGD([weight], lr=0.1) for weight in weights}

    def step(weight):
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    for weight in weights:
        weight.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        sum(weight.sum() for weight in weights).backward()
    assert attachment.stream.update == 6
    assert not any(event.reused_gradients for event in told(StepTaken))


def test_a_step_on_another_thread_is_not_traced(everything):
    attachment, told = everything
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
    (event,) = told(StepTaken)
    assert event.backwards == 1
    assert attachment.stream.update == 1
    assert torch.equal(other.weight, torch.full((2,), 0.9))


def test_the_first_step_after_a_gap_is_not_reported(everything):
    attachment, told = everything
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def update():
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    while attachment.stream.full_tracing:
        update()
    seen = len(told(StepTaken))
    update()
    assert len(told(StepTaken)) == seen
    attachment.sampling._start_full(3)
    for _ in range(3):
        update()
    assert len(told(StepTaken)) == seen + 2
    assert attachment.stream.update == seen + 4


def test_optimizers_are_not_kept(everything):
    attachment, told = everything
    torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1).step()
    assert len(told(StepTaken)) == 1
    gc.collect()
    assert attachment.program.optimizers.items() == []
