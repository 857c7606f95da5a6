"""Train and eval mode, as the program sets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch
from torch import nn

from trueloop.tracing.events import Event, ModeSet
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

WAKES: Final = 12  # times a change of mode is worth a closer look

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class Modes:
    """Tells `ModeSet`, always; and has the run watched in full for a while when a mode has changed.

    ``eval()`` calls ``train(False)``, and both pass on to every module below: only the outermost call is told.

    Cost: 5 us for each call by the program, and 0.3 us for each module below.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (ModeSet,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._inside = False
        self._wakes = 0
        self._look = stream.isolated("modes", self._modes)
        self._tell = stream.isolated("modes", self._set)

    def install_always(self, patches: Patches) -> None:
        """Replace ``nn.Module.train``."""
        self._wakes = 0
        patches.replace(nn.Module, "train", self._replacement)

    def install_full_tracing(self, patches: Patches) -> None:
        """Nothing more is needed."""

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream = self._stream

        def train(module: nn.Module, mode: bool = True) -> nn.Module:
            if not stream.active or _is_compiling() or self._program.is_other_thread() or self._inside:
                return original(module, mode)
            changed = self._look(module, mode)
            self._inside = True
            try:
                result = original(module, mode)
            finally:
                self._inside = False
            self._tell(module, mode, changed)
            return result

        return train

    def _modes(self, module: nn.Module, mode: bool) -> bool:
        return any(each.training != mode for each in module.modules())

    def _set(self, module: nn.Module, mode: bool, changed: bool | None) -> None:
        registry = self._stream.registry
        self._stream.emit(
            ModeSet(
                location=user_location(),
                module=registry.ref(module),
                training=bool(mode),
                changed=bool(changed),
                parameters=registry.refs(module.parameters()),
            )
        )
        if changed and self._wakes < WAKES:
            self._wakes += 1
            self._stream.request_full_tracing()
