"""Counts the operations in the graphs that backward passes retain."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from trueloop.core.findings import CodePosition
from trueloop.failures.gradient.backward_through_earlier_updates import GraphsGrowing
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.hooks.backward import check_signature, nodes_below
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

MIN_UPDATES: Final = 8
MAX_NODES: Final = 20_000  # 0.2 us each; larger graphs are not counted
MAX_LINES: Final = 16


class GraphSizes(Hook):
    """Emits `GraphsGrowing`. Cost: 1 us for each node of a retained graph, until a line's graphs do not grow."""

    emits: ClassVar[tuple[type[Event], ...]] = (GraphsGrowing,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._sizes: dict[CodePosition, list[int] | None] = {}
        """Line -> sizes of its graphs in successive updates; None = it is decided."""
        self._count = stream.isolated("sizes of graphs", self._on_retained)

    def install_always(self, patches: Patches) -> None:
        """Replace ``torch.autograd.backward``, in addition to the hook `Backward`."""
        self._sizes = {}
        patches.replace(torch.autograd, "backward", self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program = self._stream, self._program
        check_signature(original)

        def backward(
            tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: Any = False,
            grad_variables: Any = None, inputs: Any = None,
        ) -> Any:  # fmt: skip
            is_counted = retain_graph and not create_graph and stream.active and not program.backward_depth
            if is_counted and not program.is_other_thread():
                self._count([tensors] if isinstance(tensors, Tensor) else list(tensors))
            return original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)

        return backward

    def _on_retained(self, roots: Sequence[Tensor]) -> None:
        location = user_location()
        if location is None or (location not in self._sizes and len(self._sizes) >= MAX_LINES):
            return
        sizes = self._sizes.setdefault(location, [])
        if sizes is None:
            return
        sizes.append(len(nodes_below(roots, MAX_NODES)))
        grown = [later - earlier for earlier, later in pairwise(sizes[1:])]
        if sizes[-1] >= MAX_NODES or len(set(grown)) > 1 or any(each < sizes[0] / 2 for each in grown):
            self._sizes[location] = None  # the first graph may differ from the others, as its state has no graph
        elif len(grown) >= MIN_UPDATES:
            self._sizes[location] = None
            self._stream.emit(GraphsGrowing(location=location, first=sizes[0], last=sizes[-1], updates=len(sizes)))


HOOK: Final = GraphSizes
