"""Reads the shapes of tensors that the program compares, and once for each loop over a loader of their differences."""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, ClassVar, Final

from torch import Tensor, nn

from trueloop.analysis.queries.batch_loops import assigned_in, without_conversions
from trueloop.core.findings import CodePosition, SourceLocation
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.evaluation.compared_with_all_labels import OutputsCompared
from trueloop.failures.evaluation.compared_with_all_labels.rule import ELEMENTWISE
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import BatchLoaded, Event, LoaderStarted, ModelCalled
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.source_calls import expression_at, tree_of
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code, user_location

MAX_LOOPS: Final = 64
MAX_DEPTH: Final = 8


class ComparedShapes(Hook):
    """Emits `OutputsCompared`.

    Two tensors that are compared on purpose with all of each other, as in a mask of samples of equal class, are views
    of the same labels, or equal.

    Cost: 1 us for each fully traced batch and comparison; some ms for each loop of the program, at its second batch.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (OutputsCompared,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._loops: dict[tuple[CodeType, int], int] = {}
        """Function and line of a loop -> number of batches seen."""
        self._columns = 0
        """Number of samples of the latest outermost call of a model if it returned one column; 0 otherwise."""
        self._compared = set[CodePosition | None]()
        self._program = program
        self._record = stream.isolated_inner("compared shapes", self._on_event)
        self._compare = stream.isolated("compared shapes", self._on_compared)
        program.on_model_called.append(stream.isolated_inner("outputs of one column", self._on_model_called))

    def install_always(self, patches: Patches) -> None:
        """Receive the batches."""
        self._loops.clear()
        self._compared.clear()
        self._columns = 0
        for name in ("eq", "__eq__", "ne", "__ne__"):
            patches.replace(Tensor, name, self._comparison)
        patches.add_undo(lambda: self._stream.unsubscribe(self._record))
        self._stream.subscribe(self._record, LoaderStarted, BatchLoaded)

    def _on_model_called(self, event: ModelCalled) -> None:
        shape = tuple(event.output.shape) if isinstance(event.output, Tensor) else ()
        self._columns = shape[0] if len(shape) == 2 and shape[1] == 1 and shape[0] > 1 else 0

    def _comparison(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, on_compared = self._stream, self._compare

        def compare(tensor: Any, other: Any) -> Any:
            if self._columns and stream.active and type(tensor) is Tensor is type(other):
                on_compared(tensor, other)
            return original(tensor, other)

        return compare

    def _on_compared(self, tensor: Tensor, other: Tensor) -> None:
        if {tuple(tensor.shape), tuple(other.shape)} != {(self._columns, 1), (self._columns,)}:
            return
        if self._program.is_other_thread() or not (has_storage(tensor) and has_storage(other)):
            return
        location = user_location()
        if location in self._compared or (tensor.is_cpu and other.is_cpu and _are_same(tensor, other)):
            return
        self._compared.add(location)
        column, row = (tensor, other) if tensor.dim() == 2 else (other, tensor)
        frame = _user_frame()
        found = expression_at(frame) if frame is not None else None
        if location is not None:
            self._stream.emit(OutputsCompared(
                text="" if found is None else ast.unparse(found), compared_at=location.source_location,
                output_shape=tuple(column.shape), label_shape=tuple(row.shape),
            ))  # fmt: skip

    def _on_event(self, event: Any) -> None:
        frame = _user_frame()
        if frame is None or len(self._loops) >= MAX_LOOPS:
            return
        seen = self._loops.get((frame.f_code, frame.f_lineno), 0)
        if isinstance(event, LoaderStarted):
            if seen < 2:
                event.needs_batches.add(self)
        elif seen < 2:
            self._loops[frame.f_code, frame.f_lineno] = seen + 1
            if seen == 1:
                self._read(frame)
        else:
            event.needs_batches.discard(self)

    def _read(self, frame: FrameType) -> None:
        """Emit the shapes of the comparisons of the loop that a frame is in."""
        file = frame.f_code.co_filename
        tree = tree_of(file, "for ")
        loops = list(nodes_in(tree, ast.For)) if tree is not None else []
        loop = next((each for each in loops if each.lineno == frame.f_lineno), None)
        if loop is None:
            return
        values = {**frame.f_globals, **variables(frame)}
        batch = {each.id for each in nodes_in(loop.target, ast.Name)}
        for compared, sides in _comparisons(loop):
            for output, label in (sides, sides[::-1]):
                shapes = [_shape(loop, each, values) for each in (output, label)]
                is_labelled = _comes_from(loop, label, batch, {})
                if all(shapes) and is_labelled and _comes_from(loop, output, set(), values):
                    self._stream.emit(OutputsCompared(
                        text=ast.unparse(compared), compared_at=SourceLocation(file, compared.lineno),
                        output_shape=shapes[0], label_shape=shapes[1],
                    ))  # fmt: skip


def _user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    while frame is not None and not is_user_code(frame.f_code):
        frame = frame.f_back
    return frame


def _are_same(column: Tensor, row: Tensor) -> bool:
    is_view = column.untyped_storage().data_ptr() == row.untyped_storage().data_ptr()
    return is_view or not bool((column.detach().flatten().double() - row.detach().flatten().double()).any())


def _comparisons(loop: ast.For) -> Iterator[tuple[ast.expr, tuple[ast.expr, ast.expr]]]:
    """Yield each comparison or difference in a loop that is summed or averaged, with its sides."""
    losses = list(_losses(loop))
    for node in nodes_in(loop, ast.Call):
        match node:
            case ast.Call(func=ast.Attribute(attr="sum" | "mean", value=ast.Name(id="torch" | "np")), args=[inner]):
                pass
            case ast.Call(func=ast.Attribute(attr="sum" | "mean", value=inner), args=[], keywords=[]):
                pass
            case _:
                continue
        compared = _peeled(loop, inner)
        match compared:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                yield compared, (left, right)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                if any(encloses(each, compared) for each in losses):
                    continue  # LOS003 reports it
                yield compared, (left, right)
            case ast.Call(func=ast.Attribute(attr="eq" | "ne", value=left), args=[right]):
                yield compared, (left, right)
            case ast.Call(func=ast.Attribute(attr="eq" | "ne"), args=[left, right]):
                yield compared, (left, right)
            case _:
                pass


def _losses(loop: ast.For) -> Iterator[ast.expr]:
    """Yield the expressions from which the backward passes of a loop start."""
    for each in nodes_in(loop, ast.Call):
        match each:
            case ast.Call(func=ast.Attribute(attr="backward", value=ast.Name(id=name))):
                yield from assigned_in(loop, name)
            case ast.Call(func=ast.Attribute(attr="backward", value=value)):
                yield value
            case _:
                pass


def _peeled(loop: ast.For, node: ast.expr, *, names: bool = True) -> ast.expr:
    """Return the expression from which elementwise operations compute a value, also through variables of the loop."""
    for _ in range(MAX_DEPTH):
        node = without_conversions(node)
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "F" | "np"), attr=attr), args=[inner, *_]):
                is_elementwise = attr in ELEMENTWISE
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)):
                is_elementwise = attr in ELEMENTWISE
            case ast.Compare(left=inner, comparators=[ast.Constant()]) | ast.BinOp(left=inner, right=ast.Constant()):
                is_elementwise = True
            case ast.Name(id=name) if names:
                found = assigned_in(loop, name)
                is_elementwise, inner = len(found) == 1, found[0] if found else node
            case _:
                return node
        if not is_elementwise:
            return node
        node = inner
    return node


def _shape(loop: ast.For, node: ast.expr, values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a variable of the loop, perhaps after elementwise operations; () if unknown."""
    node = _peeled(loop, node, names=False)
    value = values.get(node.id) if isinstance(node, ast.Name) and len(assigned_in(loop, node.id)) < 2 else None
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _comes_from(loop: ast.For, node: ast.expr, names: set[str], values: Mapping[str, Any]) -> bool:
    """Return True for a variable of the batch, or for the result of a call of a module, after elementwise steps."""
    node = _peeled(loop, node)
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Name) and node.id in names
    return isinstance(_resolved(node.func, values), nn.Module)


def _resolved(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Return the value of a variable, or of an attribute of an object: ``self.model``."""
    if isinstance(node, ast.Name):
        return values.get(node.id)
    owner = _resolved(node.value, values) if isinstance(node, ast.Attribute) else None
    own: dict[str, Any] = getattr(owner, "__dict__", {})
    modules: dict[str, Any] = own.get("_modules", {}) if isinstance(owner, nn.Module) else {}
    return own.get(node.attr, modules.get(node.attr)) if isinstance(node, ast.Attribute) else None


HOOK: Final = ComparedShapes
