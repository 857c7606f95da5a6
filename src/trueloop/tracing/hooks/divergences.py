"""Reads the KL divergence between normal distributions next to a reconstruction loss, from the graph of their sum."""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from torch import Tensor

from trueloop.tracing.attach import Hook
from trueloop.tracing.events import DivergenceRead, Event
from trueloop.tracing.graph_leaves import graph_users
from trueloop.tracing.losses import LOSS_CALL_KEY, REDUCTIONS, RESHAPES, VIEWS, operation_name, parent
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.saved_tensors import input_shape, result_shape, saved_tensor
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

MAX_NODES: Final = 96  # of the arithmetic from a loss down to its terms
MAX_GRAPH: Final = 2000  # nodes of the graph in which the sample of the code is searched
MAX_READS: Final = 16  # backward passes without a divergence
MAX_FOUND: Final = 16  # backward passes with one: its weight may grow
_ERRORS: Final = frozenset(("MseLoss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "SmoothL1Loss"))

Maker = tuple[Any, int]
"""The node that made a tensor, and the number of the result."""


class Term(NamedTuple):
    """An operation whose result a loss contains, times ``weight / divisor``."""

    node: Any
    number: int
    """Number of the result of the operation."""
    weight: float
    divisor: float


class Divergences(Hook):
    """Emits `DivergenceRead` during full tracing. Cost: 0.1 ms for each of the first 16 backward passes."""

    emits: ClassVar[tuple[type[Event], ...]] = (DivergenceRead,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._reads = self._found = 0
        self._read = stream.isolated_inner("divergences in losses", self._on_backward)

    def install_always(self, patches: Patches) -> None:
        """Receive the roots of backward passes."""
        self._reads = self._found = 0
        self._program.on_backward_start.append(self._read)

    def _on_backward(self, roots: Sequence[Tensor]) -> None:
        if self._reads >= MAX_READS or self._found >= MAX_FOUND or len(roots) != 1 or roots[0].numel() != 1:
            return
        self._reads += 1
        found = _read_divergence(roots[0].grad_fn)
        if found is not None:
            self._reads -= 1
            self._found += 1
            found.location = found.location or user_location()
            self._stream.emit(found)


def _read_divergence(root: Any) -> DivergenceRead | None:
    """Return the only divergence in a loss that also has a reconstruction loss for as many samples."""
    terms = list(terms_of(root, ()))
    exponents = {unscaled((parent(each.node), _number(each.node)))[0] for each in terms if _is(each.node, "Exp")}
    terms = list(terms_of(root, exponents)) if exponents else terms
    variances = [each for each in terms if _square_of(each.node) is not None or _is(each.node, "Exp")]
    found = [each for each in variances if _has_logarithm(terms, each)]
    if len(found) != 1:
        return None
    variance = found[0]
    alike = [each for each in variances if each is not variance and each[2:] == variance[2:]]
    means = [each for each in alike if result_shape(each.node) == result_shape(variance.node) and _square_of(each.node)]
    shape, losses = result_shape(variance.node), [each for each in terms if each not in means and _error_shape(each)]
    if len(means) != 1 or not shape or len(shape) < 2 or not losses:
        return None
    rows, loss = shape[0], losses[0]
    of_loss = _error_shape(loss)
    if len({each.divisor for each in losses}) > 1 or rows < 2 or not of_loss or of_loss[0] != rows:
        return None
    count = math.prod(of_loss)
    is_mean = getattr(loss.node, "_saved_reduction", 0) == REDUCTIONS.index("mean")
    call = loss.node.metadata.get(LOSS_CALL_KEY)
    return DivergenceRead(
        location=call and call.location,
        weight=2 * variance.weight,
        reduction=_reduction(variance.divisor, rows, math.prod(shape)),
        loss_weight=loss.weight,
        loss_reduction=_reduction(loss.divisor * (count if is_mean else 1), rows, count),
        rows=rows,
        codes=math.prod(shape[1:]),
        values=math.prod(of_loss[1:]),
        samples_with_variance=_is(variance.node, "Exp") and _multiplies_noise(root, variance),
    )


def terms_of(root: Any, stops: Collection[Maker], limit: int = MAX_NODES) -> Iterator[Term]:
    """Yield the operations of which a loss is a weighted sum, not through ``stops``."""
    queue = [Term(root, 0, 1.0, 1.0)]
    for term in queue:
        node, number, weight, divisor = term
        if node is None:  # data
            continue
        name = operation_name(node.name())
        makers: Sequence[Maker] = node.next_functions
        factor = _factor(node) if name in ("Mul", "Div") else None
        if (node, number) in stops or len(queue) > limit:
            yield term
        elif name in ("Add", "Sub", "Rsub"):
            second = getattr(node, "_saved_alpha", 1) * (1 if name == "Add" else -1)
            signs = (second, 1) if name == "Rsub" else (1, second)
            queue += [
                Term(*maker, weight * sign, divisor / _copies(node, maker))
                for maker, sign in zip(makers, signs, strict=False)
            ]
        elif name == "Neg" or (factor and name == "Mul"):
            queue += [Term(*maker, weight * (factor or -1), divisor) for maker in makers]
        elif factor:  # a fraction is a weight, as a variance is; a whole number may be a count
            fraction, count = (factor, 1.0) if factor % 1 else (1.0, factor)
            queue.append(Term(*makers[0], weight / fraction, divisor * count))
        elif name == "Mean" and (before := input_shape(node)) is not None:
            size = math.prod(before) / max(1, math.prod(result_shape(node) or ()))
            queue.append(Term(*makers[0], weight, divisor * size))
        elif name in ("Sum", "Stack", "Cat") or name in RESHAPES:
            queue += [Term(*maker, weight, divisor) for maker in makers]
        else:
            yield term


def _copies(node: Any, maker: Maker) -> float:
    """Return how often a sum contains each value of a term that is broadcast, as to all samples."""
    own, term = result_shape(node), result_shape(*maker) if maker[0] is not None else None
    return math.prod(own) / max(1, math.prod(term)) if own is not None and term is not None else 1.0


def _factor(node: Any) -> float | None:
    """Return the number that a node multiplies with or divides by; None if it is no number, or on a GPU."""
    name = "other" if parent(node) is not None else "self"
    if name == "self" and _is(node, "Div"):
        return None
    is_tensor = hasattr(type(node), f"_raw_saved_{name}")
    value = saved_tensor(node, name) if is_tensor else getattr(node, "_saved_other", None)
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 and value.is_cpu and not value.requires_grad else None
    return float(value) if isinstance(value, int | float) else None


def _is(node: Any, name: str) -> bool:
    return node is not None and operation_name(node.name()) == name


def _number(node: Any) -> int:
    """Return the number of the result that is the first input of a node."""
    return node.next_functions[0][1] if node.next_functions else 0


def unscaled(maker: Maker) -> tuple[Maker, float]:
    """Return what a tensor is a multiple of, and the factor."""
    factor = 1.0
    while (node := maker[0]) is not None:
        scale = _factor(node) if _is(node, "Mul") or _is(node, "Div") else None
        if scale:
            factor *= scale if _is(node, "Mul") else 1 / scale
        elif _is(node, "Neg"):
            factor = -factor
        elif operation_name(node.name()) not in RESHAPES:
            break
        maker = next(each for each in node.next_functions if each[0] is not None)
    return maker, factor


def _square_of(node: Any) -> Maker | None:
    """Return x of ``x ** 2`` and ``x * x``; None for other operations."""
    makers = node.next_functions
    is_square = (_is(node, "Pow") and getattr(node, "_saved_exponent", 0) == 2) or (
        _is(node, "Mul") and makers[0][0] is not None and makers[0] == makers[1]
    )
    return makers[0] if is_square else None


def _has_logarithm(terms: Sequence[Term], variance: Term) -> bool:
    """Return True if the terms contain minus the logarithm of a variance: ``lv`` of ``exp(lv) - lv``."""
    square = _square_of(variance.node)
    of, factor = unscaled((parent(variance.node), _number(variance.node)))
    for each in terms:
        if each.divisor != variance.divisor or each.node is variance.node:
            continue
        made = unscaled(each.node.next_functions[0])[0] if _is(each.node, "Log") else None
        is_log = made == unscaled(square)[0] or made == (variance.node, 0) if square and made else False
        ratio = -each.weight / variance.weight
        if (is_log and ratio > 0) or (not square and each[:2] == of and math.isclose(ratio, factor, rel_tol=1e-4)):
            return True
    return False


def _error_shape(term: Term) -> tuple[int, ...] | None:
    """Return the shape of the outputs that a term compares with data; None if it is no such term."""
    node, square = term.node, _square_of(term.node)
    if operation_name(node.name()) in _ERRORS:
        return input_shape(node)
    minus: Any = square[0] if square else parent(node) if _is(node, "Abs") else None
    has_data = _is(minus, "Sub") and None in [maker for maker, _ in minus.next_functions]
    return result_shape(node) if has_data else None


def _reduction(divisor: float, rows: int, count: int) -> str:
    """Return "sum", "rows" for the sum of each sample and the mean over the samples, "mean", or "" for others."""
    known = {1.0: "sum", float(rows): "rows", float(count): "mean"}
    return next((name for size, name in known.items() if math.isclose(size, divisor, rel_tol=1e-4)), "")


def _multiplies_noise(root: Any, variance: Term) -> bool:
    """Return True if the exponential of a divergence also multiplies a constant of its shape that has both signs."""
    exponent = unscaled((parent(variance.node), _number(variance.node)))
    graph = graph_users([root], MAX_GRAPH)
    queue = [each for each in graph if _is(each, "Exp") and unscaled((parent(each), _number(each))) == exponent]
    for node in queue:
        for user in graph[node]:
            if operation_name(user.name()) in VIEWS:
                queue.append(user)
            noise = saved_tensor(user, "other" if parent(user) is not None else "self") if _is(user, "Mul") else None
            is_constant = noise is not None and not noise.requires_grad and noise.is_cpu
            if noise is not None and is_constant and noise.shape == result_shape(user) and _has_both_signs(noise):
                return True
    return False


def _has_both_signs(values: Tensor) -> bool:
    return float(values.min()) < 0 < float(values.max())
