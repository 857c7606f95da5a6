"""Graphs that outlive their update, and who keeps them.

While watching in full a mark is put on the graph behind each model's output; it dies with the graph. If, many updates
later, every graph of several updates is still alive, the program keeps them: their number grows with the run.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any, ClassVar, Final

from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import Event, GraphsAlive, ModelCalled
from trueloop.tracing.graph_holders import find_holders
from trueloop.tracing.object_facts import WeakIdDict
from trueloop.tracing.patch import Patches
from trueloop.tracing.stream import EventStream

OLD: Final = 20  # updates; nothing that is right keeps graphs of so many updates
FEWEST: Final = 8  # different updates whose graphs are alive
KEY: Final = "trueloop"
WALK: Final = 20_000  # nodes searched for a mark: a running total leads through every graph since the first
MOST: Final = 256  # marks that are remembered before those of graphs that are long gone are forgotten


class _Mark:
    """Lies in a graph's metadata, and goes with it."""

    __slots__ = ("__weakref__", "update")
    update: int


class _Marked:
    """The marks on graphs of one kind, and those of them that are alive."""

    def __init__(self) -> None:
        self.alive: set[weakref.ref[_Mark]] = set()
        self.born: dict[weakref.ref[_Mark], tuple[int, CodePosition | None, str]] = {}
        """Mark -> the update it was made at, the call of the model, and the parameter behind which it lies."""
        self._told = 0
        self._most = MOST

    def put(self, node: Any, update: int, place: CodePosition | None, name: str = "") -> None:
        """Mark a graph, unless it is marked."""
        if node is None or KEY in node.metadata:
            return
        node.metadata[KEY] = mark = _Mark()
        mark.update = update
        known = weakref.ref(mark, self.alive.discard)  # no line of Python runs where a graph goes
        self.alive.add(known)
        self.born[known] = (update, place, name)
        if len(self.born) > self._most:
            self._forget(update - OLD)

    def left(self, latest: int) -> list[weakref.ref[_Mark]]:
        """Return the marks up to an update, if all of them are alive, and more than were told before."""
        old = self._old(latest)
        alive = [mark for mark in old if mark in self.alive]
        updates = {self.born[mark][0] for mark in alive}
        if len(alive) < len(old) or len(updates) < FEWEST or len(updates) <= 2 * self._told:
            for mark in set(old) - set(alive):
                del self.born[mark]
            return []
        self._told = len(updates)
        gc.collect()  # a graph in a cycle is not kept by anybody
        return alive if all(mark in self.alive for mark in old) else []

    def _forget(self, latest: int) -> None:
        """Drop marks of graphs that are gone: one for each update tells as much, and one for all that are old."""
        known = set[int]()
        for mark, (update, *_) in list(self.born.items()):
            if mark not in self.alive:
                if max(update, latest) in known:
                    del self.born[mark]
                known.add(max(update, latest))
        self._most = max(MOST, 2 * len(self.born))

    def _old(self, latest: int) -> list[weakref.ref[_Mark]]:
        return [mark for mark, (update, *_) in self.born.items() if update <= latest]


class Graphs:
    """Tells `GraphsAlive`, also while watching lightly.

    Cost: 4 us for each call of a model in full; lightly 0.1 us per update. Once, where all graphs that should be gone
    are alive, a run of the garbage collector and a search of up to 0.25 s.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (GraphsAlive,)

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._outputs, self._parameters = _Marked(), _Marked()
        self._firsts = WeakIdDict[nn.Module, weakref.ref[Tensor]]()
        """The parameter that each model begins with."""
        self._mark = stream.isolated_inner("graphs", self._marked)
        self._look = stream.isolated("graphs", self._looked)

    def install_always(self, patches: Patches) -> None:
        """Begin anew."""
        self._outputs, self._parameters = _Marked(), _Marked()
        self._stream.subscribe(self._hear, ModelCalled)
        self._stream.periodic_checks.append(self._after_update)
        patches.add_handle(self)

    def remove(self) -> None:
        """Stop listening; called with the hooks that are taken off."""
        self._stream.unsubscribe(self._hear)
        if self._after_update in self._stream.periodic_checks:
            self._stream.periodic_checks.remove(self._after_update)

    def install_full_tracing(self, patches: Patches) -> None:
        """Nothing more is needed."""

    def _hear(self, event: ModelCalled) -> None:
        if not event.recomputed:
            self._mark(event)

    def _after_update(self) -> None:
        if len(self._outputs.alive) >= FEWEST or len(self._parameters.alive) >= FEWEST:
            self._look()

    def _marked(self, event: ModelCalled) -> None:
        if event.has_graph:
            self._outputs.put(_graph(event.output), event.update, event.location)
        known = self._firsts.get(event.live_module)
        first = known() if known is not None else None
        if first is None:
            first = next(iter(event.live_module.parameters()), None)  # the program's own may be a list
            if first is not None:
                self._firsts.put(event.live_module, weakref.ref(first))
        if first is not None and first.grad_fn is not None:  # computed from others, as an average of them
            name, _ = next(iter(event.live_module.named_parameters()))
            self._parameters.put(first.grad_fn, event.update, event.location, f"{name} of {event.model.name}")

    def _looked(self) -> None:
        for marked in (self._outputs, self._parameters):
            alive = marked.left(self._stream.update - OLD)
            if alive:
                self._tell(marked, alive)

    def _tell(self, marked: _Marked, alive: list[weakref.ref[_Mark]]) -> None:
        oldest, place, parameter = marked.born[alive[0]]
        keepers = [] if parameter else find_holders(self._is_old)
        self._stream.emit(
            GraphsAlive(
                location=place,
                count=len(alive),
                oldest_update=oldest,
                holders=tuple(holder.description for holder in keepers),
                stored_at=next((holder.location for holder in keepers if holder.location), None),
                parameter=parameter,
            )
        )

    def _is_old(self, node: Any) -> bool:
        """Search a graph for the mark of an old one."""
        latest = self._stream.update - OLD
        queue, seen, place = [node], {node}, 0
        while place < len(queue) and place < WALK:
            mark = queue[place].metadata.get(KEY)
            if mark is not None and mark.update <= latest:
                return True
            for follower, _ in queue[place].next_functions:
                if follower is not None and follower not in seen:
                    seen.add(follower)
                    queue.append(follower)
            place += 1
        return False


def _graph(output: Any, depth: int = 3) -> Any:
    """Return the node behind the first tensor of a model's output that has a graph."""
    if isinstance(output, Tensor):
        return output.grad_fn
    if depth and isinstance(output, dict | list | tuple):
        found = (_graph(inner, depth - 1) for inner in (output.values() if isinstance(output, dict) else output))
        return next((node for node in found if node is not None), None)
    return None
