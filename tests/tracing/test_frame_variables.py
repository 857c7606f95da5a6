"""Reading local variables of a frame does not change them for the program and keeps no object alive."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

from trueloop.tracing.frame_variables import variables


class Thing:
    pass


def test_all_scripts_exist():
    one, two = 1, "b"
    found = variables(sys._getframe())
    assert (found["one"], found["two"]) == (one, two)


def test_nothing_is_kept_by_the_frame():
    thing = Thing()
    known = weakref.ref(thing)
    assert variables(sys._getframe())["thing"] is thing
    del thing
    gc.collect()
    assert known() is None


def test_arguments_of_the_program_do_not_change():
    first = 1
    given = locals()
    second = 2
    frame: Any = sys._getframe()
    variables(frame)
    del frame
    assert sorted(given) == ["first"]
    assert (first, second) == (1, 2)


def test_variables_are_kept_under_a_debugger():
    """At a breakpoint torch is called from within a trace function; then what is in the dictionary is put back."""
    seen: list[Any] = []

    def stop(frame: Any, event: str, argument: Any) -> Any:
        seen.append(variables(frame))
        return stop

    def stopped() -> int:
        one = 1
        two = one + 1
        return one + two

    before = sys.gettrace()
    sys.settrace(stop)
    try:
        result = stopped()
    finally:
        sys.settrace(before)
    assert result == 3
    assert seen


def test_variables_are_read_under_coverage():
    def trace(tracer: object, frame: Any, event: str, argument: Any) -> None:
        return None

    def asked(word: int) -> Any:
        return variables(sys._getframe())

    before = sys.gettrace()
    sys.settrace(type("CTracer", (), {"__module__": "coverage", "__call__": trace})())
    try:
        found = dict(asked(1))
    finally:
        sys.settrace(before)
    assert found == {"word": 1}


def test_a_shared_dictionary_is_not_cleared():
    """As a shell does that was opened here, by a function that is not called ``locals``."""
    first = 1
    frame: Any = sys._getframe()
    held = getattr(frame, "f_" + "locals")
    found = dict(variables(frame))
    del frame
    assert (found["first"], held["first"], first) == (1, 1, 1)


def test_module_variables_are_its_dictionary():
    space: dict[str, Any] = {"sys": sys}
    exec("frame = sys._getframe()\nx = 1", space)
    assert variables(space.pop("frame")) is space
