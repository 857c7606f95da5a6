"""Calls of ``model.forward(x)`` that should be calls of the model.

Such a call leaves no trace of its own. But the modules within the model are then called as if each were a whole model,
and the stack at that moment shows the ``forward`` of another module, which nobody has called.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch import nn

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import ForwardBypassed
from trueloop.tracing.frame_modules import owner_of, runs_method_of
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import ISOLATED_CALLER_DEPTH, is_user_code

HOOKS: Final = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
OFTEN: Final = 4  # calls at a line that are looked at each, where nothing is found
SELDOM: Final = 16  # of those that follow one is
MOST_LINES: Final = 1024  # that are told apart
_CALL: Final[CodeType] = getattr(nn.Module, "_call_impl").__code__  # noqa: B009 - private to torch
_TELLING: Final = frozenset((_CALL.co_name, "forward", "<module>"))


class ForwardBypasses:
    """Tells `ForwardBypassed`; asked after each call of what looks like a whole model, while watching in full.

    A line behind which nothing of the kind was found for some calls is looked at seldom from then on.

    Cost: 0.05 us for each frame on the stack up to the module level, and 10 us where ``forward`` was called directly.
    """

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._looked: tuple[CodeType, int, int] | None = None
        self._clean: dict[CodePosition | None, int] = {}
        """A line that calls a model -> calls in a row that were in order."""

    def begin(self) -> None:
        """Look at every line often again: this is another stretch, or another program."""
        self._clean.clear()

    def look(self, place: CodePosition | None) -> None:
        """Look who called the module that has just run at a line."""
        self._clean[place] = clean = self._clean.get(place, -1) + 1
        if (clean >= OFTEN and clean % SELDOM) or not torch.is_grad_enabled():
            return
        if len(self._clean) > MOST_LINES:
            self._clean.clear()
        for frame in reversed(_forwards()):  # the outermost first
            by = frame.f_back
            if by is None or not is_user_code(by.f_code):
                return
            moment = (by.f_code, by.f_lasti, self._stream.backward_count)
            if moment == self._looked:
                return
            owner = owner_of(frame)
            if owner is not None:
                self._looked = moment
                self._clean.pop(place, None)
                self._judge(owner, by)
                return

    def _judge(self, owner: nn.Module, by: FrameType) -> None:
        hooks = tuple(words for name, words in HOOKS.items() if getattr(owner, name, None))
        if not hooks or runs_method_of(owner, by):
            return
        registry = self._stream.registry
        self._stream.emit(
            ForwardBypassed(
                location=CodePosition(by.f_code, by.f_lasti),
                model=registry.ref(owner),
                parameters=registry.refs(owner.parameters()),
                hooks=hooks,
                also_called_normally=any(
                    owner is each for model, _ in self._program.models.items() for each in model.modules()
                ),
            )
        )


def _forwards() -> list[FrameType]:
    """Return the frames of functions with this name, innermost first; none where a module was called around them.

    Called by `look`, which is guarded within something fenced: the frames up to there are all ours.
    """
    found: list[FrameType] = []
    frame: Any = sys._getframe(ISOLATED_CALLER_DEPTH)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_name in _TELLING:
            if frame.f_code is _CALL:
                return []
            if frame.f_code.co_name == "forward":
                found.append(frame)
            elif frame.f_code.co_name == "<module>":
                break
        frame = frame.f_back
    return found
