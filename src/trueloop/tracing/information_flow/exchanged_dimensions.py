"""Finds calls of ``view`` and ``reshape`` to the shape of a transposed tensor, which do not move the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueloop.tracing.events import ExchangedDimensions
from trueloop.tracing.information_flow.reruns import Operation
from trueloop.tracing.losses import LOSS_CALL_KEY, RESHAPES, LossNode, operation_name, parent

MAX_NODES: Final = 8  # operations between a model's output and a loss
_VIEWS: Final = ("view", "reshape")
_VIEW_NODES: Final = ("View", "UnsafeView", "ReshapeAlias")


def exchanged_in_model(operations: Sequence[Operation]) -> Iterator[ExchangedDimensions]:
    """Yield the calls within a run of a model."""
    for operation in operations:
        if operation.name in _VIEWS and operation.input_shapes and operation.results:
            before, after = operation.input_shapes[0], tuple(operation.results[0].shape)
            if size := exchanged_size(before, after):
                yield ExchangedDimensions(operation.location, operation.name, before, after, size)


def exchanged_before_loss(loss: LossNode) -> ExchangedDimensions | None:
    """Return the call between the model's output and a loss."""
    node: Any = loss.source
    for _ in range(MAX_NODES):
        name = operation_name(node.name()) if node is not None else ""
        if name not in RESHAPES and name != "LogSoftmax":
            return None
        before, metadata = getattr(node, "_saved_self_sym_sizes", None), getattr(node, "_input_metadata", ())
        if name in _VIEW_NODES and before is not None and len(metadata) == 1:
            shapes = tuple(map(int, before)), tuple(map(int, metadata[0].shape))
            if size := exchanged_size(*shapes):
                call = loss.core.metadata.get(LOSS_CALL_KEY)
                return ExchangedDimensions(call.location if call else None, "", *shapes, size)
        node = parent(node)
    return None


def exchanged_size(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """Return the size of a dimension that a reshape seems to move to another place; 0 if it moves none.

    Either the same sizes come in another order, as in (B, T, F) to (T, B, F), or a dimension is split or merged around
    another one, as in (B, T, H * D) to (B, H, T, D) and back.
    """
    before = tuple(size for size in before if size > 1)
    after = tuple(size for size in after if size > 1)
    while before and after and before[0] == after[0]:
        before, after = before[1:], after[1:]
    while before and after and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    if len(before) == len(after) > 1 and sorted(before) == sorted(after):
        return before[0]
    if len(before) == 2 and len(after) == 3:
        return _moved(after, before)
    if len(before) == 3 and len(after) == 2:
        first, second, last = before  # also (H, W, C) to (C, H * W)
        return last if after == (last, first * second) and last != first else _moved(before, after)
    return 0


def _moved(split: Sequence[int], joined: Sequence[int]) -> int:
    """Return T for the sizes (H, T, D) and (T, H * D)."""
    outer, middle, inner = split
    return middle if joined == (middle, outer * inner) and outer != middle else 0
