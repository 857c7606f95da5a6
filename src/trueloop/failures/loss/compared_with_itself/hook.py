"""Reads square matrices of similarities in the graphs of losses."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from trueloop.failures.loss.compared_with_itself import MIN_TIMES, SimilaritiesRead
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.graph_leaves import graph_users
from trueloop.tracing.losses import LOSS_CALL_KEY, VIEWS, operation_name
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.saved_tensors import result_shape, saved_tensor
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

MAX_READS: Final = 6  # backward passes that are read
MAX_NODES: Final = 4000  # nodes of a graph
MIN_ROWS: Final = 8
MAX_ROWS: Final = 2048  # reading so many takes 30 ms
TOLERANCE: Final = 1e-4
SELECTIONS: Final = frozenset(("Diagonal", "DiagonalCopy", "Gather", "Index", "MaskedSelect", "Mul", "Select", "Slice"))
"""Operations that take the positives out of a matrix."""

Users = dict[Any, list[Any]]


class _Found(NamedTuple):
    """A matrix of whose exponentials a loss takes the sum of each row."""

    operation: str
    matrix: Tensor
    node: Any
    """The node of the loss, or of the sum."""


class SelfSimilarity(Hook):
    """Emits `SimilaritiesRead`.

    Cost: 1 us for each node of the graphs of 6 backward passes, and 10 ms for each matrix of 1024 rows in them.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (SimilaritiesRead,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._reads = self._found = 0
        self._read = stream.isolated_inner("similarities", self._on_backward)

    def install_always(self, patches: Patches) -> None:
        """Receive the roots of backward passes."""
        self._reads = self._found = 0
        self._program.on_backward_start.append(self._read)

    def _on_backward(self, roots: Sequence[Tensor]) -> None:
        if self._reads >= MAX_READS or self._found >= MIN_TIMES:
            return
        self._reads += 1
        users = graph_users([root.grad_fn for root in roots], MAX_NODES)
        for each in (found for node in users for found in _matrices(node, users)):
            similar = _is_self_similarity(each.matrix)
            call = each.node.metadata.get(LOSS_CALL_KEY)
            self._found += similar
            self._stream.emit(
                SimilaritiesRead(
                    location=user_location(),
                    operation=each.operation,
                    samples=len(each.matrix) if similar else 0,
                    share=each.matrix.double().softmax(1).diagonal().mean().item() if similar else 0.0,
                    called_at=call and call.location,
                )
            )
            return


def _matrices(node: Any, users: Users) -> Iterator[_Found]:
    """Yield the matrix that an operation reads, if it is that of a loss with positives in the same matrix."""
    name = operation_name(node.name())
    if name == "NllLoss":
        logs, target = node.next_functions[0][0], saved_tensor(node, "target")
        result = _square(logs, "result") if logs is not None and operation_name(logs.name()) == "LogSoftmax" else None
        if result is not None and target is not None and target.is_cpu and has_storage(target):
            own = torch.arange(len(result)) == target if target.shape == (len(result),) else None
            if own is not None and not own.any():
                yield _Found("cross_entropy", result - result.diagonal().unsqueeze(1), node)
    elif name == "Logsumexp":
        matrix = _square(node, "self")
        if matrix is not None and _has_positives(node.next_functions[0][0], users, node):
            yield _Found("logsumexp", matrix, node)
    elif name == "Sum" and len(result_shape(node) or ()) in (1, 2):
        exponentials = node.next_functions[0][0]
        if exponentials is None or operation_name(exponentials.name()) != "Exp" or _is_reduced(node, users):
            return
        matrix = _square(exponentials, "result")
        makers = (exponentials, exponentials.next_functions[0][0])
        if matrix is not None and any(_has_positives(each, users, node) for each in makers):
            yield _Found("exp", matrix.log(), node)


def _square(node: Any, name: str) -> Tensor | None:
    """Return a saved tensor if it is a square matrix on the CPU."""
    values = saved_tensor(node, name)
    if values is None or not values.is_cpu or not has_storage(values) or values.dim() != 2:
        return None
    return values.detach() if values.shape[0] == values.shape[1] and MIN_ROWS <= len(values) <= MAX_ROWS else None


def _has_positives(node: Any, users: Users, reader: Any) -> bool:
    """Return True if elements of a matrix are selected from it too."""
    others = [each for each in users.get(node, ()) if each is not reader]
    return any(operation_name(each.name()) in SELECTIONS for each in others)


def _is_reduced(node: Any, users: Users) -> bool:
    """Return True if a sum is over all elements, or something is subtracted from it before its logarithm."""
    if (result_shape(node) or ()) in ((), (1, 1)):
        return True
    pending, seen = [node], {node}
    for each in pending:
        for user in users.get(each, ()):
            name = operation_name(user.name())
            if name in ("Sub", "Rsub"):
                return True
            if name not in ("Log", "Div") and name in VIEWS | {"Add"} and user not in seen:
                seen.add(user)
                pending.append(user)
    return False


def _is_self_similarity(matrix: Tensor) -> bool:
    """Return True for a symmetric matrix with the maximum of every row on the diagonal, and different values."""
    values = matrix.double()
    if not values.isfinite().all():
        return False
    diagonal = values.diagonal()
    spread = (values.max() - values.min()).item()
    is_largest = bool((values.amax(1) - diagonal <= TOLERANCE * spread).all())
    return spread > 0 and is_largest and bool((values - values.t()).abs().max() <= TOLERANCE * spread)


HOOK: Final = SelfSimilarity
