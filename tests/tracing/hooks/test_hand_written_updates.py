"""Updates that a program writes itself: their parameters, gradients, lines, and the operations around them."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from trueloop.tracing.events import BackwardStarted, LoaderExhausted, ModelCalled, ModeSet, StepTaken, TracingGap
from trueloop.tracing.hooks import hand_written_updates
from trueloop.tracing.hooks.hand_written_updates import MIN_WINDOWS
from trueloop.tracing.sampling import BURST_INTERVAL, BURST_UPDATES, INITIAL_UPDATES
from trueloop.tracing.torch_modes import dispatch_modes, function_modes
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows
from trueloop.tracing.trackers.gradient_ledger import GradientLedger


@pytest.fixture(autouse=True)
def _lines_are_searched(monkeypatch):
    monkeypatch.setattr(hand_written_updates, "uses_compiler", lambda: False)  # other tests load the compiler


def step(parameters, rate=0.01):
    with torch.no_grad():
        for each in parameters:
            each.sub_(each.grad, alpha=rate)


def clear(parameters):
    for each in parameters:
        each.grad = None


def finish(attachment):
    for call in attachment.stream.on_detach:
        call()


def train(model, updates, batches=1):
    x = torch.randn(8, 4)
    for _ in range(updates):
        for _ in range(batches):
            model(x).square().mean().backward()
        step(model.parameters())
        clear(model.parameters())


def record(attachment, read):
    """Return the list to which ``read`` adds a value for each update, read from a tracker when it is reported."""
    found = []
    attachment.stream.subscribe(listener := lambda event: found.append(read(event)), StepTaken)
    attachment.stream.on_detach.append(lambda: attachment.stream.unsubscribe(listener))
    return found


def test_an_update_has_the_parameters_gradients_and_line_of_a_step(attached, track):
    attachment, events_of = attached
    windows, gradients, model = track(AccumulationWindows), track(GradientLedger), nn.Linear(4, 4)
    train(model, 5)
    assert attachment.stream.update == 4
    finish(attachment)
    events = events_of(StepTaken)
    assert attachment.stream.update == 5
    assert [event.update for event in events] == [2, 3, 4]
    assert {event.optimizer for event in events} == {events[0].optimizer}
    event = events[0]
    assert sorted(ref.name for ref in event.parameters) == ["bias", "weight"]
    assert event.with_gradient == event.parameters
    assert (event.learning_rates, windows.ended_by(event.optimizer).backwards) == ((), 1)
    assert gradients.reused_by(event.optimizer) is gradients.already_used_by(event.optimizer) is None
    assert event.grad_norm > 0
    assert event.hand_written
    assert event.call == event.optimizer_name == "The hand-written update"
    assert event.location.source_location.line == step.__code__.co_firstlineno + 3


def test_an_update_is_reported_before_what_follows_it(attached):
    attachment, _ = attached
    seen = []
    attachment.attach(listener := lambda event: seen.append(type(event)))
    model = nn.Linear(4, 4)
    train(model, MIN_WINDOWS + 1)
    del seen[:]
    model.eval()
    assert seen == [StepTaken, ModeSet]
    train(model, 1)
    del seen[:]
    model(torch.ones(1, 4))
    assert seen == [StepTaken, ModelCalled]
    assert seen.count(BackwardStarted) == 0
    attachment.detach(listener)


def test_the_end_of_a_loader_knows_the_update(attached):
    _, events_of = attached
    model = nn.Linear(4, 4)
    loader = DataLoader(TensorDataset(torch.randn(32, 4)), 8)
    for _ in range(2):
        for (x,) in loader:
            model(x).square().mean().backward()
            step(model.parameters())
            model.zero_grad()
    assert [event.pending_backwards for event in events_of(LoaderExhausted)] == [0, 0]


def test_accumulated_batches_are_one_window(attached, track):
    attachment, _ = attached
    windows = track(AccumulationWindows)
    sizes = record(attachment, lambda event: windows.ended_by(event.optimizer).backwards)
    train(nn.Linear(4, 4), 6, batches=3)
    finish(attachment)
    assert sizes == [3, 3, 3, 3]


def test_gradients_that_were_used_before(attached, track):
    attachment, _ = attached
    gradients, model = track(GradientLedger), nn.Linear(4, 4)
    reused = record(attachment, lambda event: len(gradients.reused_by(event.optimizer).parameters))
    for _ in range(6):
        model(torch.ones(2, 4)).square().mean().backward()
        step(model.parameters())
    finish(attachment)
    assert reused == [2, 2, 2, 2]


def test_plain_tensors_are_named_after_variables(attached):
    attachment, events_of = attached
    w = torch.ones(4, 1, requires_grad=True)
    layers = [torch.ones(1, 4, requires_grad=True), torch.zeros(4, requires_grad=True)]
    for _ in range(5):
        (torch.ones(2, 4) @ w @ layers[0] + layers[1]).square().sum().backward()
        step([w, *layers])
        clear([w, *layers])
    finish(attachment)
    names = {ref.name for ref in events_of(StepTaken)[0].parameters}
    assert names == {"w", "layers[0]", "layers[1]"}


def test_parameters_updated_at_different_times_are_different_optimizers(attached):
    attachment, events_of = attached
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    for _ in range(5):
        train(first, 1)
        train(second, 1)
    finish(attachment)
    events = events_of(StepTaken)
    assert len({event.optimizer for event in events}) == 2
    assert attachment.stream.update == 10


@pytest.mark.parametrize(
    "update",
    [
        lambda p: p.data.sub_(p.grad, alpha=0.01),
        lambda p: setattr(p, "data", p.data - 0.01 * p.grad),
        lambda p: setattr(p, "data", (p - 0.01 * p.grad).detach()),
        lambda p: p.data.copy_(torch.from_numpy(p.detach().numpy() - 0.01 * p.grad.numpy())),
        lambda p: torch._foreach_add_([p.data], [p.grad], alpha=-0.01),
        lambda p: p.data.add_(p.grad.sign(), alpha=0.01),
    ],
    ids=["data in place", "data assigned", "detached", "numpy", "foreach", "ascent"],
)
def test_ways_to_write_an_update(attached, update):
    attachment, events_of = attached
    model = nn.Linear(4, 4)
    for _ in range(5):
        model(torch.randn(8, 4)).square().mean().backward()
        for each in model.parameters():
            update(each)
        clear(model.parameters())
    finish(attachment)
    assert (attachment.stream.update, len(events_of(StepTaken))) == (5, 3)
    assert events_of(StepTaken)[0].location.source_location.path == __file__


def test_sparse_gradients_half_precision_and_transposed_parameters(attached):
    attachment, events_of = attached
    embedding = nn.Embedding(10, 4, sparse=True)
    weight = torch.randn(3, 4).to(torch.bfloat16).t().requires_grad_()
    for _ in range(5):
        (embedding(torch.arange(5)).to(torch.bfloat16) @ weight).float().square().sum().backward()
        with torch.no_grad():
            embedding.weight.add_(embedding.weight.grad, alpha=-0.01)
            weight -= 0.125 * weight.grad
        clear([embedding.weight, weight])
    finish(attachment)
    assert len(events_of(StepTaken)) == 3


def test_an_optimizer_ends_the_search(attached):
    attachment, events_of = attached
    model = nn.Linear(4, 4)
    train(model, 4)
    finish(attachment)
    program = attachment.program
    searching, waiting = len(program.on_backward_start), len(program.before_backward)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        model.weight.data.mul_(0.999)
        optimizer.zero_grad()
    assert [event.hand_written for event in events_of(StepTaken)] == [True, True, False, False, False]
    assert len(program.before_backward) == waiting - 1
    assert len(program.on_backward_start) == searching - 1


def test_the_window_that_a_gap_cuts_is_not_reported(attached):
    attachment, events_of = attached
    train(nn.Linear(4, 4), INITIAL_UPDATES + BURST_INTERVAL + 4)
    (gap,) = events_of(TracingGap)
    assert (gap.update, gap.updates) == (INITIAL_UPDATES + BURST_INTERVAL - BURST_UPDATES, 120)
    assert [event.update - gap.update for event in events_of(StepTaken) if event.update >= gap.update] == list(
        range(1, BURST_UPDATES)
    )
    assert attachment.stream.update == INITIAL_UPDATES + BURST_INTERVAL + 3


def test_nothing_is_kept_in_memory_and_no_mode_is_left(attached):
    attachment, _ = attached
    model = nn.Linear(4, 4)
    train(model, 4)
    model(torch.ones(1, 4))
    weight = weakref.ref(model.weight)
    assert (function_modes(), dispatch_modes()) == (0, 0)
    attachment.program.calls.clear()
    del model
    gc.collect()
    assert weight() is None


class Counting(TorchDispatchMode):
    """A mode of the program."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("around", ["backward", "update", "everything"])
def test_modes_of_the_program_keep_their_order(attached, around):
    attachment, _ = attached
    model, mode = nn.Linear(4, 4), Counting()
    if around == "everything":
        with mode:
            train(model, 4)
    for _ in range(4):
        if around == "backward":
            with mode:
                model(torch.ones(2, 4)).square().mean().backward()
        else:
            model(torch.ones(2, 4)).square().mean().backward()
            mode.__enter__()
        step(model.parameters())
        if around != "backward":
            mode.__exit__(None, None, None)
        clear(model.parameters())
    finish(attachment)
    assert mode.count > 0
    assert (function_modes(), dispatch_modes()) == (0, 0)


def test_other_threads_do_not_report_the_update(attached):
    _, events_of = attached
    model = nn.Linear(4, 4)
    train(model, 4)
    before = len(events_of(StepTaken))
    thread = threading.Thread(target=lambda: nn.Linear(2, 2)(torch.ones(1, 2)))
    thread.start()
    thread.join()
    assert len(events_of(StepTaken)) == before
    model(torch.ones(1, 4))
    assert len(events_of(StepTaken)) == before + 1
