"""The call a frame is at, and whether a condition decides that it gets there."""

from __future__ import annotations

import ast
import math
import sys

import pytest

from trueloop.tracing.program_text.calls import MAX_LINES, call_at, calls_in, is_conditional, resolve_global

SEEN: list[bool] = []
CALLS: list[ast.Call | None] = []


def here(*values, **options):
    """Note what is known of the call that leads here."""
    frame = sys._getframe(1)
    SEEN.append(is_conditional(frame.f_code, frame.f_lasti))
    CALLS.append(call_at(frame))
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
    here(1, two=2)  # a shorter end of a function may stand in its code twice


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


def test_a_call_is_parsed():
    CALLS.clear()
    here(1, two="ü"), here(3)
    here(
        4,
        five=5,
    )
    read = [ast.unparse(call) for call in CALLS if call is not None]
    assert read == ["here(1, two='ü')", "here(3)", "here(4, five=5)"]


def test_without_source_there_is_none():
    CALLS.clear()
    exec(compile("here(1)", "<nowhere>", "exec"), {"here": here})
    assert CALLS == [None]


def test_names_within_modules():
    def expression(text):
        return ast.parse(text, mode="eval").body

    space = {"m": math, "plain": here}
    assert resolve_global(expression("m.sqrt"), space) is math.sqrt
    assert resolve_global(expression("plain"), space) is here
    assert resolve_global(expression("plain.__name__"), space) is None
    assert resolve_global(expression("unknown.sqrt"), space) is None
    assert resolve_global(expression("m.sqrt()"), space) is None


def test_the_calls_of_a_file(tmp_path):
    path = tmp_path / "some.py"
    path.write_text("import math\nprint(math.sqrt(4))\n")
    assert [ast.unparse(call.func) for call in calls_in(str(path))] == ["print", "math.sqrt"]
    assert not calls_in(str(path), "math", "dropout")
    assert not calls_in(str(tmp_path / "none.py"))


@pytest.mark.parametrize("text", ["print(1", "print(1)\n" * (MAX_LINES + 1)])
def test_files_that_are_not_read(tmp_path, text):
    path = tmp_path / "other.py"
    path.write_text(text)
    assert not calls_in(str(path))
