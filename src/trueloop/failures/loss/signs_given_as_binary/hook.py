"""Reads the targets of losses that expect 1 and -1, during full tracing."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from trueloop.failures.loss.signs_given_as_binary import SignTargetsRead
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import in_transform
from trueloop.tracing.user_location import user_location

LOSSES: Final = (F.cosine_embedding_loss, F.hinge_embedding_loss, F.margin_ranking_loss, F.soft_margin_loss)
MAX_TARGETS: Final = 1 << 16  # of one call; they take 0.2 ms

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class SignTargets(Hook):
    """Emits `SignTargetsRead` during full tracing.

    Cost: 20 us for each of these losses.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (SignTargetsRead,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._read = stream.isolated("targets of losses", self._on_loss)

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace PyTorch's loss functions."""
        for function in LOSSES:
            patches.swap_code(function, self._replacement)  # pyright: ignore[reportArgumentType]

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, read, name = self._stream, self._read, original.__name__
        position = list(inspect.signature(original).parameters).index("target")

        def loss(*args: Any) -> Any:
            result = original(*args)
            # This condition comes first, so that dynamo sees no other internal code.
            if not _is_compiling() and stream.active and stream.full_tracing:
                read(name, args[position])
            return result

        return loss

    def _on_loss(self, function: str, targets: Any) -> None:
        if type(targets) is not Tensor or not targets.is_cpu or targets.is_complex() or in_transform():
            return
        signs = targets.detach().flatten()[:MAX_TARGETS].sign()
        counts = tuple([int((signs == sign).sum()) for sign in (-1, 0, 1)])
        self._stream.emit(
            SignTargetsRead(location=user_location(), function=function, counts=(counts[0], counts[1], counts[2]))
        )


HOOK: Final = SignTargets
