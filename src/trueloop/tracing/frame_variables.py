"""The local variables of a running function, read without a trace of it."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Final

_ASKS: Final = frozenset(("locals", "vars", "eval", "exec"))
_SNAPSHOTS: Final = sys.version_info < (3, 13)
_OWN: Final = 3  # references to that dictionary: the frame's, the one here, and the one of who counts them


def variables(frame: FrameType) -> Mapping[str, Any]:
    """Return the local variables of a frame, and leave nothing behind in it.

    Before Python 3.13 a function's frame keeps the dictionary it was asked for, and with it everything in it, as long
    as it runs; and ``locals()`` gives the program that very dictionary, which asking again brings up to date. So it is
    emptied, and where the function may have asked for it itself there are no variables; nor under a debugger, which
    makes the function's variables anew from what is in it. Where somebody else holds it, as a shell that was opened
    within the function does, it stays as it is.
    """
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return frame.f_locals  # a module's or a class's own dictionary
    if not _SNAPSHOTS:
        return dict(frame.f_locals)
    if _asks(code) or _is_debugged():
        return {}
    given = frame.f_locals
    copy = dict(given)
    if sys.getrefcount(given) <= _OWN:
        given.clear()
    return copy


def _is_debugged() -> bool:
    tracer = sys.gettrace()
    kind = type(getattr(tracer, "__self__", tracer)).__module__
    return tracer is not None and kind.partition(".")[0] != "coverage"  # which never stops anywhere


@lru_cache(maxsize=512)
def _asks(code: CodeType) -> bool:
    """True where a function may hold the dictionary of its variables, or have put something in it."""
    if "f_locals" in code.co_names:
        return True
    if _ASKS.isdisjoint(code.co_names):
        return False
    return any(step.opname == "LOAD_GLOBAL" and step.argval in _ASKS for step in dis.get_instructions(code))
