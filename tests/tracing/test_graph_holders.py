"""Who keeps old graphs, by the names that the program gives them."""

import collections
import sys

import pytest
import torch

from trueloop.tracing.graph_holders import find_holders

KEPT = []


class Log:
    """Holds what it is given, in several ways."""

    def __init__(self):
        self.last, self.history, self.by_name = None, [], {}


def graph():
    return (torch.ones(2, requires_grad=True) * 2).sum()


def found():
    """Search from whoever calls this, and return variable, graphs and line of each that was found."""
    frame = sys._getframe(1)
    return [
        (holder.description.partition(" ")[0], holder.graphs, holder.location and holder.location.line)
        for holder in find_holders(lambda node: True, frame)
        if f"local of {frame.f_code.co_name}, {__file__.rpartition('/')[2]}" in holder.description
    ]


def line():
    """The line below the one that calls this."""
    return sys._getframe(1).f_lineno + 1


def test_a_variable():
    loss = graph()
    assert found() == [("loss", 1, None)]
    del loss


def test_a_list_and_the_line_that_fills_it():
    losses = []
    for _ in range(3):
        at = line()
        losses.append(graph())
    assert found() == [("losses[*]", 3, at)]


def test_a_dictionary_by_its_names():
    record = {}
    at = line()
    record["loss"] = graph()
    record[3] = [graph(), graph()]
    assert found() == [("record[*][*]", 2, at), ("record['loss']", 1, at)]


def test_an_attribute():
    log = Log()
    log.last = graph()
    at = line()
    log.history.append((graph(), 1))
    log.by_name["a"] = {"b": graph()}
    assert {(words, count) for words, count, _ in found()} == {
        ("log.last", 1),
        ("log.history[*][*]", 1),
        ("log.by_name['a']['b']", 1),
    }
    assert ("log.history[*][*]", 1, at) in found()


def test_a_running_total():
    total = 0.0
    at = line()
    total += graph()
    assert found() == [("total", 1, at)]


def test_a_queue_a_set_and_a_closure():
    queue = collections.deque([graph()])
    several = {graph()}
    inner = graph()

    def closure():
        return inner

    names = {words for words, _, _ in found()}
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
    assert found() == [("loss", 1, None)]
    del plain, values, number


def test_holders_are_sorted_and_limited_to_five():
    few, many = [graph()], [graph() for _ in range(4)]
    a, b, c, d, e = (graph() for _ in range(5))
    told = find_holders(lambda node: True)
    assert len(told) == 5
    assert (told[0].description.partition(" ")[0], told[0].graphs) == ("many[*]", 4)
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
    assert [(words, count) for words, count, _ in found()] == [("touchy.loss", 1)]
    del touchy, own


def test_cyclic_structures_end():
    ring = [graph()]
    ring.append(ring)
    deep = [[[[[[[[[[graph()]]]]]]]]]]
    assert [(words, count) for words, count, _ in found()] == [("ring[*]", 1)]
    del deep
