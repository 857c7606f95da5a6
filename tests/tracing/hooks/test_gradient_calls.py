"""Calls of ``torch.autograd.grad`` in programs that update by hand, and updates that compute new tensors."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.autograd import grad

from trueloop.tracing.events import BackwardEnded, BackwardStarted, PartlyTracedStep, StepTaken
from trueloop.tracing.hooks import hand_written_updates
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows
from trueloop.tracing.trackers.gradient_ledger import GradientLedger


@pytest.fixture(autouse=True)
def _lines_are_searched(monkeypatch):
    monkeypatch.setattr(hand_written_updates, "uses_compiler", lambda: False)  # other tests load the compiler


def in_place(parameters, gradients, rate=0.01):
    with torch.no_grad():
        for each, gradient in zip(parameters, gradients, strict=True):
            each.sub_(gradient, alpha=rate)
    return parameters


def replaced(parameters, gradients, rate=0.01):
    return [
        (each - rate * gradient).detach().requires_grad_() for each, gradient in zip(parameters, gradients, strict=True)
    ]


def tensors():
    return [torch.randn(4, 8, requires_grad=True), torch.zeros(8, requires_grad=True)]


def train(parameters, updates, update):
    x = torch.randn(16, 4)
    for _ in range(updates):
        loss = (x @ parameters[0] + parameters[1] - 1).square().mean()
        parameters = update(parameters, grad(loss, parameters))
    return parameters


def finish(attachment):
    for call in attachment.stream.on_detach:
        call()


@pytest.mark.parametrize("update", [in_place, replaced])
def test_calls_are_backward_passes_once_updates_are_known(attached, track, update):
    attachment, events_of = attached
    windows, ledger, sizes, reused = track(AccumulationWindows), track(GradientLedger), [], []

    def listener(event):
        sizes.append(windows.ended_by(event.optimizer).backwards)
        reused.append((ledger.reused_by(event.optimizer), ledger.already_used_by(event.optimizer)))

    attachment.stream.subscribe(listener, StepTaken)
    train(tensors(), 8, update)
    finish(attachment)
    attachment.stream.unsubscribe(listener)
    passes, steps = events_of(BackwardEnded), events_of(StepTaken)
    assert (attachment.stream.update, attachment.stream.backward_count) == (8, 8)
    assert len(events_of(PartlyTracedStep)) == 1
    assert len(passes) == len(events_of(BackwardStarted)) == 6
    assert len(steps) == (6 if update is in_place else 5)  # new tensors are seen in the next call only
    assert set(sizes) == {1}
    assert set(reused) == {(None, None)}
    (parameters,) = {event.parameters for event in steps}
    assert {event.reached_parameters for event in passes} == {parameters}
    assert all(event.with_gradient == parameters and event.grad_norm > 0 and event.hand_written for event in steps)
    assert [event.root_value for event in passes] == sorted((event.root_value for event in passes), reverse=True)


def test_gradients_are_visible_only_to_hooks(attached):
    attachment, events_of = attached
    parameters, seen = tensors(), []
    listener = lambda event: seen.append([each.grad for each in event.live_parameters.values()])  # noqa: E731
    attachment.stream.subscribe(listener, BackwardEnded, StepTaken)
    for _ in range(6):
        loss = (torch.ones(2, 4) @ parameters[0] + parameters[1]).square().sum()
        gradients = grad(loss, parameters)
        assert [each.grad for each in parameters] == [None, None]
        in_place(parameters, gradients)
    finish(attachment)
    attachment.stream.unsubscribe(listener)
    assert [each.grad for each in parameters] == [None, None]
    assert len(seen) == len(events_of(BackwardEnded)) + len(events_of(StepTaken))
    assert all(each is not None for found in seen for each in found)


def test_new_tensors_keep_the_refs_and_names(attached):
    attachment, events_of = attached
    weight, bias = tensors()
    for _ in range(6):
        loss = (torch.ones(2, 4) @ weight + bias).square().sum()
        loss.backward()
        weight, bias = replaced([weight, bias], [weight.grad, bias.grad])
    finish(attachment)
    events = events_of(StepTaken)
    assert (attachment.stream.update, len(events)) == (6, 3)
    assert len({event.parameters for event in events}) == len({event.optimizer for event in events}) == 1
    assert {ref.name for ref in events[0].parameters} == {"weight", "bias"}


def test_parameters_of_a_module_and_a_dictionary(attached):
    attachment, events_of = attached
    model = nn.Linear(4, 4)
    for _ in range(5):
        loss = model(torch.randn(8, 4)).square().mean()
        in_place(list(model.parameters()), torch.autograd.grad(loss, model.parameters()))
    finish(attachment)
    assert (attachment.stream.update, len(events_of(StepTaken))) == (5, 3)
    assert {ref.name for ref in events_of(StepTaken)[0].parameters} == {"weight", "bias"}


def attack(model, x, **options):
    for _ in range(6):
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(3):
            (gradient,) = grad(model(x + delta).square().sum(), [delta], **options)
            delta = (delta + 0.01 * gradient.sign()).detach().requires_grad_()


def penalty(model, x, **options):
    for _ in range(6):
        mixed = x.clone().requires_grad_()
        (slope,) = grad(model(mixed).sum(), mixed, create_graph=True)
        grad((slope.norm(2, 1) - 1).square().mean(), list(model.parameters()), allow_unused=True)


def hessian_product(model, x, **options):
    parameters = list(model.parameters())
    vectors = [torch.ones_like(each) for each in parameters]
    for _ in range(6):
        first = grad(model(x).square().mean(), parameters, create_graph=True)
        dot = sum((each * vector).sum() for each, vector in zip(first, vectors, strict=True))
        in_place(parameters, grad(dot, parameters))


def inner_loop(model, x, **options):
    for _ in range(3):
        fast = dict(model.named_parameters())
        for _ in range(4):
            loss = torch.func.functional_call(model, fast, x).square().mean()
            found = grad(loss, list(fast.values()), create_graph=True)
            fast = {name: each - 0.1 * slope for (name, each), slope in zip(fast.items(), found, strict=True)}


@pytest.mark.parametrize("calls", [attack, penalty, hessian_product, inner_loop])
@pytest.mark.parametrize("frozen", [False, True])
def test_other_gradients_are_no_backward_passes(attached, calls, frozen):
    attachment, events_of = attached
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    if frozen and calls is attack:
        model.requires_grad_(requires_grad=False)
    calls(model, torch.randn(8, 4))
    finish(attachment)
    assert (attachment.stream.update, attachment.stream.backward_count) == (0, 0)
    assert not events_of(BackwardStarted)
    assert not events_of(StepTaken)


@pytest.mark.parametrize("later", ["optimizer", "backward"])
def test_an_optimizer_or_a_backward_pass_ends_it(attached, later):
    attachment, events_of = attached
    parameters = train(tensors(), 5, in_place)
    if later == "optimizer":
        torch.optim.SGD(parameters, lr=0.1)
    else:
        (parameters[0].square().sum() + parameters[1].square().sum()).backward()
        parameters[0].grad = parameters[1].grad = None
    before = attachment.stream.backward_count
    train(parameters, 5, in_place)
    assert attachment.stream.backward_count == before
    assert len(events_of(BackwardStarted)) == before - 2


def test_results_and_errors_are_those_of_the_original(attached):
    parameters = train(tensors(), 5, in_place)
    loss = (torch.ones(2, 4) @ parameters[0] + parameters[1]).square().sum()
    named = dict(zip("wb", parameters, strict=True))
    first, second = grad(loss, named, retain_graph=True), grad((loss,), tuple(parameters))
    assert all(torch.equal(first[name], each) for name, each in zip("wb", second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        grad(loss, parameters)
    with pytest.raises(RuntimeError, match="not have been used"):
        grad(parameters[0].sum(), parameters)
    assert train(parameters, 2, in_place) is parameters


def test_gradient_calls_are_still_compiled(attached):
    torch._dynamo.reset()

    def slope(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad((x * x).sum(), x)[0]

    assert torch.equal(torch.compile(slope, backend="eager")(torch.ones(3)), 2 * torch.ones(3))
    torch._dynamo.reset()


def test_nothing_is_kept_in_memory(attached):
    attachment, _ = attached
    parameters = train(tensors(), 6, replaced)
    finish(attachment)
    first = weakref.ref(parameters[0])
    del parameters
    gc.collect()
    assert first() is None
