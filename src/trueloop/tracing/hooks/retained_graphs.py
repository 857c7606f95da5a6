"""Graphs that a backward retained, and whether anything ever runs backward through them again.

A hook on every node of such a graph notes a second pass, whoever starts it and from wherever; together the hooks die
with the graph. Nothing is told from within a destructor: it counts, and the next backward or update looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import Event, GraphsRetained
from trueloop.tracing.hooks.backward import check_taken
from trueloop.tracing.patch import Patches, hide_from_compiler
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

ENOUGH: Final = 12  # graphs in different updates, all those of a line: more than the first updates of a lazy penalty
MOST_NODES: Final = 4096  # of a graph; about 1 us each

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class _Line:
    """What became of the graphs retained by one line of the program."""

    __slots__ = ("decided", "last_update", "place", "unused")

    def __init__(self, place: CodePosition) -> None:
        self.place = place
        self.unused = 0
        self.decided = False
        """One was used, or it was told, or cannot be told."""
        self.last_update = -1


class _Life:
    """Goes with the last node of a graph that it hangs on."""

    __slots__ = ("counts", "line", "used")

    def __init__(self, line: _Line, *, counts: bool) -> None:
        self.line, self.counts, self.used = line, counts, False

    def __del__(self) -> None:
        self.line.unused += self.counts and not self.used


class RetainedGraphs:
    """Tells `GraphsRetained`.

    Cost: 0.3 us for each backward in full; about 1 us for each node of a graph that is retained, for the first 12 of a
    line.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (GraphsRetained,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._lines: dict[CodePosition, _Line] = {}
        self._hang = stream.isolated("graphs that are retained", self._retained)

    def install_always(self, patches: Patches) -> None:
        """Begin anew."""
        for line in self._lines.values():
            line.decided = True
        self._lines = {}

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``torch.autograd.backward``, once more than the source of backwards does."""
        patches.replace(torch.autograd, "backward", self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program = self._stream, self._program
        check_taken(original)

        def backward(
            tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: Any = False,
            grad_variables: Any = None, inputs: Any = None,
        ) -> Any:  # fmt: skip
            result = original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            if not retain_graph or create_graph or not stream.active or program.backward_depth or _is_compiling():
                return result
            if not program.is_other_thread():
                self._hang([tensors] if isinstance(tensors, Tensor) else list(tensors))
            return result

        return backward

    def _retained(self, roots: Sequence[Tensor]) -> None:
        place = user_location()
        if place is None:
            return
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = _Line(place)
        if line.decided:
            return
        if line.unused >= ENOUGH:
            line.decided = True
            self._stream.emit(GraphsRetained(location=place, count=line.unused))
            return
        nodes = _nodes(roots)
        if not nodes:  # too large to be sure
            line.decided = True
            return
        _hang_on(nodes, _Life(line, counts=line.last_update != self._stream.update))
        line.last_update = self._stream.update


def _hang_on(nodes: Sequence[Any], life: _Life) -> None:
    def again(gradients: Any) -> None:
        life.used = life.line.decided = True

    hide_from_compiler(again)
    for node in nodes:
        node.register_prehook(again)


def _nodes(roots: Sequence[Tensor]) -> list[Any]:
    """Return the nodes of a graph, but for those of parameters, which belong to every graph; none if there are many."""
    found = [root.grad_fn for root in roots if root.grad_fn is not None]
    known = set(found)
    for node in found:
        for below, _ in node.next_functions:
            if below is not None and below not in known and below.name() != "torch::autograd::AccumulateGrad":
                known.add(below)
                found.append(below)
        if len(found) > MOST_NODES:
            return []
    return found
