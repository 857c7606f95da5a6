"""Reads the sizes over which ``torch.nn.functional`` applies a softmax, during full tracing."""

from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from trueloop.failures.loss.single_class import SoftmaxApplied
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import in_transform
from trueloop.tracing.user_location import user_location

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class SoftmaxSizes(Hook):
    """Emits `SoftmaxApplied` for scores of the shape (N, C) that require a gradient.

    Cost: 3 us for each softmax over a tensor of two dimensions.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (SoftmaxApplied,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._read = stream.isolated("dimensions of softmax", self._on_call)

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``softmax`` and ``log_softmax``; ``nn.Softmax`` and ``nn.LogSoftmax`` call them too."""
        for function in (F.softmax, F.log_softmax):
            patches.swap_code(function, self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, read, name = self._stream, self._read, original.__name__

        def softmax(*args: Any) -> Any:
            result = original(*args)
            # This condition comes first, so that dynamo sees no other internal code.
            if not _is_compiling() and stream.active and stream.full_tracing:
                read(name, args[0], args[1])
            return result

        return softmax

    def _on_call(self, name: str, scores: Any, dim: Any) -> None:
        if isinstance(scores, Tensor) and scores.dim() == 2 and isinstance(dim, int) and not in_transform():
            size, other = scores.shape[dim], scores.shape[1 - dim % 2]
            if other > 1 and scores.requires_grad:
                self._stream.emit(SoftmaxApplied(location=user_location(), function=name, dim=dim, size=size))


HOOK: Final = SoftmaxSizes
