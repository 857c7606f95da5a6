"""Reads the targets of CTC losses."""

from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from trueloop.failures.loss.blank_in_targets import CtcTargetsRead
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import in_transform
from trueloop.tracing.user_location import user_location

MAX_CALLS: Final = 64  # calls whose targets are read

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class CtcLosses(Hook):
    """Emits `CtcTargetsRead`.

    Cost: 20 us for each of the first 64 losses.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (CtcTargetsRead,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._calls = 0
        self._read = stream.isolated("targets of CTC losses", self._on_loss)

    def install_always(self, patches: Patches) -> None:
        """Start to count calls."""
        self._calls = 0

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``torch.ctc_loss``, which all losses call."""
        patches.replace(torch, "ctc_loss", self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def ctc_loss(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            if not _is_compiling() and self._stream.active and self._calls < MAX_CALLS and len(args) >= 4:
                self._calls += 1
                blank = args[4] if len(args) > 4 else options.get("blank", 0)
                self._read(args[0], args[1], args[3], blank)
            return result

        return ctc_loss

    def _on_loss(self, log_probs: Tensor, targets: Any, lengths: Any, blank: int) -> None:
        if type(targets) is not Tensor or not targets.is_cpu or targets.dim() not in (1, 2) or in_transform():
            return
        if isinstance(lengths, Tensor) and (type(lengths) is not Tensor or not lengths.is_cpu):
            return
        counts = torch.as_tensor(lengths).flatten()
        if targets.dim() == 1:
            labels = targets[: int(counts.sum())]
        else:
            labels = targets[torch.arange(targets.shape[1]) < counts[:, None]]
        last = log_probs.shape[-1] - 1
        self._stream.emit(
            CtcTargetsRead(
                location=user_location(),
                blank=blank,
                blanks=int((labels == blank).sum()),
                targets=labels.numel(),
                unused_last=None if blank == last or bool((labels == last).any()) else last,
            )
        )


HOOK: Final = CtcLosses
