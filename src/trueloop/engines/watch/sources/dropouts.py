"""Functional dropout that nobody has told the mode of its module."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trueloop.engines.watch.callers import called_as, is_conditional
from trueloop.engines.watch.owners import owner_of
from trueloop.engines.watch.patch import Patches
from trueloop.engines.watch.places import is_users
from trueloop.engines.watch.program import Program
from trueloop.engines.watch.stream import Stream
from trueloop.ground.events import DropoutUntold, Event
from trueloop.ground.findings import Place

FUNCTIONS: Final = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
"""Those whose ``training`` is True where it is not given; that of ``alpha_dropout`` is False."""
TRAINING: Final = 2  # its position among their parameters

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class Dropouts:
    """Tells `DropoutUntold` while watching in full.

    Whether ``training`` was given shows in the source of the call, which is read once for each line.

    Cost: 1 us for each call, 15 us for one that is not told the mode.
    """

    tells: ClassVar[tuple[type[Event], ...]] = (DropoutUntold,)

    def __init__(self, stream: Stream, program: Program) -> None:
        self._stream, self._program = stream, program
        self._untold: dict[tuple[CodeType, int], str] = {}
        """Calls by where they are -> the function, where it is not told the mode; "" = it is, or nobody knows."""
        self._given: dict[tuple[CodeType, int], tuple[int, weakref.ref[Tensor]]] = {}
        """Such calls -> the batch and the input of the latest."""
        self._look = stream.fenced("functional dropout", self._called)

    def always(self, patches: Patches) -> None:
        """Nothing is needed lightly; what was seen while others listened is forgotten."""
        self._untold.clear()
        self._given.clear()

    def in_full(self, patches: Patches) -> None:
        """Replace torch's functions wherever they were imported to."""
        for function in FUNCTIONS:
            patches.swap(function, self._replacement)  # pyright: ignore[reportArgumentType]

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program, untold, look = self._stream, self._program, self._untold, self._look

        def dropout(*args: Any) -> Any:
            if args[TRAINING] is True and program.in_forward and stream.on and not _is_compiling():
                frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                if untold.get((frame.f_code, frame.f_lasti)) != "" and not program.elsewhere():
                    look(frame, args[0], args[1])
            return original(*args)

        return dropout

    def _called(self, frame: FrameType, given: Any, probability: Any) -> None:
        call = frame.f_code, frame.f_lasti
        function = self._untold.get(call)
        if function is None:
            function = self._untold[call] = _untold(frame)
        if not function or self._program.in_backward or not isinstance(given, Tensor):
            return
        if type(probability) not in (int, float) or not probability > 0:
            return
        module = _around(frame)
        if module is None:
            return
        batch, before = self._given.get(call, (-1, None))
        self._given[call] = self._program.batch, weakref.ref(given)
        self._stream.emit(
            DropoutUntold,
            Place(*call),
            module=self._stream.registry.of(module),
            training=module.training,
            function=function,
            probability=float(probability),
            values=given.numel(),
            again=batch == self._program.batch and before is not None and before() is given,
        )


def _untold(frame: FrameType) -> str:
    """Return the name of the function a frame is just calling, if it is one of torch's and not told the mode."""
    if not is_users(frame.f_code):
        return ""
    function = called_as(frame, lambda given, named: given <= TRAINING and "training" not in named)
    return function.__name__ if any(function is each for each in FUNCTIONS) else ""


def _around(frame: FrameType | None) -> nn.Module | None:
    """Return the module within whose forward a frame runs, the innermost.

    None where a condition decides whether this frame runs, in any forward: it may be what switches the dropout.
    """
    inner: FrameType | None = None
    passed: list[FrameType] = []
    certain = 0
    while frame is not None and frame.f_code.co_name != "<module>":
        passed.append(frame)
        if frame.f_code.co_name == "forward":
            inner, certain = inner or frame, len(passed)
        frame = frame.f_back
    if inner is None:
        return None
    if any(is_users(each.f_code) and is_conditional(each.f_code, each.f_lasti) for each in passed[:certain]):
        return None
    return owner_of(inner)
