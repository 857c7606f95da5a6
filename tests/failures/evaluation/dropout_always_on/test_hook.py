"""Events of functional dropout without ``training``, and calls that a condition may skip."""

from __future__ import annotations

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trueloop.failures.evaluation.dropout_always_on import DropoutWithoutTrainingFlag
from trueloop.failures.evaluation.dropout_always_on.hook import UnflaggedDropouts, is_conditional
from trueloop.tracing.attach import Attachment
from trueloop.tracing.hooks import all_hooks


@pytest.fixture
def events():
    """The events of dropout without the flag."""
    found = []
    attachment = Attachment(lambda stream, program: [*all_hooks(stream, program), UnflaggedDropouts(stream, program)])

    def listener(event):
        if type(event) is DropoutWithoutTrainingFlag:
            found.append(event)

    attachment.attach(listener)
    yield found
    attachment.detach(listener)
    assert not attachment.stream.problems


class Net(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.linear, self.call = nn.Linear(4, 4), call

    def forward(self, x):
        return self.call(self, self.linear(x))


def without_flag(module, x):
    return F.dropout(x, 0.5)


def test_a_call_without_the_training_flag(events):
    model = Net(without_flag)
    x = torch.ones(3, 4)
    for _ in range(2):  # it is looked for at the first call
        model(x)
    model.eval()(x)
    first, second = events
    assert (first.training, second.training) == (True, False)
    assert (first.function, first.probability) == ("dropout", 0.5)
    assert (first.input_elements, first.input_repeated) == (12, False)
    assert first.module is second.module
    assert first.location.source_location == second.location.source_location
    assert first.location.source_location.line == without_flag.__code__.co_firstlineno + 1


def test_the_same_tensor_twice(events):

    def twice(module, x):
        return sum(F.dropout1d(x, 0.5) for _ in range(2))

    model = Net(twice)
    for _ in range(2):
        model(torch.ones(3, 4))
    assert [(event.function, event.input_repeated) for event in events] == [
        ("dropout1d", False), ("dropout1d", True)
    ]  # fmt: skip


OPTIONS, OTHERS = {"p": 0.5}, [F.dropout]
SILENT = {
    "events_of by name": lambda module, x: F.dropout(x, 0.5, training=module.training),
    "events_of by position": lambda module, x: F.dropout(x, 0.5, True),
    "no rate": lambda module, x: F.dropout(x, 0.0),
    "unpacked": lambda module, x: F.dropout(*(x, 0.5)),
    "options": lambda module, x: F.dropout(x, **OPTIONS),
    "by a name in between": lambda module, x: OTHERS[0](x, 0.5),
    "under a condition": lambda module, x: F.dropout(x, 0.5) if module.training else x,
    "after a condition": lambda module, x: module.training and F.dropout(x, 0.5),
    "a layer": lambda module, x: nn.Dropout(0.5)(x),
    "alpha": lambda module, x: F.alpha_dropout(x, 0.5, True),
}


@pytest.mark.parametrize("call", SILENT.values(), ids=SILENT)
def test_calls_without_an_event(events, call):
    model = Net(call)
    for _ in range(2):
        model(torch.ones(3, 4))
    assert not events


def test_outside_of_a_model(events):
    Net(without_flag)(torch.ones(3, 4))
    without_flag(None, torch.ones(3, 4))
    assert not events


def test_recomputation_emits_no_second_event(events):
    from torch.utils.checkpoint import checkpoint

    inner = Net(without_flag)
    model = Net(lambda module, x: checkpoint(inner, x, use_reentrant=False))
    model(torch.ones(3, 4))
    assert not events
    model(torch.ones(3, 4)).sum().backward()
    assert len(events) == 1


SEEN: list[bool] = []


def here(*values, **options):
    """Record whether the call in the caller's frame is conditional."""
    frame = sys._getframe(1)
    SEEN.append(is_conditional(frame.f_code, frame.f_lasti))
    return 1


def straight():
    here()


def in_a_for():
    for _ in range(2):
        here()


def in_a_comprehension():
    return [here() for _ in range(2)]


def in_a_generator():
    return sum(here() for _ in range(2))


def after_an_assertion():
    first = here
    assert first is not None
    first()


def after_conditions(some=None):
    total = 0
    if some is None:
        total = 1
        total += 1
    else:
        total = 2
    total = 1 if total else 2
    for each in range(3):
        if each == 1:
            continue
        total += 1
    for each in range(3):
        if each:
            break
    here()
    return total


def after_an_error():
    try:
        math.sqrt(-1)
    except ValueError:
        SEEN.clear()
    here(1, two=2)  # Python may duplicate a short end of a function in the bytecode


ALWAYS = [
    straight, in_a_for, in_a_comprehension, in_a_generator, after_an_assertion, after_conditions, after_an_error
]  # fmt: skip


def under_if(on=True):
    if on:
        here()


def under_else(on=False):
    if on:
        on = 3
    else:
        here()
    return on


def chosen(on=True):
    return here() if on else 2


def joined(on=True):
    return on and here()


def after_a_return(off=False):
    if off:
        return 1
    return here()


def in_a_while(n=1):
    while n:
        here()
        n -= 1


def after_continue():
    for each in range(2):
        if each == 0:
            continue
        here()


def after_break():
    for each in range(2):
        if each:
            break
        here()


def of_some():
    return [here() for each in range(2) if each]


def matched(kind=1):
    match kind:
        case 1:
            here()
        case _:
            pass


SOMETIMES = [
    under_if, under_else, chosen, joined, after_a_return, in_a_while, after_continue, after_break, of_some, matched
]  # fmt: skip


@pytest.mark.parametrize(("function", "expected"), [(f, False) for f in ALWAYS] + [(f, True) for f in SOMETIMES])
def test_conditional_calls(function, expected):
    SEEN.clear()
    function()
    assert SEEN
    assert set(SEEN) == {expected}
