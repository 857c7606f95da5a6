"""Looks for products of a log-probability and another network's output in the graphs of losses."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, cast

import torch.distributions
from torch import Tensor, nn

from trueloop.failures.gradient.advantage_not_detached import MIN_TIMES, AdvantageInGraph
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import CodePosition, Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

KEY: Final = "trueloop_log_prob"
MAX_NODES: Final = 6000  # nodes of a graph; larger ones are not searched
MAX_PRODUCTS: Final = 64
MAX_SEARCHES: Final = 8  # backward passes that are searched


class PolicyLosses(Hook):
    """Emits `AdvantageInGraph`.

    Cost: 1 us for each log-probability; 2 us for each node of the graphs of 8 losses with log-probabilities.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (AdvantageInGraph,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._marked = False
        self._log_prob: CodePosition | None = None
        self._searches = self._found = 0
        self._search = stream.isolated_inner("products of log-probabilities", self._on_backward)

    def install_always(self, patches: Patches) -> None:
        """Receive the roots of backward passes."""
        self._marked, self._searches, self._found = False, 0, 0
        self._program.on_backward_start.append(self._search)

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``log_prob`` of all distributions."""
        for kind in vars(torch.distributions).values():
            if isinstance(kind, type) and "log_prob" in vars(kind):
                patches.replace(kind, "log_prob", self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def log_prob(distribution: Any, value: Any) -> Any:
            result = original(distribution, value)
            if self._stream.active and self._searches < MAX_SEARCHES and type(result) is Tensor:
                node = result.grad_fn
                if node is not None and not getattr(value, "requires_grad", False):
                    cast("Any", node).metadata[KEY] = True
                    self._marked, self._log_prob = True, user_location()
            return result

        return log_prob

    def _on_backward(self, roots: Sequence[Tensor]) -> None:
        if not self._marked or self._searches >= MAX_SEARCHES or self._found >= MIN_TIMES:
            return
        self._marked = False
        self._searches += 1
        trained = _trained_by_product([root.grad_fn for root in roots])
        if trained:
            self._found += 1
            parameters = self._stream.registry.refs(trained)
            self._stream.emit(
                AdvantageInGraph(location=user_location(), parameters=parameters, log_prob=self._log_prob)
            )


def _trained_by_product(roots: Sequence[Any]) -> list[Tensor]:
    """Return the matrices that a factor of a log-probability trains, and the loss also reaches by another way."""
    nodes = _below(roots)
    products = [each for each in nodes if each.name() == "MulBackward0"]
    if len(nodes) >= MAX_NODES or len(products) > MAX_PRODUCTS * 4:
        return []
    for product in products[:MAX_PRODUCTS]:
        factors = [each for each, _ in product.next_functions if each is not None]
        if len(factors) != 2:
            continue
        below = [_below([each]) for each in factors]
        logs = [any(KEY in each.metadata for each in several) for several in below]
        if logs.count(True) != 1:
            continue
        policy, critic = (below[0], below[1]) if logs[0] else (below[1], below[0])
        own = _matrices(critic) - _matrices(policy)
        other_ways = _matrices(_below(roots, without=product))
        if own and own <= other_ways:
            return [
                each for node in critic if (each := getattr(node, "variable", None)) is not None and id(each) in own
            ]
    return []


def _matrices(nodes: Iterable[Any]) -> set[int]:
    """Return the ids of the parameters with two dimensions or more."""
    leaves = [getattr(node, "variable", None) for node in nodes]
    return {id(each) for each in leaves if isinstance(each, nn.Parameter) and each.ndim > 1}


def _below(roots: Sequence[Any], without: Any = None) -> list[Any]:
    """Return the nodes of the graph below some nodes, at most `MAX_NODES`; not through one of them."""
    found = [each for each in roots if each is not None]
    seen = set(found)
    for node in found:
        if node is without:
            continue
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                found.append(below)
        if len(found) >= MAX_NODES:
            break
    return found


HOOK: Final = PolicyLosses
