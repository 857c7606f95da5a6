"""Starts full tracing where the program switches gradients off now and then, as for an evaluation."""

import sys
from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch

from trueloop.core.findings import CodePosition
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code

MIN_PAUSE: Final = 32  # updates since the same line switched them off before; a moving average does so at every update
MAX_REQUESTS: Final = 8  # times that one line starts full tracing
MAX_LINES: Final = 256


class GradModes(Hook):
    """Watches ``torch.no_grad`` and ``torch.inference_mode``. Cost: 0.5 us."""

    emits: ClassVar[tuple[type[Event], ...]] = ()

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._lines: dict[CodePosition, tuple[int, int]] = {}
        """Line -> number of updates before it last switched gradients off, and of its requests for full tracing."""

    def install_always(self, patches: Patches) -> None:
        """Replace the methods that switch gradients off."""
        self._lines.clear()
        patches.replace(torch.no_grad, "__enter__", self._replacement)
        patches.replace(torch.inference_mode, "__enter__", self._replacement)

    def _replacement(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        stream, program, lines = self._stream, self._program, self._lines

        def __enter__(mode: Any) -> None:  # noqa: N807
            original(mode)
            if not stream.active or program.is_other_thread():
                return
            frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            if frame.f_code.co_name == "decorate_context" and frame.f_back is not None:  # @torch.no_grad()
                frame = frame.f_back
            key = CodePosition(frame.f_code, frame.f_lasti)
            before, requests = lines.get(key, (-MIN_PAUSE, 0))
            if key not in lines and (len(lines) >= MAX_LINES or not is_user_code(frame.f_code)):
                return
            if stream.update - before >= MIN_PAUSE and requests < MAX_REQUESTS and not stream.full_tracing:
                requests += 1
                stream.request_full_tracing()
            lines[key] = stream.update, requests
            program.gradients_off_at = key

        return __enter__
