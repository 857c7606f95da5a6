"""Traces calls of ``model.forward(x)`` that should be ``model(x)``.

A call of ``forward`` cannot be hooked, but the submodules that it calls can. While they run, the ``forward`` of the
module is on the stack without its ``__call__``.
"""

import sys
from types import CodeType, FrameType
from typing import Any, Final

from torch import nn

from trueloop.core.findings import CodePosition
from trueloop.failures.model.forward_bypassed import ForwardBypassed
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import ModelCalled
from trueloop.tracing.frame_modules import owner_of, runs_method_of
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import ISOLATED_CALLER_DEPTH, is_user_code

HOOK_KINDS: Final = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
FIRST_CALLS: Final = 4  # first calls at a line, which are all checked
CALL_INTERVAL: Final = 16  # calls between two checks after the first calls at a line
MAX_LINES: Final = 1024  # lines whose calls are counted
_CALL: Final[CodeType] = getattr(nn.Module, "_call_impl").__code__  # noqa: B009 - private to torch
_RELEVANT_NAMES: Final = frozenset((_CALL.co_name, "forward", "<module>"))


class ForwardBypasses(Hook):
    """Emits `ForwardBypassed`; checks calls of outermost modules during full tracing.

    A line without a direct call of ``forward`` is checked less often after a few calls.

    Cost: 0.05 us for each frame on the stack up to the module level, and 10 us if ``forward`` was called directly.
    """

    emits = (ForwardBypassed,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        program.on_model_called.append(stream.isolated_inner("direct calls of forward", self._on_model_called))
        self._latest_call: tuple[CodeType, int, int] | None = None
        self._normal_calls: dict[CodePosition | None, int] = {}
        """Line that calls a model -> number of calls in a row without a direct call of ``forward``."""

    def install_full_tracing(self, patches: Patches) -> None:
        """Forget all lines, so that their first calls are checked again."""
        self._normal_calls.clear()

    def _on_model_called(self, event: ModelCalled) -> None:
        """Check whether the module was called within a ``forward`` that the program called directly."""
        if not event.has_graph or event.recomputed:
            return
        location = event.location
        self._normal_calls[location] = normal = self._normal_calls.get(location, -1) + 1
        if (normal >= FIRST_CALLS and normal % CALL_INTERVAL) or not event.grad_mode:
            return
        if len(self._normal_calls) > MAX_LINES:
            self._normal_calls.clear()
        for frame in reversed(_forward_frames()):  # outermost first
            caller = frame.f_back
            if caller is None or not is_user_code(caller.f_code):
                return
            call = (caller.f_code, caller.f_lasti, self._stream.backward_count)
            if call == self._latest_call:
                return
            owner = owner_of(frame)
            if owner is not None:
                self._latest_call = call
                self._normal_calls.pop(location, None)
                self._report(owner, caller)
                return

    def _report(self, owner: nn.Module, caller: FrameType) -> None:
        hooks = tuple(kind for name, kind in HOOK_KINDS.items() if getattr(owner, name, None))
        if not hooks or runs_method_of(owner, caller):
            return
        registry = self._stream.registry
        self._stream.emit(
            ForwardBypassed(
                location=CodePosition(caller.f_code, caller.f_lasti),
                model=registry.ref(owner),
                parameters=registry.refs(owner.parameters()),
                hooks=hooks,
                also_called_normally=any(
                    owner is each for model, _ in self._program.models.items() for each in model.modules()
                ),
            )
        )


def _forward_frames() -> list[FrameType]:
    """Return the frames of functions named ``forward``, innermost first; [] if a module's ``__call__`` is running.

    The frames of this function and of the isolated handler that calls it are skipped.
    """
    found: list[FrameType] = []
    frame: Any = sys._getframe(ISOLATED_CALLER_DEPTH)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_name in _RELEVANT_NAMES:
            if frame.f_code is _CALL:
                return []
            if frame.f_code.co_name == "forward":
                found.append(frame)
            elif frame.f_code.co_name == "<module>":
                break
        frame = frame.f_back
    return found


HOOK: Final = ForwardBypasses
