"""Reads PyTorch's losses from the graph of a backward pass.

Nothing is patched: each loss function makes a node of its own name (``NllLossBackward0``) or a small pattern of nodes,
however it was imported, wrapped or called. The search goes through arithmetic only (sums of losses, weights,
GradScaler's factor, means over samples), never into a model, so it is short. A loss within a compiled region is one
opaque node and is not found. A hand-written loss is found only if it computes exactly what PyTorch's loss does.

Saved tensors are read without unpacking, so the program's saved-tensor hooks (offloading, checkpointing) do not run.
"""

import math
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import LossRecord
from trueloop.tracing.saved_tensors import input_shape, result_shape, saved_tensor, unreadable_reason
from trueloop.tracing.torch_modes import modes_disabled

Shape = tuple[int, ...]
MAX_READ: Final = 1 << 16  # values of an input that are read
MAX_LOG_SUM: Final = 0.05  # of log-probabilities over the classes, as bfloat16 rounds them
MIN_ROWS: Final = 4  # whose values sum to 1, before they count as a softmax
MAX_ROWS: Final = 4096  # rows; checking so many rows and columns takes about 10 ms
TOLERANCE: Final = 1e-4  # relative to the largest difference; allows float32 rounding, also of bfloat16 products


def find_pairwise_difference(shape: Shape, difference: Tensor | None) -> tuple[Shape, Shape] | None:
    """Return the shapes of prediction and target before broadcasting; None if they were not broadcast, or are on a GPU.

    If every row is the first row plus a constant, each prediction was compared with all targets.

    Args:
        shape: shape of the prediction.
        difference: prediction minus target, or target minus prediction.
    """
    if difference is None or difference.dim() != 2 or difference.device.type != "cpu":
        return None
    rows, columns = difference.shape
    if rows != columns or not 1 < rows <= MAX_ROWS or shape not in ((rows, 1), (rows,)):
        return None
    values = difference.detach()
    values = values if shape == (rows, 1) else values.t()
    changes = values - values[:, :1]
    largest = values.abs().max().item()
    if not (changes - changes[:1]).abs().max().item() <= TOLERANCE * largest:
        return None
    spread = changes[0].abs().max().item()
    if spread <= 10 * TOLERANCE * largest:  # equal targets prove nothing
        return None
    return shape, (rows,) if shape == (rows, 1) else (rows, 1)


MAX_NODES: Final = 48  # searched nodes, 0.3 us each: enough for a sum of twenty weighted losses
MAX_OPERATIONS: Final = 4
MAX_FACTORS: Final = 3  # of a discounted value
MAX_LEAF_NODES: Final = 400
LOSS_CALL_KEY: Final = "trueloop.loss"  # key of a `LossCall` in a node's metadata
REDUCTIONS: Final = ("none", "mean", "sum")
KINDS: Final = {
    "NllLoss": "nll",
    "NllLoss2D": "nll",
    "BinaryCrossEntropy": "bce",
    "BinaryCrossEntropyWithLogits": "bce_with_logits",
    "MseLoss": "mse",
    "SmoothL1Loss": "smooth_l1",
    "HuberLoss": "huber",
    "CtcLoss": "ctc",
    "CudnnCtcLoss": "ctc",
}
VIEWS: Final = frozenset(
    (
        *(
            "Alias",
            "AsStrided",
            "Clone",
            "Expand",
            "Index",
            "IndexSelect",
            "MaskedSelect",
            "Narrow",
            "Permute",
            "Reshape",
        ),
        *("ReshapeAlias", "Select", "Slice", "Split", "Squeeze", "T", "ToCopy", "Transpose", "UnsafeView", "Unsqueeze"),
        "View",
    )
)
RESHAPES: Final = VIEWS - {"Expand", "Index", "IndexSelect", "MaskedSelect", "Narrow", "Select", "Slice", "Split"}
_FLATTENING: Final = ("View", "UnsafeView", "ReshapeAlias")
ARITHMETIC: Final = VIEWS | {
    "Add",
    "Cat",
    "Div",
    "Exp",
    "Mean",
    "Mul",
    "Neg",
    "Pow",
    "Rsub",
    "Stack",
    "Sub",
    "Sum",
    "Where",
}
ELEMENTWISE: Final = {"Abs", "Clamp", "Cosh", "Log", "Log1P", "Maximum", "Minimum", "Relu", "Softplus", "Sqrt", "Tanh"}
"""Further operations of losses that are written by hand."""


class LossCall(NamedTuple):
    """The line and argument shapes of a loss call, stored on the graph node that the call made."""

    location: CodePosition | None
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the loss's input and target."""


class LossNode(NamedTuple):
    """A loss in the graph."""

    kind: str
    reduction: str
    top: Any
    """The node that receives the gradient of the loss value."""
    core: Any
    """The node that saved the loss's input and target, or the one nearest to them."""
    source: Any
    """The node that made the loss's input; None if the input needs no gradient."""
    divisor: float | None = None
    """Divisor of the mean, if it can be read from the graph structure."""


class LossProbe:
    """Reads the losses of one backward pass, before and after it runs.

    Args:
        root: the tensor whose ``backward()`` is about to run. Hooks on its graph read the gradients of the losses;
            `finish` removes them.
        weights: whether to read the gradients of the losses, and the divisors of means.

    Cost: 4 to 12 us; with weights 4 us more for each loss. Numbers are read on the CPU only, without a GPU
    synchronisation.
    """

    __slots__ = ("_handles", "_losses", "_weights")

    def __init__(self, root: Tensor, *, weights: bool = True) -> None:
        found = find_losses(root.grad_fn)
        self._losses = tuple([_loss_record(each, weights) for each in found])
        self._weights: list[float | None] = [None] * len(found)
        self._handles: list[Any] = []
        if weights and found and root.is_cpu and not _compiled_autograd() and not modes_disabled():
            for index, each in enumerate(found):
                self._handles.append(each.top.register_prehook(partial(_record_weight, self._weights, index)))

    def losses(self) -> tuple[LossRecord, ...]:
        """Return the losses; their ``gradient_weight`` is None."""
        return self._losses

    def finish(self, scale: float = 1.0) -> tuple[LossRecord, ...]:
        """Remove the hooks after the backward pass, and return the losses with their ``gradient_weight``.

        Args:
            scale: GradScaler's factor, by which the gradients are divided.
        """
        for handle in self._handles:
            handle.remove()
        for loss, weight in zip(self._losses, self._weights, strict=True):
            loss.targets = None
            loss.gradient_weight = None if weight is None else weight / scale
        return self._losses


def _record_weight(weights: list[float | None], index: int, gradients: Sequence[Tensor | None]) -> None:
    """Record the scalar gradient of a loss; runs within the program's backward pass."""
    gradient = gradients[0] if gradients else None
    if type(gradient) is Tensor and gradient.numel() == 1 and gradient.device.type == "cpu":
        weights[index] = gradient.item()


def _compiled_autograd() -> bool:
    """Return True if compiled autograd is on, which would compile a hook into the graph."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and bool(getattr(module, "compiled_autograd_enabled", False))


@cache
def operation_name(name: str) -> str:
    """Return "Mean" for "MeanBackward1", and "" for a node that is not the derivative of a PyTorch operation."""
    return name.rpartition("Backward")[0]


def _name(node: Any) -> str:
    return "" if node is None else operation_name(node.name())


def parent(node: Any, index: int = 0) -> Any:
    """Return the node that made an input of a node; None if the input needs no gradient."""
    edges = node.next_functions
    return edges[index][0] if index < len(edges) else None


def first_parent(node: Any) -> Any:
    """Return the node that made the first input that needs a gradient."""
    return next((edge[0] for edge in node.next_functions if edge[0] is not None), None)


# Finding --------------------------------------------------------------------------------------------------------


PAIRWISE: Final = {"Mul", "Rsub", "Sub"}


def find_losses(root: Any) -> list[LossNode]:
    """Return the losses in a graph, searching through arithmetic only."""
    if root is None:
        return []
    found: list[LossNode] = []
    queue: list[Any] = [root]
    known = {root: None}
    """Node -> the node that uses its result."""
    for node in queue:
        name = _name(node)
        pattern = PATTERNS.get(name)
        loss = _own_node(node, name, node) if name in KINDS else pattern(node) if pattern else None
        if loss is None and name in PAIRWISE:
            loss = _pairwise_operation(node, known[node])
        if loss is not None:
            found.append(loss)
        elif (name in ARITHMETIC or name in ELEMENTWISE) and len(queue) < MAX_NODES:
            for edge in node.next_functions:
                if edge[0] is not None and edge[0] not in known:
                    known[edge[0]] = node
                    queue.append(edge[0])
    return found


def _own_node(node: Any, name: str, top: Any, reduced: str = "") -> LossNode:
    """Return a loss that has a node of its own."""
    reduction = reduced or REDUCTIONS[getattr(node, "_saved_reduction", 0)]
    binary = KINDS[name].startswith("bce")  # its target may need a gradient too
    source = parent(node) if binary else first_parent(node)
    return LossNode(KINDS[name], reduction, top, node, source)


def _mean(node: Any) -> LossNode | None:
    below = parent(node)
    while _name(below) in RESHAPES:  # not through a selection of samples, whose number is unknown
        below = parent(below)
    name = _name(below)
    count = getattr(node, "_saved_self_sym_numel", None)
    if name == "Div" and _name(parent(below)) in ("CtcLoss", "CudnnCtcLoss"):
        return _own_node(parent(below), "CtcLoss", node, "mean")
    if name in KINDS and getattr(below, "_saved_reduction", 0) == 0:
        return _own_node(below, name, node, "mean")._replace(divisor=count)
    if name == "Abs" and _name(parent(below)) == "Sub":
        return LossNode("l1", "mean", node, below, first_parent(parent(below)), count)
    if name == "Pow" and _name(parent(below)) == "Sub" and getattr(below, "_saved_exponent", 0) == 2:
        return _squared_error(node, below)
    return _kl_divergence(node, below, "mean", count)


def find_squared_error(root: Any) -> LossNode | None:
    """Return a loss that consists of a hand-written squared error alone, such as ``((a - b) ** 2).mean()``."""
    below, name = parent(root) if root is not None else None, _name(root)
    while _name(below) in RESHAPES:
        below = parent(below)
    if name not in ("Mean", "Sum") or _name(below) != "Pow" or getattr(below, "_saved_exponent", 0) != 2:
        return None
    made_from = parent(below)
    return LossNode("mse", name.lower(), root, below, first_parent(made_from)) if _name(made_from) == "Sub" else None


def _squared_error(node: Any, below: Any) -> LossNode | None:
    """Return a hand-written squared error, but only if it was broadcast, which proves that it is a loss."""
    found = LossNode("mse", "mean", node, below, first_parent(parent(below)))
    return found if _broadcast_shapes(found, None) is not None else None


def _pairwise_operation(node: Any, user: Any) -> LossNode | None:
    """Return a part of a hand-written loss that combines (B, 1) and (B,), of which one has no graph, to (B, B).

    Not the differences of predictions to each other, which are zero on the diagonal, or to targets of shape (B, B).
    """
    found = LossNode("pairs", "none", node, node, first_parent(node))
    is_constant = [maker is None for maker, _ in node.next_functions]
    shapes = _broadcast_shapes(found, None) if is_constant in ([True, False], [False, True]) else None
    if shapes is None:
        return None
    saves_result = _name(node) != "Mul" and (_name(user) in ELEMENTWISE or _name(user) == "Pow")
    difference = saved_tensor(user, "self") if saves_result else None
    if difference is None or not difference.is_cpu:
        return found
    return found if difference.diagonal().any() and find_pairwise_difference(shapes[0], difference) else None


def _shape_of(node: Any) -> Shape:
    """Return the shape of a node's result; () if this version of PyTorch does not know it."""
    metadata = getattr(node, "_input_metadata", ())
    return tuple(metadata[0].shape) if len(metadata) == 1 else ()


def _pair_shapes(shape: Shape, result: Shape) -> tuple[Shape, Shape] | None:
    """Return the shapes of both operands if one of them is (B, 1) or (B,), and the result is (B, B)."""
    if len(result) != 2 or result[0] != result[1] or shape not in ((result[0], 1), (result[0],)):
        return None
    return shape, (result[0],) if len(shape) == 2 else (result[0], 1)


def _larger_pair_shapes(node: Any, shape: Shape, result: Shape) -> tuple[Shape, Shape] | None:
    """Return the shapes of both factors if they are (B, 1, H, W) and (B, H, W), and the product is (B, B, H, W).

    Likewise (B, 1, L) and (B, L). Only a product has saved its other factor, whose shape is the proof.
    """
    if _name(node) != "Mul" or len(result) < 3 or result[0] != result[1]:
        return None
    other = saved_tensor(node, "other" if parent(node, 0) is not None else "self")
    samples, _, *size = result
    per_sample = {(samples, 1, *size), (samples, *size)}
    return (shape, tuple(other.shape)) if other is not None and {shape, tuple(other.shape)} == per_sample else None


def _sum(node: Any) -> LossNode | None:
    below = parent(node)
    name = _name(below)
    if name in KINDS and getattr(below, "_saved_reduction", 0) == 0:
        return _own_node(below, name, node, "sum")
    if name == "Abs" and _name(parent(below)) == "Sub":
        return LossNode("l1", "sum", node, below, first_parent(parent(below)))
    return _kl_divergence(node, below, "sum", None)


def _kl_divergence(node: Any, below: Any, reduction: str, count: float | None) -> LossNode | None:
    """Return a kl_div: target * log(target) - target * input, where only the second term needs a gradient."""
    if _name(below) != "Sub" or parent(below, 0) is not None or _name(parent(below, 1)) != "Mul":
        return None
    product = parent(below, 1)
    if [maker is None for maker, _ in product.next_functions] != [True, False]:
        return None
    return LossNode("kl_div", reduction, node, product, first_parent(product), count)


def _division(node: Any) -> LossNode | None:
    below = parent(node)
    count = getattr(node, "_saved_other", None)
    if _name(below) == "Neg":
        soft = _soft_cross_entropy(below)
        return soft._replace(top=node, reduction="mean", divisor=count) if soft and isinstance(count, int) else None
    if _name(below) == "Sum" and _name(parent(below)) == "Sub":
        return _kl_divergence(node, parent(below), "mean", None)  # batchmean
    return None


def _soft_cross_entropy(node: Any) -> LossNode | None:
    """Return a cross-entropy with probabilities as targets: -(target * log_softmax(input)).sum()."""
    product = parent(parent(node)) if _name(parent(node)) == "Sum" else None
    if _name(product) != "Mul" or _name(parent(product)) != "LogSoftmax":
        return None
    return LossNode("nll", "sum", node, product, parent(product))


def _label_smoothing(node: Any) -> LossNode | None:
    """Return a loss with label smoothing: (1 - s) * nll + s / classes * (sum over classes); the weights add up to 1."""
    first, second = parent(node, 0), parent(node, 1)
    if _name(first) != "Mul" or _name(second) != "Mul" or _name(parent(first)) not in ("NllLoss", "NllLoss2D"):
        return None
    nll_weight, class_weight = getattr(first, "_saved_other", None), getattr(second, "_saved_other", None)
    nll = parent(first)
    shape = input_shape(nll)
    if not isinstance(nll_weight, float) or not isinstance(class_weight, float) or not shape:
        return None
    classes = shape[1 if len(shape) > 1 else 0]
    return _own_node(nll, "NllLoss", node) if abs(nll_weight + class_weight * classes - 1) < 1e-6 else None


PATTERNS: Final[dict[str, Callable[[Any], LossNode | None]]] = {
    "Add": _label_smoothing,
    "Div": _division,
    "Mean": _mean,
    "Neg": _soft_cross_entropy,
    "Sum": _sum,
}


# Reading --------------------------------------------------------------------------------------------------------


def _loss_record(found: LossNode, with_divisor: bool) -> LossRecord:
    kind, source, core = found.kind, found.source, found.core
    call: LossCall | None = found.top.metadata.get(LOSS_CALL_KEY) or core.metadata.get(LOSS_CALL_KEY)
    logs = None
    if kind == "nll":
        logs = source
        while _name(logs) in VIEWS:
            logs = parent(logs)
        if _name(logs) == "LogSoftmax":
            kind, source = "cross_entropy", parent(logs)
    normalised = _softmax_of_log(logs)
    shape, ignored = input_shape(core), ignored_target(core)
    return LossRecord(
        kind=kind,
        reduction=found.reduction,
        shape=shape,
        divisor=_mean_divisor(found, shape) if with_divisor else None,
        gradient_weight=None,
        input_operations=_input_operations(source, logs if kind == "cross_entropy" else None),
        broadcast=_broadcast_shapes(found, call),
        ignore_index=ignored,
        targets=saved_tensor(core, "targets" if kind == "ctc" else "target"),
        unreadable_reason=unreadable_reason(core, "target", "targets", "self"),
        location=call and call.location,
        class_weights=getattr(core, "_raw_saved_weight", None) is not None and saved_tensor(core, "weight") is not None,
        normalised_over=None
        if normalised is None or ignored is None
        else _normalised_over(normalised, found.source if normalised is logs else normalised, shape),
        flattened=_flattened_across(source, shape) if kind == "cross_entropy" else None,
        unflattened=_unflattened(found.source, shape),
        first_position=_first_position(source) if kind == "cross_entropy" else 0,
        bootstraps=kind in ("mse", "smooth_l1", "huber") and _bootstraps(core),
        input_range=_range_of(core) if kind in ("nll", "bce_with_logits") else None,
        normalised_share=_normalised_share(core) if kind == "ctc" else None,
        mask_as_index=_mask_as_index(found.source),
    )


def _softmax_of_log(logs: Any) -> Any:
    """Return the node of a log-softmax, or of the softmax in ``log(softmax(x) + 1e-9)``; any other node unchanged."""
    if _name(logs) != "Log":
        return logs
    below = parent(logs)
    while _name(below) in ("Add", "Clamp", "ClampMin"):
        below = parent(below)
    return below if _name(below) == "Softmax" else logs


def ignored_target(core: Any) -> int | None:
    """Return the label that a loss leaves out; None if it has no such label."""
    ignored = getattr(core, "_saved_ignore_index", None)  # PyTorch returns a negative one as an unsigned integer
    return ignored if ignored is None or ignored < 1 << 63 else ignored - (1 << 64)


def _mean_divisor(found: LossNode, shape: tuple[int, ...] | None) -> float | None:
    if found.divisor is not None or found.reduction != "mean":
        return found.divisor
    if found.kind == "nll":
        total = saved_tensor(found.core, "total_weight")
        return total.item() if total is not None and total.device.type == "cpu" and total.numel() == 1 else None
    return None if shape is None or found.kind in ("kl_div", "ctc") else math.prod(shape)


def _input_operations(node: Any, logs: Any) -> tuple[str, ...]:
    """Return the names of the operations that computed the input, last one first, without views.

    A softmax that is not over the classes, or of which only a part is used, is called "softmax_elsewhere".
    """
    names: list[str] = []
    steps = 0
    while node is not None and len(names) < MAX_OPERATIONS and steps < 3 * MAX_OPERATIONS:
        steps += 1
        name = _name(node)
        if name not in VIEWS:
            if not name:
                break
            size = size_along(node) if name == "Softmax" else None
            elsewhere = name == "Softmax" and logs is not None and (size is None or size != size_along(logs))
            is_by_hand = not names and logs is not None and _is_softmax_by_hand(node, logs)
            names.append("softmax" if is_by_hand else _snake(name) + ("_elsewhere" if elsewhere else ""))
        node = first_parent(node)
    return tuple(names)


def _is_softmax_by_hand(node: Any, logs: Any) -> bool:
    """Return True for ``exp(x - logsumexp(x))`` and ``e / e.sum(1, keepdim=True)``, by the sums of the values."""
    name, shape = _name(node), result_shape(node)
    values = saved_tensor(node, "result") if name == "Exp" else None
    if name == "Div":
        parts = saved_tensor(node, "self"), saved_tensor(node, "other")
        values = parts[0] / parts[1] if parts[0] is not None and parts[1] is not None and parts[0].is_cpu else None
    if values is None or not values.is_cpu or shape != result_shape(logs) or not 1 < values.numel() <= MAX_READ:
        return False
    values = values.detach().float()
    sums = values.sum(_signed(logs._saved_dim, values.dim()))  # noqa: SLF001
    return sums.numel() >= MIN_ROWS and bool(((sums - 1).abs() < TOLERANCE).all()) and float(values.min()) >= 0


def _range_of(core: Any) -> tuple[float, float] | None:
    """Return the smallest and largest value of a loss's input; None if they cannot be read quickly."""
    values = saved_tensor(core, "self")
    if values is None or not values.is_cpu or not 0 < values.numel() <= MAX_READ or type(values) is not Tensor:
        return None
    low, high = torch.aminmax(values.detach())
    return float(low), float(high)


def _normalised_share(core: Any) -> float | None:
    """Return the share of the first frames of a CTC loss whose probabilities add up to 1; None if on a GPU."""
    values = saved_tensor(core, "log_probs")
    if values is None or not values.is_cpu or not values.numel() or type(values) is not Tensor:
        return None
    classes = values.shape[-1]
    frames = values.detach().flatten(0, -2)[: max(1, MAX_READ // classes)]
    return float((frames.logsumexp(1).abs() < MAX_LOG_SUM).float().mean())


def _normalised_over(logs: Any, source: Any, shape: tuple[int, ...] | None) -> tuple[int, int] | None:
    """Return the dimension and size of a log-softmax that is not over the classes of its loss."""
    log_shape, dim = result_shape(logs), getattr(logs, "_saved_dim", None)
    if not log_shape or not shape or len(shape) < 2 or dim is None:
        return None
    dim = _signed(dim, len(log_shape)) % len(log_shape)
    if log_shape != shape:  # reshaped in between: compare the size
        while _name(source) in RESHAPES:
            source = parent(source)
        return (dim, log_shape[dim]) if source is logs and log_shape[dim] != shape[1] else None
    return (dim, log_shape[dim]) if dim != 1 and source is logs else None


def size_along(node: Any) -> int | None:
    """Return the size of the dimension that a softmax or log-softmax normalises; None if unknown."""
    shape, dim = result_shape(node), getattr(node, "_saved_dim", None)
    if not shape or dim is None:
        return None
    return shape[_signed(dim, len(shape))]


def _signed(dim: int, dims: int) -> int:
    """Return a dimension that a node has saved; PyTorch returns a negative one as an unsigned integer."""
    return dim if dim < dims else dim - (1 << 64)


def _flattened_across(source: Any, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the shape (N, C, positions) of logits that a view cut into rows of C, without moving C to the end."""
    if not shape or len(shape) != 2:
        return None
    while _name(source) in ("Alias", "Clone", "ReshapeAlias", "ToCopy", "UnsafeView", "View"):
        made_from = input_shape(source)
        if made_from is not None and len(made_from) > 2:
            is_cut = made_from[1] == shape[1] != made_from[-1] and math.prod(made_from[2:]) > 1
            return made_from if is_cut else None
        source = parent(source)
    return None


def _unflattened(source: Any, shape: tuple[int, ...] | None) -> tuple[int, int] | None:
    """Return the first two sizes (A, B) of an input that was flattened to A * B rows just before the loss."""
    if not shape:
        return None
    while _name(source) in RESHAPES or _name(source) == "LogSoftmax":
        made_from = input_shape(source)
        if made_from is not None and len(made_from) > len(shape) and _name(source) in _FLATTENING:
            is_flattened = made_from[0] * made_from[1] == shape[0] and math.prod(made_from) == math.prod(shape)
            return (made_from[0], made_from[1]) if is_flattened else None
        source = parent(source)
    return None


def _first_position(source: Any) -> int:
    """Return the start of a slice along the second dimension, between the last operation of a model and the loss."""
    while (name := _name(source)) in RESHAPES or name == "Slice":
        start = getattr(source, "_saved_start", None) or 0 if name == "Slice" else 0
        made_from = input_shape(source)
        if start and made_from is not None and _signed(source._saved_dim, len(made_from)) % len(made_from) == 1:  # noqa: SLF001
            return start if start < 1 << 63 else start - (1 << 64) + made_from[1]
        source = parent(source)
    return 0


def _mask_as_index(source: Any) -> tuple[int, int] | None:
    """Return how many 0 and 1 an integer index of a loss's input has, if it is as long as what it indexes."""
    while (name := _name(source)) in RESHAPES or name in ("LogSoftmax", "Squeeze", "Index"):
        if name == "Index":
            index, sizes = source._saved_indices[0], source._saved_self_sym_sizes  # noqa: SLF001
            if index is None or index.dtype not in (torch.long, torch.int) or not index.is_cpu or index.dim() != 1:
                return None
            if not MIN_ROWS <= len(index) == sizes[0] or type(index) is not Tensor:
                return None
            ones = int((index == 1).sum())
            zeros = int((index == 0).sum())
            return (zeros, ones) if zeros and ones and zeros + ones == len(index) else None
        source = parent(source)
    return None


def _bootstraps(core: Any) -> bool:
    """Return True for a loss between a value and ``constant + 0.99 * value``, both of the same parameters."""
    first, second = parent(core, 0), parent(core, 1)
    if first is None or second is None or first is second:
        return False
    return any(
        _is_discounted_sum(target) and not _leaves(value).isdisjoint(_leaves(target))
        for value, target in ((first, second), (second, first))
    )


def _is_discounted_sum(node: Any) -> bool:
    """Return True for the sum of a constant and a product with a factor in [0.8, 1), and perhaps with zeros."""
    while _name(node) in RESHAPES:
        node = parent(node)
    makers = [maker for maker, _ in node.next_functions] if _name(node) == "Add" else []
    if len(makers) != 2 or makers.count(None) != 1:
        return False
    node = makers[0] or makers[1]
    for _ in range(MAX_FACTORS):
        while _name(node) in RESHAPES:
            node = parent(node)
        if _name(node) != "Mul":
            return False
        factor = saved_tensor(node, "other" if parent(node, 0) is not None else "self")
        if factor is not None and factor.is_cpu and 0.8 <= float(factor.max()) < 1 and float(factor.min()) >= 0:
            return True
        node = first_parent(node)
    return False


def _leaves(node: Any) -> set[int]:
    """Return the ids of the parameters that a node depends on, as far as `MAX_LEAF_NODES` nodes reach."""
    found: set[int] = set()
    queue, known = [node], {node}
    for each in queue:
        variable = getattr(each, "variable", None)
        if variable is not None:
            found.add(id(variable))
        for maker, _ in each.next_functions if len(queue) < MAX_LEAF_NODES else ():
            if maker is not None and maker not in known:
                known.add(maker)
                queue.append(maker)
    return found


@cache
def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _broadcast_shapes(found: LossNode, call: LossCall | None) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the shapes of input and target before they were broadcast; None if they were not.

    Also None if the program added an axis just before, with ``unsqueeze`` or ``[:, None]``: then it intends pairs.
    """
    if found.kind not in ("mse", "smooth_l1", "huber", "l1", "pairs") or found.source is None:
        return None
    source, core = found.source, found.core
    unexpanded = parent(source) if _name(source) == "Expand" else source
    if _name(unexpanded) == "Unsqueeze":
        return None
    if found.kind == "pairs":
        shape, result = _shape_of(source), _shape_of(core)
        return _pair_shapes(shape, result) if len(result) == 2 else _larger_pair_shapes(core, shape, result)
    below = parent(core) if found.kind == "l1" else core
    if call is not None and len(call.shapes) == 2:
        first, target = call.shapes if parent(below) is not None else call.shapes[::-1]  # mse_loss(target, prediction)
        return (first, target) if first != target else None
    if _name(core) in ("Abs", "Pow"):
        shape = result_shape(unexpanded)
        return None if shape is None else find_pairwise_difference(shape, saved_tensor(core, "self"))
    return None
