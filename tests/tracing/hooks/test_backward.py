"""Reports of backward passes: the loss they start from and the parameters they reach."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from trueloop.tracing.events import BackwardEnded, BackwardLosses, BackwardStarted, NonFiniteValue
from trueloop.tracing.hooks.backward import SINGLE_BACKWARD_UPDATES, check_signature


def names(refs):
    return sorted(ref.name for ref in refs)


def test_a_simple_backward(attached):
    attachment, events_of = attached
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))
    loss = F.cross_entropy(model(torch.ones(4, 2)), torch.zeros(4, dtype=torch.long))
    loss.backward()
    (began,), (ended,) = events_of(BackwardStarted), events_of(BackwardEnded)
    assert (began.leaf, began.retain_graph, began.create_graph, ended.scale) == (False, False, False, None)
    assert [each.kind for each in began.losses] == ["cross_entropy"]
    assert (began.backward_count, ended.backward_count, attachment.stream.backward_count) == (0, 1, 1)
    assert ended.root_value == loss.item()
    assert names(ended.reached_parameters) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert began.location.source_location.path == ended.location.source_location.path == __file__


def test_losses_of_equal_updates_are_reported_a_few_times(attached):
    _, events_of = attached
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    targets = torch.zeros(4, dtype=torch.long)
    for _ in range(3 * SINGLE_BACKWARD_UPDATES):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.ones(4, 2)), targets).backward()
        optimizer.step()
    began, seen = events_of(BackwardStarted), events_of(BackwardLosses)
    assert len(began) == 3 * SINGLE_BACKWARD_UPDATES
    assert SINGLE_BACKWARD_UPDATES <= len(seen) < 3 * SINGLE_BACKWARD_UPDATES
    assert {each.kind for event in (*began, *seen) for each in event.losses} == {"cross_entropy"}
    assert all(event.location == began[0].location for event in seen)


def test_a_loss_that_comes_later_is_read_from_its_second_time_on(attached):
    _, events_of = attached
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kinds = []
    for update in range(2 * SINGLE_BACKWARD_UPDATES + 8):
        optimizer.zero_grad()
        out = model(torch.ones(4, 2))
        if update < 2 * SINGLE_BACKWARD_UPDATES + 2 or update % 2:
            loss = F.cross_entropy(out, torch.zeros(4, dtype=torch.long))
        else:
            loss = F.mse_loss(out, torch.zeros(4, 3))
            kinds.append(len(events_of(BackwardLosses)))
        loss.backward()
        optimizer.step()
    new = events_of(BackwardLosses)[kinds[0] :]
    assert [each.kind for event in new for each in event.losses] == ["mse"] * (len(kinds) - 1)
    (line,) = {each.location.source_location.line for event in new for each in event.losses}
    assert line
    assert all(len(event.losses) == 1 for event in events_of(BackwardStarted)[2 * SINGLE_BACKWARD_UPDATES + 3 :])


def test_only_reached_parameters(attached):
    _, events_of = attached
    model = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(2, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()  # now both are known
    for name in ("a", "b", "a"):
        model[name](torch.ones(1, 2)).sum().backward()
    a, b, again = (event.reached_parameters for event in events_of(BackwardEnded))
    assert a == again
    assert len(a) == len(b) == 2
    assert not a & b


@pytest.mark.filterwarnings("ignore:Using backward")
def test_retained_and_differentiable_graphs(attached):
    _, events_of = attached
    weight = nn.Parameter(torch.ones(2))
    loss = (weight**3).sum()
    loss.backward(retain_graph=True)
    loss.backward(create_graph=True)
    loss.backward(None, False)
    loss = (weight**3).sum()
    torch.autograd.backward([loss * 2, loss], retain_graph=False)
    weight.grad = None
    flags = [(event.retain_graph, event.create_graph) for event in events_of(BackwardStarted)]
    assert flags == [(True, False), (True, True), (False, False), (False, False)]


def test_a_root_without_a_graph(attached):
    _, events_of = attached
    torch.ones((), requires_grad=True).backward()
    nn.Parameter(torch.ones(())).backward()
    with pytest.raises(RuntimeError):
        torch.ones(()).backward()
    assert [event.leaf for event in events_of(BackwardStarted)] == [True, False, False]
    assert len(events_of(BackwardEnded)) == 2


def test_a_root_of_several_numbers_has_no_value(attached):
    _, events_of = attached
    weight = nn.Parameter(torch.ones(2))
    (weight * 2).backward(torch.ones(2))
    (event,) = events_of(BackwardEnded)
    assert event.root_value is None


def test_autograd_grad_is_no_backward(attached):
    attachment, events_of = attached
    weight = nn.Parameter(torch.ones(2))
    torch.autograd.grad((weight**2).sum(), weight)
    assert (events_of(BackwardStarted), attachment.stream.backward_count) == ([], 0)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_a_part_of_it(attached, reentrant):
    attachment, events_of = attached
    model = nn.Linear(2, 2)
    x = torch.ones(1, 2, requires_grad=True)
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    assert len(events_of(BackwardStarted)) == len(events_of(BackwardEnded)) == attachment.stream.backward_count == 1
    assert len(events_of(BackwardEnded)[0].reached_parameters) == 2


def test_a_raising_hook_does_not_disable_it(attached):
    attachment, events_of = attached
    weight = nn.Parameter(torch.ones(2))

    def fail(gradient):
        raise ZeroDivisionError

    handle = weight.register_hook(fail)
    with pytest.raises(ZeroDivisionError):
        weight.sum().backward()
    handle.remove()
    weight.sum().backward()
    assert attachment.program.backward_depth == 0
    assert (len(events_of(BackwardStarted)), len(events_of(BackwardEnded))) == (2, 1)


def test_a_nonfinite_loss_is_reported_now_and_then(attached):
    attachment, events_of = attached
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for number in range(6):
        optimizer.zero_grad()
        (weight.sum() * (1.0 if number < 3 else math.nan)).backward()
        optimizer.step()
    (event,) = events_of(NonFiniteValue)
    assert (event.what, event.value, event.update) == ("loss", "nan", 3)
    assert event.location.source_location.path == __file__
    assert attachment.stream.full_tracing


def test_the_first_of_several_roots_is_read(attached):
    _, events_of = attached
    weight = nn.Parameter(torch.ones(2))
    torch.autograd.backward((weight.sum() * math.inf, weight.prod()), (None, torch.tensor(2.0)))
    (event,) = events_of(NonFiniteValue)
    assert (event.what, event.value) == ("loss", "inf")
    (ended,) = events_of(BackwardEnded)
    assert ended.root_value == math.inf


@pytest.mark.filterwarnings("error")
def test_an_averaged_teacher_with_gradients_is_not_read_as_a_leaf(attached):
    attachment, events_of = attached
    model, teacher = nn.Linear(2, 1), nn.Linear(2, 1).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.ones(4, 2)) - teacher(torch.ones(4, 2)).detach()).square().mean().backward()
        optimizer.step()
        for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
            old.mul_(0.9).add_(new, alpha=0.1)
    assert not teacher.weight.is_leaf
    assert [len(event.reached_parameters) for event in events_of(BackwardEnded)] == [2, 2, 2]
    assert not attachment.stream.problems


def test_a_backward_of_other_parameters_does_not_count():
    check_signature(torch.autograd.backward)
    check_signature(lambda *args, **options: None)
    with pytest.raises(TypeError, match="tangents"):
        check_signature(
            lambda tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs, tangents=0: None
        )
    with pytest.raises(TypeError):
        check_signature(lambda tensors: None)
