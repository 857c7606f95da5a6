"""Compares the weights of log-probabilities in a loss with the discounted sums of a list of rewards."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from types import FunctionType, ModuleType
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from trueloop.failures.loss.returns_in_wrong_order import MIN_TIMES, DiscountedSumsRead
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.graph_leaves import sequence_number
from trueloop.tracing.hooks.divergences import Term, terms_of, unscaled
from trueloop.tracing.losses import operation_name
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.running_code import program_stack
from trueloop.tracing.saved_tensors import saved_tensor
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

MIN_STEPS: Final = 6  # of an episode
MAX_STEPS: Final = 2000
MAX_NODES: Final = 10_000  # of the arithmetic between a loss and its log-probabilities
MAX_READS: Final = 16  # backward passes
MAX_VALUES: Final = 2000  # variables and attributes in which the rewards are searched
TOLERANCE: Final = 1e-5  # of the weights, relative to the largest
DISCOUNTS: Final = (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)  # next to those in variables of the program
_SIMPLE: Final = (str, bytes, type, ModuleType, FunctionType, Tensor)


class DiscountedSums(Hook):
    """Emits `DiscountedSumsRead` during full tracing.

    Cost: 0.1 ms for each of the first 16 backward passes; up to 20 ms if a loss has one term for each step.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (DiscountedSumsRead,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._reads = self._found = 0
        self._read = stream.isolated_inner("discounted sums of rewards", self._on_backward)

    def install_always(self, patches: Patches) -> None:
        """Receive the roots of backward passes."""
        self._reads = self._found = 0
        self._program.on_backward_start.append(self._read)

    def _on_backward(self, roots: Sequence[Tensor]) -> None:
        if self._reads >= MAX_READS or self._found >= MIN_TIMES or len(roots) != 1 or roots[0].numel() != 1:
            return
        self._reads += 1
        weights = list(_weights_in_time(roots[0].grad_fn))
        values = list(_values()) if weights else []
        discounts = sorted({*DISCOUNTS, *(each for each in values if type(each) is float and 0.8 <= each < 1)})
        for each in weights:
            lists = [numbers for value in values if (numbers := _numbers(value, len(each))) is not None]
            found = {_order(each, rewards, discount) for rewards in lists for discount in discounts} - {""}
            if found and "right" not in found:
                self._found += 1
                self._stream.emit(DiscountedSumsRead(location=user_location(), order=sorted(found)[0], steps=len(each)))
                return


def _weights_in_time(root: Any) -> Iterator[Tensor]:
    """Yield the weights that a loss gives to numbers which were computed one after the other, in that order."""
    by_name: dict[str, list[Term]] = {}
    for term in terms_of(root, (), MAX_NODES):
        by_name.setdefault(operation_name(term.node.name()), []).append(term)
    for product in by_name.pop("Mul", []):
        (node, _), factor = unscaled(product.node.next_functions[0])
        steps = [unscaled(each) for each in node.next_functions] if _joins(node) else []
        constant = saved_tensor(product.node, "other") if len(steps) >= MIN_STEPS else None
        if constant is not None and constant.is_cpu and not constant.requires_grad and constant.numel() == len(steps):
            weights = zip(steps, constant.detach().flatten().tolist(), strict=True)
            weight = factor * product.weight
            yield from _sorted([Term(*maker, weight * own * number, 1.0) for (maker, own), number in weights])
    for terms in by_name.values():
        yield from _sorted(terms)


def _joins(node: Any) -> bool:
    return node is not None and operation_name(node.name()) in ("Stack", "Cat")


def _sorted(terms: Sequence[Term]) -> Iterator[Tensor]:
    """Yield the weights of terms in the order of their operations, if they are not all equal."""
    order = {(sequence_number(each.node) or 0, each.number): each.weight for each in terms}
    weights = torch.tensor([order[each] for each in sorted(order)], dtype=torch.float64)
    if MIN_STEPS <= len(weights) == len(terms) <= MAX_STEPS and float((weights - weights.mean()).abs().max()) > 0:
        yield weights


def _values() -> Iterator[Any]:
    """Yield the values of the program's variables, and of the attributes of its objects."""
    found = 0
    for frame in program_stack()[::-1]:
        for value in list(variables(frame).values()):
            inner = getattr(value, "__dict__", None) if not isinstance(value, _SIMPLE) else None
            for each in (value, *(inner.values() if isinstance(inner, dict) else ())):
                found += 1
                if found <= MAX_VALUES:
                    yield each


def _numbers(value: Any, steps: int) -> Tensor | None:
    """Return the numbers in a list or vector of a length; None for other values."""
    if isinstance(value, list | deque) and len(value) == steps:
        numbers = [each.item() if _is_number(each) else each for each in value]
        is_list = all(type(each) in (int, float, bool) for each in numbers)
        return torch.tensor(numbers, dtype=torch.float64) if is_list else None
    if type(value) is Tensor and value.shape == (steps,) and value.is_cpu and not value.requires_grad:
        return value.detach().double()
    return None


def _is_number(value: Any) -> bool:
    """Return True for a tensor or NumPy number with one value that is in memory of the CPU."""
    return getattr(value, "size", None) == 1 or (type(value) is Tensor and value.numel() == 1 and value.is_cpu)


def _order(weights: Tensor, rewards: Tensor, discount: float) -> str:
    """Return "right" if the weights are a linear function of the returns, "past" or "reversed" if of other sums."""
    past, future = (_sums(each.tolist(), discount) for each in (rewards, rewards.flip(0)))
    if _fits(weights, future.flip(0)) is not None:
        return "right"
    fits = {"past": _fits(weights, past), "reversed": _fits(weights, future)}
    return next((name for name, slope in fits.items() if slope is not None and slope < 0), "")


def _sums(rewards: Sequence[float], discount: float) -> Tensor:
    def add(total: float, reward: float) -> float:
        return reward + discount * total

    return torch.tensor(list(accumulate(rewards, add)), dtype=torch.float64)


def _fits(weights: Tensor, sums: Tensor) -> float | None:
    """Return the slope of the line through pairs of weights and sums; None if they are not on a line."""
    one, two = weights - weights.mean(), sums - sums.mean()
    norm = float(two @ two)
    slope = float(one @ two) / norm if norm > 0 else 0.0
    is_close = float((one - slope * two).abs().max()) <= TOLERANCE * float(one.abs().max())
    return slope if slope and is_close else None


HOOK: Final = DiscountedSums
