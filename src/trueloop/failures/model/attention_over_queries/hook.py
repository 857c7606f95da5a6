"""Follows the dimensions of attention weights in the graph of a loss, from their product with values to their scores.

Only shapes are read, so this works on every device, and with saved-tensor hooks.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

from torch import Tensor

from trueloop.failures.model.attention_over_queries import AttentionRead
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.graph_leaves import graph_users
from trueloop.tracing.losses import operation_name
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.running_code import user_modules
from trueloop.tracing.saved_tensors import result_shape
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

MAX_NODES: Final = 6000  # nodes of a graph; larger ones are read up to here
MAX_READS: Final = 6  # backward passes that are read
MAX_STEPS: Final = 32  # nodes between a product and a softmax
SAME_SHAPE_VIEWS: Final = frozenset(("Alias", "Clone", "ToCopy"))
RESHAPES: Final = frozenset(
    ("Reshape", "ReshapeAlias", "Squeeze", "UnsafeView", "Unsqueeze", "View", "Expand", "Permute", "T", "Transpose")
)
SCALINGS: Final = frozenset(("Mul", "Div", "MaskedFill", "NativeDropout", "Where"))
"""What may be done to weights after the softmax, by numbers without a graph."""
SCORE_CHANGES: Final = SCALINGS | {"Add", "Sub", "Tanh", "Clamp", "ClampMin", "ClampMax"}
SOFTMAX_USERS: Final = SAME_SHAPE_VIEWS | RESHAPES | SCALINGS | {"Bmm", "Mm", "Index", "Select", "Slice"}
BATCHED: Final = {"Bmm": (0, 1), "Mm": (0, 1), "Baddbmm": (1, 2), "Addmm": (1, 2)}
"""Product of matrices -> the numbers of its two factors among its inputs."""

Shape = tuple[int, ...]


class _Operand(NamedTuple):
    """A tensor in the graph with the positions of two of its dimensions."""

    node: Any
    summed: int
    """The dimension that a product sums over."""
    row: int
    """The dimension of the product's own rows."""


class AttentionWeights(Hook):
    """Emits `AttentionRead`.

    Cost: 1 us for each node of the graphs of the first 6 backward passes.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (AttentionRead,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._reads = 0
        self._read = stream.isolated_inner("attention weights", self._on_backward)

    def install_always(self, patches: Patches) -> None:
        """Receive the roots of backward passes."""
        self._reads = 0
        self._program.on_backward_start.append(self._read)

    def _on_backward(self, roots: Sequence[Tensor]) -> None:
        if self._reads >= MAX_READS:
            return
        self._reads += 1
        users = graph_users([root.grad_fn for root in roots], MAX_NODES)
        attentions = [each for node in users if _name(node) in ("Bmm", "Mm") and (each := _attention(node, users))]
        softmaxes = [node for node in users if _name(node) == "Softmax"]
        attentions += [each for node in softmaxes if (each := _single_scores(node) or _over_samples(node, users))]
        if attentions:
            wrong = tuple(dict.fromkeys(each for each in attentions if each[0]))
            files = (location.source_location.path,) if (location := user_location()) else ()
            files = tuple(dict.fromkeys((*files, *user_modules().values()))) if wrong else ()
            self._stream.emit(AttentionRead(location=location, wrong=wrong, files=files))


def _name(node: Any) -> str:
    return operation_name(node.name())


def _attention(product: Any, users: dict[Any, list[Any]]) -> tuple[str, int, int, int, int] | None:
    """Return what the attention weights in a product are normalised over; "" = the keys, None = no attention."""
    weights, shape = product.next_functions[0][0], _factor_shape(product, 0)
    if weights is None or shape is None:
        return None
    operand = _Operand(weights, len(shape) - 1, len(shape) - 2)
    softmax = _to_softmax(operand, users)
    if softmax is None:
        return None
    scores, dimensions = softmax.node.next_functions[0][0], len(result_shape(softmax.node) or ())
    found = _to_product(_Operand(scores, softmax.summed, softmax.row)) if scores is not None else None
    if found is None:
        return None
    over = _signed(softmax.node._saved_dim, dimensions)  # noqa: SLF001
    shape = result_shape(softmax.node) or ()
    size = shape[over]
    kind = "queries" if over == softmax.row else "samples of the batch" if over == 0 else "heads"
    if over == softmax.summed:
        return "", over, over, dimensions, size
    transposed = over == softmax.row and softmax.summed < softmax.row
    return None if transposed or shape[softmax.summed] == 1 else (kind, over, softmax.summed, dimensions, size)


def _single_scores(softmax: Any) -> tuple[str, int, int, int, int] | None:
    """Return the attention of a softmax over the only score that a linear layer gives for each of [B, T, 1]."""
    shape = result_shape(softmax)
    if shape is None or len(shape) != 3 or shape[2] != 1 or shape[1] == 1:
        return None
    over = _signed(softmax._saved_dim, 3)  # noqa: SLF001
    return ("scores", over, 1, 3, 1) if over == 2 and _is_of_linear(softmax, math.prod(shape)) else None


def _over_samples(softmax: Any, users: dict[Any, list[Any]]) -> tuple[str, int, int, int, int] | None:
    """Return the attention of a softmax over the batch of the scores [B, T] or [B, T, 1], if the sum is over [T].

    The scores may also be [T, B] or [T, B, 1].
    """
    shape = result_shape(softmax)
    if shape is None or len(shape) not in (2, 3) or shape[2:] not in ((), (1,)) or min(shape[:2]) < 2:
        return None
    over = _signed(softmax._saved_dim, len(shape))  # noqa: SLF001
    if over < 2 and _is_of_linear(softmax, math.prod(shape)) and _sums_positions(softmax, shape, users, 1 - over):
        return "samples of the batch", over, 1 - over, len(shape), shape[over]
    return None


def _sums_positions(softmax: Any, shape: Shape, users: dict[Any, list[Any]], positions: int) -> bool:
    """Return True if weights of the shape [B, T] or [B, T, 1] are used once, in a sum over [T] of each sample.

    Args:
        softmax: the node that makes the weights.
        shape: their shape.
        users: each node of the graph -> the nodes that use its result.
        positions: the dimension of the positions; 0 for weights of the shape [T, B], which a product does not add up.
    """
    node = softmax
    for _ in range(MAX_STEPS):
        above = users.get(node, ())
        if len(above) != 1:
            return False
        before, node = result_shape(node) or (), above[0]
        name, after = _name(node), result_shape(node) or ()
        if name == "Sum" and hasattr(node, "_saved_dim"):
            summed = {_signed(each, len(before)) for each in node._saved_dim}  # noqa: SLF001
            return positions in summed and 1 - positions not in summed and len(before) > 2 - positions
        if name == "Bmm":
            return positions == 1
        is_turned = name == "Transpose" and after[:1] == shape[:1]
        if not is_turned and (name not in SAME_SHAPE_VIEWS | RESHAPES | SCALINGS or after[:2] != shape[:2]):
            return False
    return False


def _is_of_linear(softmax: Any, count: int) -> bool:
    """Return True if each score of a softmax is the single output of a linear layer."""
    node = softmax.next_functions[0][0]
    for _ in range(MAX_STEPS):
        shape = () if node is None else result_shape(node)
        if node is None or not shape or math.prod(shape) != count:
            return False
        if _name(node) in ("Addmm", "Mm"):
            return shape[-1] == 1
        below = [each for each, _ in node.next_functions if each is not None and not hasattr(each, "variable")]
        if len(below) != 1 or _name(node) not in SAME_SHAPE_VIEWS | RESHAPES | SCORE_CHANGES:
            return False
        node = below[0]
    return False


def _to_softmax(operand: _Operand, users: dict[Any, list[Any]]) -> _Operand | None:
    """Follow weights back to the softmax that made them, if they are used for nothing else on the way."""
    current: _Operand | None = operand
    for _ in range(MAX_STEPS):
        if current is None or any(_name(each) not in SOFTMAX_USERS for each in users.get(current.node, ())):
            return None
        name = _name(current.node)
        if name == "Softmax":
            return current
        below = [each for each, _ in current.node.next_functions if each is not None]
        if len(below) != 1 or name not in SAME_SHAPE_VIEWS | RESHAPES | SCALINGS:
            return None
        current = _before(current, below[0])
    return None


def _to_product(operand: _Operand) -> _Operand | None:
    """Follow scores back to a product of two tensors that are not parameters, if its rows and columns are theirs."""
    pending: list[_Operand | None] = [operand]
    for _ in range(MAX_STEPS):
        current = pending.pop(0) if pending else None
        if current is None:
            if not pending:
                return None
            continue
        name, shape = _name(current.node), result_shape(current.node)
        factors = [current.node.next_functions[index][0] for index in BATCHED.get(name, ())]
        if factors and shape:
            matrix = {len(shape) - 1, len(shape) - 2}
            if {current.summed, current.row} == matrix and not any(map(_is_parameter, factors)):
                return current
        elif name in SAME_SHAPE_VIEWS | RESHAPES | SCORE_CHANGES:
            pending += [_before(current, below) for below, _ in current.node.next_functions if below is not None]
    return None


def _is_parameter(node: Any) -> bool:
    """Return True for a factor that is a parameter in another shape, or data without a graph."""
    for _ in range(MAX_STEPS):
        if node is None or getattr(node, "variable", None) is not None:
            return True
        if _name(node) not in SAME_SHAPE_VIEWS | RESHAPES:
            return False
        node = node.next_functions[0][0]
    return False


def _factor_shape(product: Any, index: int) -> Shape | None:
    maker, number = product.next_functions[index]
    return None if maker is None else result_shape(maker, number)


def _before(operand: _Operand, below: Any) -> _Operand | None:
    """Return the tensor from which a node made an operand, with the same two dimensions; None if they are not there."""
    after, before = result_shape(operand.node), result_shape(below)
    if after is None or before is None:
        return None
    positions = [_position_before(operand.node, after, before, each) for each in (operand.summed, operand.row)]
    if positions[0] is None or positions[1] is None:
        return None
    return _Operand(below, positions[0], positions[1])


def _position_before(node: Any, after: Shape, before: Shape, position: int) -> int | None:
    """Return where a dimension of a node's result is in the node's input; None if it is merged, split or new."""
    name = _name(node)
    if after[position] == 1:
        return None
    if name == "Permute":
        return _signed(node._saved_dims[position], len(after))  # noqa: SLF001
    if name in ("T", "Transpose"):
        first, second = (0, 1) if name == "T" else (node._saved_dim0, node._saved_dim1)  # noqa: SLF001
        pair = _signed(first, len(after)), _signed(second, len(after))
        return {pair[0]: pair[1], pair[1]: pair[0]}.get(position, position)
    if name not in RESHAPES or name == "Expand":
        aligned = position - len(after) + len(before)
        return aligned if aligned >= 0 and before[aligned] == after[position] else None
    return _position_in_reshape(after, before, position)


def _position_in_reshape(after: Shape, before: Shape, position: int) -> int | None:
    """Return the dimension of a tensor that a dimension of its reshaped form consists of; None if of no single one."""
    count = 1
    for size in after[:position]:
        count *= size
    earlier = 1
    for index, size in enumerate(before):
        if earlier == count and size == after[position]:
            return index
        earlier *= size
    return None


def _signed(dimension: int, dimensions: int) -> int:
    """Return a saved dimension, which may be negative and stored without a sign, as an index."""
    return (dimension if dimension < 1 << 63 else dimension - (1 << 64)) % dimensions


HOOK: Final = AttentionWeights
