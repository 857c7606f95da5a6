"""Finds products and cosine similarities of matrices with normalised columns, in the graphs of losses."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from torch import Tensor

from trueloop.failures.loss.normalised_over_batch import MIN_TIMES, ColumnsNormalised
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.graph_leaves import graph_users
from trueloop.tracing.losses import operation_name
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.saved_tensors import result_shape
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

MAX_READS: Final = 6  # backward passes that are read
MAX_NODES: Final = 4000  # nodes of a graph
_TRANSPOSES: Final = ("Permute", "T", "Transpose")
_SELECTIONS: Final = ("Index", "Slice", "Split")


class NormalisedColumns(Hook):
    """Emits `ColumnsNormalised`.

    Cost: 1 us for each node of the graphs of 6 backward passes.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (ColumnsNormalised,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._reads = self._found = 0
        self._read = stream.isolated_inner("normalised columns", self._on_backward)

    def install_always(self, patches: Patches) -> None:
        """Receive the roots of backward passes."""
        self._reads = self._found = 0
        self._program.on_backward_start.append(self._read)

    def _on_backward(self, roots: Sequence[Tensor]) -> None:
        if self._reads >= MAX_READS or self._found >= MIN_TIMES:
            return
        self._reads += 1
        for node in graph_users([root.grad_fn for root in roots], MAX_NODES):
            name = operation_name(node.name())
            shape = _of_product(node) if name == "Mm" else _of_similarity(node) if name == "Sum" else None
            if shape is not None:
                self._found += 1
                operation = "matmul" if name == "Mm" else "cosine_similarity"
                self._stream.emit(ColumnsNormalised(location=user_location(), operation=operation, shape=shape))
                return


def _of_product(node: Any) -> tuple[int, ...] | None:
    """Return the shape of z in ``z @ other.T`` if both have normalised columns and get them from the same dimension."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for operand, _ in node.next_functions:
        maker, transposed = operand, False
        while maker is not None and operation_name(maker.name()) in (*_TRANSPOSES, *_SELECTIONS):
            transposed ^= operation_name(maker.name()) in _TRANSPOSES
            maker = maker.next_functions[0][0]
        shape = None if maker is None else _normalised_shape(maker)
        if shape is None:
            return None
        found.append((int(transposed), shape))
    return found[0][1] if [transposed for transposed, _ in found] == [0, 1] else None


def _of_similarity(node: Any) -> tuple[int, ...] | None:
    """Return the shape of the inputs of ``cosine_similarity(a, b, dim=0)``, which divides by a clone of the norm."""
    product = node.next_functions[0][0]
    if product is None or operation_name(product.name()) != "Mul" or not _is_first(getattr(node, "_saved_dim", ())):
        return None
    makers = [each for each, _ in product.next_functions if each is not None]
    shapes = [_normalised_shape(each, "Clone") for each in makers]
    return shapes[0] if shapes and all(shapes) else None


def _normalised_shape(node: Any, between: str = "") -> tuple[int, ...] | None:
    """Return the shape of a matrix with two or more rows and columns if it is divided by its norms along dim 0."""
    shape = result_shape(node)
    if operation_name(node.name()) != "Div" or shape is None or len(shape) != 2 or min(shape) < 2:
        return None
    makers = [each for each, _ in node.next_functions]
    norm = makers[1] if len(makers) == 2 else None
    names = list[str]()
    while norm is not None and operation_name(norm.name()) in ("Clone", "ClampMin", "Expand", "Add"):
        names.append(operation_name(norm.name()))
        norm = norm.next_functions[0][0]
    if norm is None or operation_name(norm.name()) != "LinalgVectorNorm" or (between and between not in names):
        return None
    is_centred = makers[0] is not None and operation_name(makers[0].name()) == "Sub"
    return shape if _is_first(getattr(norm, "_saved_dim", ())) and not is_centred else None


def _is_first(dims: Any) -> bool:
    """Return True for the first of two dimensions; a negative one is stored as an unsigned number."""
    return tuple(dims) in ((0,), (2**64 - 2,))


HOOK: Final = NormalisedColumns
