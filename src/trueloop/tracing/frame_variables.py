"""Reads the local variables of a running function without side effects."""

import dis
import inspect
import sys
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Final

_LOCALS_READERS: Final = frozenset(("locals", "vars", "eval", "exec"))
_SNAPSHOTS: Final = sys.version_info < (3, 13)
_OWN_REFERENCES: Final = 3  # references to the dictionary: of the frame, of the local variable, and of getrefcount


def variables(frame: FrameType) -> Mapping[str, Any]:
    """Return the local variables of a frame without keeping them alive.

    Before Python 3.13 a function's frame caches the dictionary ``f_locals``, and keeps its values alive as long as it
    runs; ``locals()`` returns that same dictionary, and reading it again updates it. So it is cleared afterwards. For a
    function that may have called ``locals()`` itself the result is empty, and under a debugger, which writes the
    function's variables back from it. If other code holds it, such as a shell opened in the function, it is unchanged.
    """
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return frame.f_locals  # the namespace of a module or class
    if not _SNAPSHOTS:
        return dict(frame.f_locals)
    if _may_read_locals(code) or _is_debugged():
        return {}
    given = frame.f_locals
    copy = dict(given)
    if sys.getrefcount(given) <= _OWN_REFERENCES:
        given.clear()
    return copy


def _is_debugged() -> bool:
    tracer = sys.gettrace()
    kind = type(getattr(tracer, "__self__", tracer)).__module__
    return tracer is not None and kind.partition(".")[0] != "coverage"  # which never stops a program


@lru_cache(maxsize=512)
def _may_read_locals(code: CodeType) -> bool:
    """Return True if a function may hold or change the dictionary of its variables."""
    if "f_locals" in code.co_names:
        return True
    if _LOCALS_READERS.isdisjoint(code.co_names):
        return False
    return any(step.opname == "LOAD_GLOBAL" and step.argval in _LOCALS_READERS for step in dis.get_instructions(code))
