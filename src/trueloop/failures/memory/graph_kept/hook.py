"""Traces graphs that are still in memory after their update, and the variables that hold them.

During full tracing a marker is put on the graph of each model output, and is freed with the graph. If the graphs of
several updates are all still in memory many updates later, the program holds them, and their number grows.

Searching the garbage collector's referrers for the variables takes seconds and finds internal temporaries. Searching
forwards from the locals and globals of the program's frames takes milliseconds, and finds names in the source code.
"""

import ast
import collections
import gc
import linecache
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from types import CodeType, FrameType
from typing import Any, ClassVar, Final, NamedTuple

from torch import Tensor, nn

from trueloop.analysis.source_file import last_name
from trueloop.core.findings import CodePosition, SourceLocation
from trueloop.core.source_text import nodes_in
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, GraphsAlive, ModelCalled
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.hooks.module_calls import tensors_in
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code, user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_AGE: Final = 20  # updates; no correct program holds graphs for so long
MIN_UPDATES: Final = 8  # updates whose graphs are all in memory before an event is emitted
KEY: Final = "trueloop"
MAX_NODES: Final = 20_000  # nodes searched for a marker, as a running total contains every graph since the first
MAX_MARKERS: Final = 256  # number of markers from which on those of freed graphs are dropped
MAX_OBJECTS: Final = 100_000  # number of objects searched for tensors
EMERGENCY_S: Final = 5.0  # seconds, far beyond what MAX_OBJECTS take
MAX_DEPTH: Final = 7
_SEQUENCES: Final = (list, tuple, set, frozenset, collections.deque)
_PLAIN: Final = (int, float, complex, str, bytes, type(None), type, types.ModuleType)
_STORING_METHODS: Final = frozenset(("append", "appendleft", "add", "extend", "insert", "setdefault", "update", "put"))


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
        if KEY in node.metadata:
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
        old = [marker for marker, (made, *_) in self.created.items() if made <= latest]
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


class Graphs(Hook):
    """Emits `GraphsAlive`, also during sampled tracing.

    Cost: 4 us for each fully traced call of a model, and 0.1 us per update in sampled tracing. If all old graphs are in
    memory, once a garbage collection and a search of up to a second.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (GraphsAlive,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._model_called = False
        """Whether a model was called with a graph since the latest backward pass."""
        self._outputs, self._parameters = _Markers(), _Markers()
        self._first_parameters = WeakIdDict[nn.Module, weakref.ref[Tensor]]()
        """Model -> its first parameter."""
        self._add_markers = stream.isolated_inner("graphs", self._mark_graphs)
        self._mark_root = stream.isolated_inner("graphs", self._on_backward)
        self._check = stream.isolated("graphs", self._check_markers)

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches."""
        self._outputs, self._parameters = _Markers(), _Markers()
        self._stream.subscribe(self._add_markers, ModelCalled)
        self._program.on_backward_start.append(self._mark_root)
        self._stream.periodic_checks.append(self._periodic_check)
        patches.add_handle(self)

    def remove(self) -> None:
        """Unsubscribe; called when the hooks are removed."""
        self._stream.unsubscribe(self._add_markers)
        if self._mark_root in self._program.on_backward_start:
            self._program.on_backward_start.remove(self._mark_root)
        if self._periodic_check in self._stream.periodic_checks:
            self._stream.periodic_checks.remove(self._periodic_check)

    def _periodic_check(self) -> None:
        if len(self._outputs.alive) >= MIN_UPDATES or len(self._parameters.alive) >= MIN_UPDATES:
            self._check()

    def _mark_graphs(self, event: ModelCalled) -> None:
        if event.recomputed:
            return
        if event.has_graph:
            self._model_called = True
            graph = next(each.grad_fn for each in tensors_in(event.output) if each.grad_fn is not None)
            self._outputs.put(graph, event.update, event.location)
        reference = self._first_parameters.get(event.live_module)
        first = reference() if reference is not None else None
        if first is None:
            first = next(iter(event.live_module.parameters()), None)  # an overridden parameters() may return a list
            if first is not None:
                self._first_parameters.put(event.live_module, weakref.ref(first))
        if first is not None and first.grad_fn is not None:  # computed from other tensors, such as a moving average
            name, _ = next(iter(event.live_module.named_parameters()))
            self._parameters.put(first.grad_fn, event.update, event.location, f"{name} of {event.model.name}")

    def _on_backward(self, roots: Sequence[Tensor]) -> None:
        """Mark the graph of a loss that is computed without a model, from tensors that the program holds itself."""
        called, self._model_called = self._model_called, False
        if not called and roots[0].grad_fn is not None:
            self._outputs.put(roots[0].grad_fn, self._stream.update, user_location())

    def _check_markers(self) -> None:
        for markers in (self._outputs, self._parameters):
            if alive := markers.find_all_alive(self._stream.update):
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


class Holder(NamedTuple):
    """A variable that holds old graphs."""

    description: str
    """Name and scope of the variable: "losses[*] (local of train, train.py)"."""
    graphs: int
    """Number of old graphs that it holds."""
    location: SourceLocation | None
    """The first line that stores something in the variable, if found in the source code."""


class _Root(NamedTuple):
    """A variable of the program."""

    name: str
    where: str
    code: CodeType


def find_holders(is_old: Callable[[Any], bool], frame: FrameType | None = None) -> list[Holder]:
    """Return the variables that hold tensors with an old graph, those with the most graphs first.

    Args:
        is_old: returns whether a node belongs to a graph that should have been freed.
        frame: the search starts here and continues in the callers; None = the frame that calls this.

    Cost: up to a second for MAX_OBJECTS; for a program with some thousand objects 1 to 5 ms.
    """
    found: collections.Counter[tuple[_Root, str]] = collections.Counter()
    for root, path, tensor in _tensors(frame or sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        if tensor.grad_fn is not None and is_old(tensor.grad_fn):
            found[root, path] += 1
    return [
        Holder(f"{root.name}{path} ({root.where})", count, _find_store(root, path))
        for (root, path), count in found.most_common(5)
    ]


def _tensors(frame: FrameType) -> Iterator[tuple[_Root, str, Tensor]]:
    """Yield every reachable tensor with its access path."""
    queue: collections.deque[tuple[Any, _Root, str, int]] = collections.deque(
        (value, root, "", 0) for root, value in _variables(frame)
    )
    seen: set[int] = set()
    end_s = perf_counter() + EMERGENCY_S
    while queue and len(seen) < MAX_OBJECTS and perf_counter() < end_s:
        value, root, path, depth = queue.popleft()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield root, path, value
        elif depth < MAX_DEPTH:
            queue.extend((inner, root, path + step, depth + 1) for step, inner in _inside(value))


def _variables(frame: FrameType | None) -> Iterator[tuple[_Root, Any]]:
    modules: set[int] = set()
    while frame is not None:
        code = frame.f_code
        if is_user_code(code):
            file = os.path.basename(code.co_filename)  # noqa: PTH119
            own = variables(frame)
            if own is not frame.f_globals:
                for name, value in list(own.items()):
                    yield _Root(name, f"local of {code.co_name}, {file}", code), value
            if id(frame.f_globals) not in modules:
                modules.add(id(frame.f_globals))
                for name, value in list(frame.f_globals.items()):
                    yield _Root(name, f"global, {file}", code), value
        frame = frame.f_back


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the contents of an object with their access paths, without calling code of the program."""
    if type(value) in (dict, collections.OrderedDict, collections.defaultdict):
        for key, inner in list(value.items()):
            yield (f"[{key!r}]" if isinstance(key, str) else "[*]"), inner
    elif type(value) in _SEQUENCES:
        for inner in list(value):
            yield "[*]", inner
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if cell != types.CellType():
                yield f".{name}", cell.cell_contents
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
    else:
        attributes = getattr(type(value), "__dict__", {}).get("__dict__") and object.__getattribute__(value, "__dict__")
        for name, inner in list(attributes.items()) if isinstance(attributes, dict) else ():
            yield f".{name}", inner


def _find_store(root: _Root, path: str) -> SourceLocation | None:
    """Return the first source line that stores something in a variable or attribute."""
    name = path.partition("[")[0].rpartition(".")[2] or root.name
    file = root.code.co_filename
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    lines = [node.lineno for node in nodes_in(tree, ast.stmt) if _stores(node, name)]
    return SourceLocation(file, min(lines)) if lines else None


def _stores(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.AugAssign(target=target) | ast.Assign(targets=[ast.Subscript(value=target)]):
            return last_name(target) == name
        case ast.Assign(targets=[target], value=ast.BinOp() as sum_of):
            parts = {last_name(part) for part in nodes_in(sum_of, ast.expr)}
            return last_name(target) == name and name in parts  # x = x + y
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr=method))):
            return method in _STORING_METHODS and last_name(target) == name
        case _:
            return False


HOOK: Final = Graphs
