"""Functional dropout that nobody has told the mode of its module."""

from __future__ import annotations

import ast
import linecache
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import nn

from trueloop.engines.watch.owners import owner_of
from trueloop.engines.watch.patch import Patches
from trueloop.engines.watch.places import is_users
from trueloop.engines.watch.program import Program
from trueloop.engines.watch.stream import Stream
from trueloop.ground.events import DropoutForced, Event, Ref
from trueloop.ground.findings import Place

FUNCTIONS: Final = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
"""Those whose ``training`` is True where it is not given; that of ``alpha_dropout`` is False."""
TRAINING: Final = 2  # its position among their parameters

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class Dropouts:
    """Tells `DropoutForced` while watching in full.

    Whether ``training`` was given shows in the source of the call, which is read once for each line.

    Cost: 1 us for each call, 5 us for one that is not told the mode.
    """

    tells: ClassVar[tuple[type[Event], ...]] = (DropoutForced,)

    def __init__(self, stream: Stream, program: Program) -> None:
        self._stream, self._program = stream, program
        self._untold: dict[tuple[CodeType, int], str] = {}
        """Calls by where they are -> the function, where it is not told the mode; "" = it is, or nobody knows."""
        self._trained: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Modules in train mode in which such a call was made."""
        self._told: dict[tuple[CodeType, int], tuple[int, Ref | None]] = {}
        """Such calls -> the update and the loader they were told of last."""
        self._look = stream.fenced("functional dropout", self._called)

    def always(self, patches: Patches) -> None:
        """Nothing is needed lightly; what was seen while others listened is forgotten."""
        self._untold.clear()
        self._told.clear()
        self._trained.clear()

    def in_full(self, patches: Patches) -> None:
        """Replace torch's functions wherever they were imported to."""
        for function in FUNCTIONS:
            patches.swap(function, self._replacement)  # pyright: ignore[reportArgumentType]

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program, untold, look = self._stream, self._program, self._untold, self._look

        def dropout(*args: Any) -> Any:
            if args[TRAINING] is True and stream.on and program.in_forward and not _is_compiling():
                frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                if untold.get((frame.f_code, frame.f_lasti)) != "" and not program.elsewhere():
                    look(frame, args[1])
            return original(*args)

        return dropout

    def _called(self, frame: FrameType, probability: Any) -> None:
        call = frame.f_code, frame.f_lasti
        function = self._untold.get(call)
        if function is None:
            function = self._untold[call] = _untold(frame)
        if not function or type(probability) not in (int, float) or not probability > 0:
            return
        moment = self._stream.update, self._program.loader
        if self._told.get(call) == moment:
            return
        module = _around(frame)
        if module is None:
            return
        if module.training:
            self._trained.add(module)
        elif module in self._trained:
            self._told[call] = moment
            self._tell(call, module, function, float(probability))

    def _tell(self, call: tuple[CodeType, int], module: nn.Module, function: str, probability: float) -> None:
        self._stream.emit(
            DropoutForced,
            Place(*call),
            module=self._stream.registry.of(module),
            function=function,
            probability=probability,
        )


def _around(frame: FrameType | None) -> nn.Module | None:
    """Return the module within whose forward a frame runs, the innermost."""
    while frame is not None:
        if frame.f_code.co_name == "forward":
            return owner_of(frame)
        frame = frame.f_back
    return None


def _untold(frame: FrameType) -> str:
    """Return the name of the function a frame is just calling, if it is one of torch's and not told the mode."""
    call = _call(frame) if is_users(frame.f_code) else None
    known = None if call is None else _named(call.func, frame)
    if call is None or not any(known is function for function in FUNCTIONS):
        return ""
    told = {word.arg for word in call.keywords}
    if told & {"training", None} or len(call.args) > TRAINING or any(isinstance(a, ast.Starred) for a in call.args):
        return ""
    return known.__name__


def _call(frame: FrameType) -> ast.Call | None:
    """Return the call a frame is at, read from its source; None where that cannot be had."""
    line, last, begin, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if line is None or last is None or begin is None or end is None:
        return None
    lines = [text.encode() for text in linecache.getlines(frame.f_code.co_filename, frame.f_globals)[line - 1 : last]]
    if len(lines) != last - line + 1:
        return None
    lines[-1] = lines[-1][:end]  # columns count bytes
    lines[0] = lines[0][begin:]
    try:
        found = ast.parse("(" + b"".join(lines).decode() + "\n)", mode="eval").body
    except (SyntaxError, UnicodeDecodeError):  # a call over several lines may be said to begin at its last name
        return None
    return found if isinstance(found, ast.Call) else None


def _named(node: ast.expr, frame: FrameType) -> Any:
    """Return what a name, or one within modules, stands for in a frame; None where it is not that plain."""
    if isinstance(node, ast.Attribute):
        inside = _named(node.value, frame)
        return vars(inside).get(node.attr) if isinstance(inside, ModuleType) else None
    code = frame.f_code
    if not isinstance(node, ast.Name) or node.id in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        return None
    return frame.f_globals.get(node.id)
