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
_OWN_REFERENCES: Final = 3  # the frame, the local variable here, and the argument of getrefcount


def variables(frame: FrameType) -> Mapping[str, Any]:
    """Return the local variables of a frame, without keeping their values in memory.

    Before Python 3.13 a function's frame caches the dictionary ``f_locals``, which keeps the values in memory until the
    function returns, and which ``locals()`` returns too. So the dictionary is cleared after reading, unless other code
    refers to it, such as a shell opened in the function. The result is empty for a function that may have called
    ``locals()`` itself, and under a debugger, which sets the function's variables from the dictionary.
    """
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return frame.f_locals  # the namespace of a module or class
    if not _SNAPSHOTS:
        return dict(frame.f_locals)
    if _may_read_locals(code) or _is_debugged():
        return {}
    cached = frame.f_locals
    copy = dict(cached)
    if sys.getrefcount(cached) <= _OWN_REFERENCES:
        cached.clear()
    return copy


def _is_debugged() -> bool:
    tracer = sys.gettrace()
    kind = type(getattr(tracer, "__self__", tracer)).__module__
    return tracer is not None and kind.partition(".")[0] != "coverage"  # coverage never stops a program


@lru_cache(maxsize=512)
def _may_read_locals(code: CodeType) -> bool:
    """Return True if a function may store or change the dictionary of its variables."""
    if "f_locals" in code.co_names:
        return True
    if _LOCALS_READERS.isdisjoint(code.co_names):
        return False
    return any(step.opname == "LOAD_GLOBAL" and step.argval in _LOCALS_READERS for step in dis.get_instructions(code))
