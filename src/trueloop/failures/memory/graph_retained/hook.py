"""Traces graphs that a backward pass retained, and whether a second backward pass uses them.

A hook on every node of a retained graph detects a second backward pass from any root; the hooks are freed with the
graph. A destructor counts freed graphs, and the next backward pass emits the event.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from trueloop.core.findings import CodePosition
from trueloop.failures.memory.graph_retained import MIN_GRAPHS, GraphsRetained
from trueloop.tracing.events import Event
from trueloop.tracing.hooks.backward import check_signature, nodes_below
from trueloop.tracing.patch import Patches, hide_from_compiler
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

MAX_NODES: Final = 4096  # nodes of a graph, about 1 us each; larger graphs are not judged

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


@dataclass(slots=True)
class _Line:
    """The graphs that one line of the program retained."""

    freed: int = 0
    """Number of updates whose graph was freed."""
    decided: bool = False
    """Whether a graph was used again, the event was emitted, or a graph was too large to judge."""
    last_update: int = -1


@dataclass(slots=True)
class _GraphSentinel:
    """An object that is freed with the last node of a graph."""

    line: _Line
    counts: bool
    """Whether this is the first graph of the line in its update."""

    def __del__(self) -> None:
        self.line.freed += self.counts


class RetainedGraphs:
    """Emits `GraphsRetained`.

    Cost: 0.3 us for each fully traced backward pass; about 1 us for each node of a retained graph, for the first 12
    graphs of a line.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (GraphsRetained,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._lines: dict[CodePosition, _Line] = {}
        self._track = stream.isolated("graphs that are retained", self._on_retained)

    def install_always(self, patches: Patches) -> None:
        """Forget the lines of earlier watches."""
        self._lines = {}

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``torch.autograd.backward``, in addition to the hook `Backward`."""
        patches.replace(torch.autograd, "backward", self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program = self._stream, self._program
        check_signature(original)

        def backward(
            tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: Any = False,
            grad_variables: Any = None, inputs: Any = None,
        ) -> Any:  # fmt: skip
            result = original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            if not retain_graph or create_graph or not stream.active or program.backward_depth or _is_compiling():
                return result
            if not program.is_other_thread():
                self._track([tensors] if isinstance(tensors, Tensor) else list(tensors))
            return result

        return backward

    def _on_retained(self, roots: Sequence[Tensor]) -> None:
        location = user_location()
        if location is None:
            return
        line = self._lines.get(location) or self._lines.setdefault(location, _Line())
        if line.decided:
            return
        if line.freed >= MIN_GRAPHS:
            line.decided = True
            self._stream.emit(GraphsRetained(location=location, count=line.freed))
            return
        nodes = nodes_below(roots, MAX_NODES + 1)
        if not 0 < len(nodes) <= MAX_NODES:  # too large to decide
            line.decided = True
            return
        _attach_sentinel(nodes, _GraphSentinel(line, line.last_update != self._stream.update))
        line.last_update = self._stream.update


def _attach_sentinel(nodes: Sequence[Any], sentinel: _GraphSentinel) -> None:
    def mark_used(gradients: Any) -> None:
        sentinel.line.decided = True

    hide_from_compiler(mark_used)
    for node in nodes:
        node.register_prehook(mark_used)


HOOK: Final = RetainedGraphs
