"""Counts the indices that embeddings with a ``padding_idx`` get, during full tracing."""

from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from trueloop.failures.model.real_index_padded import PaddedIndicesRead
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import in_transform
from trueloop.tracing.user_location import user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_INDICES: Final = 1 << 14  # of one call
MAX_CALLS: Final = 64  # of one embedding
MAX_SHARE_AT_POSITION: Final = 0.6  # of the paddings that end before another token

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class PaddedIndices(Hook):
    """Emits `PaddedIndicesRead` during full tracing, for the first calls of each embedding.

    Cost: 60 us for each call.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (PaddedIndicesRead,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._calls = WeakIdDict[Tensor, int]()
        self._read = stream.isolated("indices of embeddings", self._on_call)

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``torch.nn.functional.embedding``."""
        patches.swap_code(F.embedding, self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, read = self._stream, self._read

        def embedding(*args: Any) -> Any:
            result = original(*args)
            # This condition comes first, so that dynamo sees no other internal code.
            if not _is_compiling() and args[2] is not None and stream.active and stream.full_tracing:
                read(args[0], args[1], args[2])
            return result

        return embedding

    def _on_call(self, indices: Any, weight: Any, padding_idx: int) -> None:
        is_read = type(indices) is Tensor and indices.is_cpu and 0 < indices.numel() <= MAX_INDICES
        if not is_read or not isinstance(weight, Tensor) or not weight.requires_grad or in_transform():
            return
        calls = self._calls.get(weight) or 0
        if calls >= MAX_CALLS or self._program.is_other_thread():
            return
        self._calls.put(weight, calls + 1)
        padding_idx %= len(weight)
        is_padding = indices.detach() == padding_idx
        is_single = indices.dim() < 2 or indices.shape[-1] == 1
        sequences = padded = within = 0
        if is_single:
            padded = int(is_padding.sum())
        elif min(indices.shape[0], indices.shape[-1]) > 2:
            # the time is the last dimension, or the first one: that in which padding stands at the ends
            layouts = [is_padding.movedim(dim, -1).reshape(-1, is_padding.shape[dim]) for dim in (-1, 0)]
            rows = min(layouts, key=lambda each: _count_within(each) / len(each))
            sequences = len(rows)
            padded = int((rows[:, 0] | rows[:, -1]).sum())
            within = _count_within(rows)
        self._stream.emit(
            PaddedIndicesRead(
                location=user_location(), weight=self._stream.registry.ref(weight), padding_idx=padding_idx,
                singles=indices.numel() if is_single else 0, sequences=sequences, padded=padded, within=within,
                has_gradients=torch.is_grad_enabled(),
            )
        )  # fmt: skip


def _count_within(rows: Tensor) -> int:
    """Return the number of sequences with padding between other tokens; 0 if it all ends at one position.

    Sequences that consist of parts, each padded on its own, have padding that ends where a part ends.

    Args:
        rows: where the padding is, of shape (sequences, length).
    """
    follows_token = (~rows).cumsum(1) > 0
    ends = rows[:, :-1] & ~rows[:, 1:] & follows_token[:, :-1]
    by_position = ends.sum(0)
    is_part = int(by_position.max()) > MAX_SHARE_AT_POSITION * int(by_position.sum())
    return 0 if is_part else int(ends.any(1).sum())


HOOK: Final = PaddedIndices
