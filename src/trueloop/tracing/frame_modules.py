"""Finds the module whose ``forward`` a frame runs."""

import inspect
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, Final

from torch import nn

from trueloop.tracing.frame_variables import variables

_PLAIN: Final = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
_RESUMABLE: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def owner_of(frame: FrameType) -> nn.Module | None:
    """Return the module whose ``forward`` a frame runs; None for other frames.

    Cost: 3 us, so it is called only for suspicious frames.
    """
    code = frame.f_code
    if code.co_name != "forward" or not code.co_argcount:
        return None
    if code.co_flags & _PLAIN != _PLAIN or code.co_flags & _RESUMABLE:
        return None
    owner = variables(frame).get(code.co_varnames[0])
    if not isinstance(owner, nn.Module):
        return None
    kinds = type(owner).__mro__
    return owner if any(code is each for kind in kinds for each in codes_of(vars(kind).get("forward"))) else None


def runs_method_of(owner: nn.Module, frame: FrameType) -> bool:
    """Return True if a frame runs a method of a module's class, or a function within such a method."""
    code = frame.f_code
    for kind in type(owner).__mro__:
        if kind is not nn.Module and kind is not object:
            for member in vars(kind).values():
                if any(_contains(each, code) for each in codes_of(getattr(member, "__func__", member))):
                    return True
    return False


def codes_of(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions that its decorators wrap."""
    for _ in range(8):  # nested decorators; bounded, in case one claims to wrap itself
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return


def _contains(outer: CodeType, code: CodeType) -> bool:
    return outer is code or any(isinstance(inner, CodeType) and _contains(inner, code) for inner in outer.co_consts)
