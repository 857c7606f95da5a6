"""Reports of graphs that are still in memory after their update, and the variables that hold them."""

import collections
import gc
import itertools
import sys

import pytest
import torch
from torch import nn

from trueloop.failures.memory.graph_kept import hook
from trueloop.failures.memory.graph_kept.hook import find_holders
from trueloop.sanitizer.watch import _attachment
from trueloop.tracing.events import GraphsAlive

KEPT = []


@pytest.fixture
def attached():
    """The attachment of all hooks, and a function that returns the reported events of one type."""
    events, attachment = [], _attachment()
    listener = events.append
    attachment.attach(listener)
    yield attachment, lambda event_type: [event for event in events if type(event) is event_type]
    attachment.detach(listener)
    assert not attachment.stream.problems


@pytest.fixture
def train(attached):
    """Make fully traced updates, pass each output to a function, and return the events about living hook."""
    attachment, events_of = attached
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(use, updates=60):
        for number in range(updates):
            attachment.sampling._start_full(4)
            optimizer.zero_grad()
            out = model(torch.ones(3, 2))
            out.sum().backward(retain_graph=True)
            optimizer.step()
            use(number, out)
            del out
        return events_of(GraphsAlive)

    return train


def test_graphs_that_are_held(train):
    kept = []
    first, *later = train(lambda number, out: kept.append(out))
    assert first.oldest_update == 0
    assert first.count >= hook.MIN_UPDATES
    assert first.location.source_location.path == __file__
    assert any(words.startswith("kept[*] (local of test_graphs_that_are_held") for words in first.holders)
    assert first.stored_at.path == __file__
    counts = [event.count for event in (first, *later)]
    assert all(after > 2 * before for before, after in itertools.pairwise(counts))


def test_a_running_total_with_its_graph(train):
    total = {}

    def add(number, out):
        total["loss"] = total.get("loss", 0) + out.sum()

    first, *_ = train(add)
    assert "total['loss']" in " ".join(first.holders)


@pytest.mark.parametrize("way", ["not kept", "a few", "now and then all are dropped", "detached", "values"])
def test_graphs_that_are_freed(train, way):
    kept = []

    def use(number, out):
        if way in ("a few", "now and then all are dropped"):
            kept.append(out)
        if way == "a few" and len(kept) > 15:
            kept.pop(0)
        if way == "now and then all are dropped" and number % 18 == 17:
            kept.clear()
        if way == "detached":
            kept.append(out.detach())
        if way == "values":
            kept.append(out.sum().item())

    assert train(use) == []


def test_graphs_in_a_reference_cycle_are_not_reported(train):
    gc.collect()
    gc.disable()

    def tie(number, out):
        knot = [out]
        knot.append(knot)

    try:
        assert train(tie) == []
    finally:
        gc.enable()


def test_without_graphs_there_are_no_markers(attached):
    attachment, events_of = attached
    model = nn.Linear(2, 1)
    with torch.no_grad():
        kept = [model(torch.ones(1, 2)) for _ in range(50)]
    (source,) = (each for each in attachment._hooks if isinstance(each, hook.Graphs))
    assert len(kept) == 50
    assert not source._outputs.created
    assert not source._parameters.created
    assert events_of(GraphsAlive) == []


def test_markers_of_freed_graphs_are_dropped(attached, monkeypatch):
    attachment, _ = attached
    monkeypatch.setattr(hook, "MAX_MARKERS", 8)
    (source,) = (each for each in attachment._hooks if isinstance(each, hook.Graphs))
    marked = source._outputs
    marked._limit = 8
    model = nn.Linear(2, 1)
    kept = [model(torch.ones(1, 2)) for _ in range(4)]
    for _ in range(200):
        model(torch.ones(1, 2))
    assert {mark() for mark in marked.alive} == {out.grad_fn.metadata[hook.KEY] for out in kept}
    assert len(marked.alive) == 4
    assert set(marked.alive) < set(marked.created)
    assert len(marked.created) <= 16
    del kept
    assert not marked.alive


class Log:
    """Stores objects in an attribute, a list and a dictionary."""

    def __init__(self):
        self.last, self.history, self.by_name = None, [], {}


def graph():
    return (torch.ones(2, requires_grad=True) * 2).sum()


def find_in_caller():
    """Search the variables of the caller; return name, number of graphs and line of each holder."""
    frame = sys._getframe(1)
    return [
        (holder.description.partition(" ")[0], holder.graphs, holder.location and holder.location.line)
        for holder in find_holders(lambda node: True, frame)
        if f"local of {frame.f_code.co_name}, {__file__.rpartition('/')[2]}" in holder.description
    ]


def next_line():
    """Return the number of the line after the caller's line."""
    return sys._getframe(1).f_lineno + 1


def test_a_variable():
    loss = graph()
    assert find_in_caller() == [("loss", 1, None)]
    del loss


def test_a_list_and_the_line_that_fills_it():
    losses = []
    for _ in range(3):
        at = next_line()
        losses.append(graph())
    assert find_in_caller() == [("losses[*]", 3, at)]


def test_a_dictionary_by_its_names():
    record = {}
    at = next_line()
    record["loss"] = graph()
    record[3] = [graph(), graph()]
    assert find_in_caller() == [("record[*][*]", 2, at), ("record['loss']", 1, at)]


def test_an_attribute():
    log = Log()
    log.last = graph()
    at = next_line()
    log.history.append((graph(), 1))
    log.by_name["a"] = {"b": graph()}
    assert {(words, count) for words, count, _ in find_in_caller()} == {
        ("log.last", 1),
        ("log.history[*][*]", 1),
        ("log.by_name['a']['b']", 1),
    }
    assert ("log.history[*][*]", 1, at) in find_in_caller()


def test_a_running_total():
    added_up = 0.0
    at = next_line()
    added_up += graph()
    assert find_in_caller() == [("added_up", 1, at)]


def test_a_queue_a_set_and_a_closure():
    queue = collections.deque([graph()])
    several = {graph()}
    inner = graph()

    def closure():
        return inner

    names = {words for words, _, _ in find_in_caller()}
    assert {"queue[*]", "several[*]", "inner"} <= names
    del queue, several


@pytest.fixture
def filled():
    KEPT.append(graph())
    yield
    KEPT.clear()


@pytest.mark.usefixtures("filled")
def test_a_global_variable():
    words = [holder.description for holder in find_holders(lambda node: True)]
    assert f"KEPT[*] (global, {__file__.rpartition('/')[2]})" in words


def test_variables_without_old_graphs_are_not_named():
    loss, plain = graph(), torch.ones(2)
    values, number = [loss.detach(), loss.item()], 3
    assert not find_holders(lambda node: False)
    assert find_in_caller() == [("loss", 1, None)]
    del plain, values, number


def test_holders_are_sorted_and_limited_to_five():
    few, many = [graph()], [graph() for _ in range(4)]
    a, b, c, d, e = (graph() for _ in range(5))
    holders = find_holders(lambda node: True)
    assert len(holders) == 5
    assert (holders[0].description.partition(" ")[0], holders[0].graphs) == ("many[*]", 4)
    del few, many, a, b, c, d, e


def test_user_code_is_not_called():
    class Touchy:
        """Raises whatever is asked of it."""

        def __init__(self):
            self.loss = graph()

        def __getattr__(self, name):
            raise ZeroDivisionError

        def __len__(self):
            raise ZeroDivisionError

        def __iter__(self):
            raise ZeroDivisionError

        def __eq__(self, other):
            raise ZeroDivisionError

        __hash__ = None

    class Own(dict):
        """Looks like a dictionary, and is not looked into as one."""

        def items(self):
            raise ZeroDivisionError

    touchy = Touchy()
    own = Own(loss=graph())
    assert [(words, count) for words, count, _ in find_in_caller()] == [("touchy.loss", 1)]
    del touchy, own


def test_cyclic_structures_end():
    ring = [graph()]
    ring.append(ring)
    deep = [[[[[[[[[[graph()]]]]]]]]]]
    assert [(words, count) for words, count, _ in find_in_caller()] == [("ring[*]", 1)]
    del deep
