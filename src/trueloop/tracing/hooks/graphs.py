"""Traces graphs that are still in memory after their update, and the variables that hold them.

During full tracing a marker is put on the graph of each model output, and is freed with the graph. If the graphs of
several updates are all still in memory many updates later, the program holds them, and their number grows.
"""

import gc
import weakref
from typing import Any, ClassVar, Final

from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import Event, GraphsAlive, ModelCalled
from trueloop.tracing.graph_holders import find_holders
from trueloop.tracing.patch import Patches
from trueloop.tracing.stream import EventStream
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_AGE: Final = 20  # updates; no correct program holds graphs for so long
MIN_UPDATES: Final = 8  # updates whose graphs are all in memory before an event is emitted
KEY: Final = "trueloop"
MAX_NODES: Final = 20_000  # nodes searched for a marker, as a running total contains every graph since the first
MAX_MARKERS: Final = 256  # number of markers from which on those of freed graphs are dropped


class _Marker:
    """An object in a graph's metadata that is freed with the graph."""

    __slots__ = ("__weakref__", "update")
    update: int


class _Markers:
    """The markers on graphs of one kind (of outputs, or of parameters), and which of them are in memory."""

    def __init__(self) -> None:
        self.alive: set[weakref.ref[_Marker]] = set()
        self.created: dict[weakref.ref[_Marker], tuple[int, CodePosition | None, str]] = {}
        """Marker -> its update, the line of the model call, and the parameter whose graph it marks."""
        self._reported_updates = 0
        self._limit = MAX_MARKERS
        self._oldest: tuple[weakref.ref[_Marker], int] | None = None
        """The oldest marker in memory at the latest check, and its age."""
        self._held_updates = 0
        """Number of updates for which graphs were held before they were freed, as by a list that is cleared."""

    def put(self, node: Any, update: int, location: CodePosition | None, name: str = "") -> None:
        """Put a marker on a graph that has none."""
        if node is None or KEY in node.metadata:
            return
        node.metadata[KEY] = marker = _Marker()
        marker.update = update
        reference = weakref.ref(marker, self.alive.discard)  # a method of a set, so freeing a graph runs no Python code
        self.alive.add(reference)
        self.created[reference] = (update, location, name)
        if len(self.created) > self._limit:
            self._drop_freed(update - MIN_AGE)

    def find_all_alive(self, update: int) -> list[weakref.ref[_Marker]]:
        """Return the old markers of lines that freed none of theirs, if they mark many more updates than reported.

        A marker is old after `MIN_AGE` updates, or after twice as many as graphs were held before they were freed.
        """
        if self._oldest is not None and self._oldest[0] not in self.alive:
            self._held_updates = max(self._held_updates, self._oldest[1])
        oldest = next((marker for marker in self.created if marker in self.alive), None)
        self._oldest = None if oldest is None else (oldest, update - self.created[oldest][0])
        latest = update - max(MIN_AGE, 2 * self._held_updates)
        old = self._up_to(latest)
        freed = [marker for marker in old if marker not in self.alive]
        lines_freed = {self.created[marker][1] for marker in freed}
        alive = [marker for marker in old if marker in self.alive and self.created[marker][1] not in lines_freed]
        for marker in freed:
            del self.created[marker]
        updates = {self.created[marker][0] for marker in alive}
        if len(updates) < MIN_UPDATES or len(updates) <= 2 * self._reported_updates:
            return []
        self._reported_updates = len(updates)
        gc.collect()  # frees graphs in reference cycles
        return alive if all(marker in self.alive for marker in alive) else []

    def _drop_freed(self, latest: int) -> None:
        """Drop markers of freed graphs, except one for each update and one for all old updates together."""
        retained_updates = set[int]()
        for marker, (update, *_) in list(self.created.items()):
            if marker not in self.alive:
                if max(update, latest) in retained_updates:
                    del self.created[marker]
                retained_updates.add(max(update, latest))
        self._limit = max(MAX_MARKERS, 2 * len(self.created))

    def _up_to(self, latest: int) -> list[weakref.ref[_Marker]]:
        return [marker for marker, (update, *_) in self.created.items() if update <= latest]


class Graphs:
    """Emits `GraphsAlive`, also during sampled tracing.

    Cost: 4 us for each fully traced call of a model, and 0.1 us per update in sampled tracing. If all old graphs are in
    memory, once a garbage collection and a search of up to a second.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (GraphsAlive,)

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._outputs, self._parameters = _Markers(), _Markers()
        self._first_parameters = WeakIdDict[nn.Module, weakref.ref[Tensor]]()
        """Model -> its first parameter."""
        self._add_markers = stream.isolated_inner("graphs", self._mark_graphs)
        self._check = stream.isolated("graphs", self._check_markers)

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches."""
        self._outputs, self._parameters = _Markers(), _Markers()
        self._stream.subscribe(self._on_model_called, ModelCalled)
        self._stream.periodic_checks.append(self._periodic_check)
        patches.add_handle(self)

    def remove(self) -> None:
        """Unsubscribe; called when the hooks are removed."""
        self._stream.unsubscribe(self._on_model_called)
        if self._periodic_check in self._stream.periodic_checks:
            self._stream.periodic_checks.remove(self._periodic_check)

    def install_full_tracing(self, patches: Patches) -> None:
        """Do nothing: `install_always` has installed everything."""

    def _on_model_called(self, event: ModelCalled) -> None:
        if not event.recomputed:
            self._add_markers(event)

    def _periodic_check(self) -> None:
        if len(self._outputs.alive) >= MIN_UPDATES or len(self._parameters.alive) >= MIN_UPDATES:
            self._check()

    def _mark_graphs(self, event: ModelCalled) -> None:
        if event.has_graph:
            self._outputs.put(_graph(event.output), event.update, event.location)
        reference = self._first_parameters.get(event.live_module)
        first = reference() if reference is not None else None
        if first is None:
            first = next(iter(event.live_module.parameters()), None)  # an overridden parameters() may return a list
            if first is not None:
                self._first_parameters.put(event.live_module, weakref.ref(first))
        if first is not None and first.grad_fn is not None:  # computed from other tensors, such as a moving average
            name, _ = next(iter(event.live_module.named_parameters()))
            self._parameters.put(first.grad_fn, event.update, event.location, f"{name} of {event.model.name}")

    def _check_markers(self) -> None:
        for markers in (self._outputs, self._parameters):
            alive = markers.find_all_alive(self._stream.update)
            if alive:
                self._report(markers, alive)

    def _report(self, markers: _Markers, alive: list[weakref.ref[_Marker]]) -> None:
        oldest, location, parameter = markers.created[alive[0]]
        holders = [] if parameter else find_holders(self._is_old)
        self._stream.emit(
            GraphsAlive(
                location=location,
                count=len(alive),
                oldest_update=oldest,
                holders=tuple(holder.description for holder in holders),
                stored_at=next((holder.location for holder in holders if holder.location), None),
                parameter=parameter,
            )
        )

    def _is_old(self, node: Any) -> bool:
        """Return True if a graph contains the marker of an old graph."""
        latest = self._stream.update - MIN_AGE
        queue, seen, index = [node], {node}, 0
        while index < len(queue) and index < MAX_NODES:
            marker = queue[index].metadata.get(KEY)
            if marker is not None and marker.update <= latest:
                return True
            for follower, _ in queue[index].next_functions:
                if follower is not None and follower not in seen:
                    seen.add(follower)
                    queue.append(follower)
            index += 1
        return False


def _graph(output: Any, depth: int = 3) -> Any:
    """Return the last graph node of the first tensor in a model's output that has a graph."""
    if isinstance(output, Tensor):
        return output.grad_fn
    if depth and isinstance(output, dict | list | tuple):
        found = (_graph(inner, depth - 1) for inner in (output.values() if isinstance(output, dict) else output))
        return next((node for node in found if node is not None), None)
    return None
