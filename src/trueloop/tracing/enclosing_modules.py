"""Finds the larger modules that contain a module, among the variables of the calling program."""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from torch import nn

from trueloop.tracing.frame_variables import variables
from trueloop.tracing.user_location import is_user_code

MAX_OBJECTS: Final = 10_000  # inspected variables and modules


def enclosing_modules(part: nn.Module, frame: FrameType | None = None) -> Iterator[nn.Module]:
    """Yield the modules among the variables of user frames that contain another module.

    Args:
        part: the module that is being called.
        frame: where the search starts, outwards. None = the caller's.

    Cost: 0.1 us for each variable and each module, up to 2 ms, so this is for a first call.
    """
    seen, left = {id(part)}, MAX_OBJECTS
    for value in _variables(frame or sys._getframe(1)):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        left -= 1
        if left <= 0:
            return
        # Not isinstance, which would unwrap proxies.
        if issubclass(type(value), nn.Module) and id(value) not in seen:
            seen.add(id(value))
            for each in value.modules():
                left -= 1
                if each is part:
                    yield value
                    break


def _variables(frame: FrameType | None) -> Iterator[Any]:
    while frame is not None:
        if is_user_code(frame.f_code):
            yield from list(variables(frame).values())
        frame = frame.f_back
