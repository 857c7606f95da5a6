"""Reads the shapes of tensors that the program compares or, in an evaluation, subtracts, multiplies or combines.

Once for each loop over a loader it also reads the shapes of the variables that the loop subtracts.
"""

import ast
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from types import CodeType, FrameType
from typing import Any, ClassVar, Final

from torch import Tensor, nn

from trueloop.analysis.queries.batch_loops import assigned_in, without_conversions
from trueloop.core.findings import CodePosition, SourceLocation
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.evaluation.compared_with_all_labels import OutputsCompared
from trueloop.failures.evaluation.compared_with_all_labels.pairs_in_text import Combination, find_node, sides
from trueloop.failures.evaluation.compared_with_all_labels.rule import ELEMENTWISE
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import BatchLoaded, Event, LoaderStarted, LossEvaluated, ModelCalled
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.source_calls import call_at, expression_at, tree_of
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_frame, user_location

MAX_LOOPS: Final = 64
MAX_DEPTH: Final = 8
MAX_OUTPUTS: Final = 4096
MAX_EVALUATIONS: Final = 64
"""Phases without a backward pass whose operations are watched, as in a program that evaluates in each update."""
_ALWAYS: Final = ("eq", "__eq__", "ne", "__ne__")
"""Operations that are watched in training, too."""
_SUMMED_ONLY: Final = ("__mul__", "mul", "__and__", "logical_and")
"""Operations that count only if all pairs are added up, as in true positives."""


class ComparedShapes(Hook):
    """Emits `OutputsCompared`.

    Two tensors that are compared on purpose with all of each other, as in a mask of samples of equal class, are views
    of the same labels, or equal. Differences and products are read only between a call of a model that is not trained
    (in eval mode, or without a graph) and the next backward pass; no operation of training is replaced.

    Cost: 1 us for each fully traced batch and comparison; some ms for each loop of the program, at its second batch;
    0.1 ms for each of the first 64 evaluations, and 0.5 us for each difference in them.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (OutputsCompared,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._loops: dict[tuple[CodeType, int], int] = {}
        """Function and line of a loop -> number of batches seen."""
        self._rows = deque[int](maxlen=MAX_OUTPUTS)
        """Numbers of samples of the latest outputs of models that have one column."""
        self._compared = set[CodePosition | None]()
        self._evaluation: Patches | None = None
        """The operations that are watched until the next backward pass; None in training."""
        self._evaluations = 0
        self._has_graphs = False
        """Whether the outputs of the running evaluation have graphs."""
        self._program = program
        self._record = stream.isolated_inner("compared shapes", self._on_event)
        self._compare = stream.isolated("compared shapes", self._on_compared)
        self._array = stream.isolated("compared arrays", self._on_array_reduced)
        program.on_model_called.append(stream.isolated_inner("outputs of one column", self._on_model_called))

    def install_always(self, patches: Patches) -> None:
        """Receive the batches."""
        self._loops.clear()
        self._compared.clear()
        self._rows.clear()
        self._evaluations = 0
        for name in _ALWAYS:
            patches.replace(Tensor, name, partial(self._comparison, name))
        patches.add_undo(lambda: self._stream.unsubscribe(self._record))
        patches.add_undo(self._end_evaluation)
        self._stream.subscribe(self._record, LoaderStarted, BatchLoaded, LossEvaluated)

    def _on_model_called(self, event: ModelCalled) -> None:
        shape = tuple(event.output.shape) if isinstance(event.output, Tensor) else ()
        if len(shape) == 2 and shape[1] == 1 and shape[0]:
            self._rows.append(shape[0])
            is_evaluated = not event.has_graph or not event.live_module.training  # type: ignore[union-attr]
            if is_evaluated and self._evaluation is None and not event.recomputed:
                self._begin_evaluation()
                self._has_graphs = event.has_graph
            elif not is_evaluated:
                self._end_evaluation()

    def _begin_evaluation(self) -> None:
        if self._evaluations >= MAX_EVALUATIONS:
            return
        self._evaluations += 1
        self._evaluation = Patches()
        self._program.before_backward.append(self._end_evaluation)
        for name in ("sub", "__sub__", *_SUMMED_ONLY):
            self._evaluation.replace(Tensor, name, partial(self._comparison, name))
        arrays = sys.modules.get("numpy")
        for name in ("mean", "sum") if arrays is not None and "numba" not in sys.modules else ():
            self._evaluation.replace(arrays, name, self._array_reduction)

    def _end_evaluation(self) -> None:
        if self._evaluation is not None:
            self._evaluation.restore()
            self._evaluation = None
        if self._end_evaluation in self._program.before_backward:
            self._program.before_backward.remove(self._end_evaluation)

    def _comparison(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, on_compared, rows = self._stream, self._compare, self._rows

        def compare(tensor: Any, other: Any, *args: Any, **options: Any) -> Any:
            if rows and stream.active and type(tensor) is Tensor is type(other) and _are_crossed(tensor, other):
                on_compared(name, tensor, other)
            return original(tensor, other, *args, **options)

        return compare

    def _array_reduction(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, on_reduced = self._stream, self._array

        def reduce(*args: Any, **options: Any) -> Any:
            if stream.active and len(args) == 1 and not options and getattr(args[0], "ndim", 0) == 2:
                on_reduced(*args[0].shape)
            return original(*args, **options)

        return reduce

    def _on_compared(self, name: str, tensor: Tensor, other: Tensor) -> None:
        column, row = (tensor, other) if tensor.dim() == 2 else (other, tensor)
        if not self._is_pair(tuple(column.shape), tuple(row.shape)):
            return
        if name not in _ALWAYS and column.requires_grad and not self._has_graphs:
            return  # the first batch of the training after an evaluation
        if self._program.is_other_thread() or not (has_storage(tensor) and has_storage(other)):
            return
        location = user_location()
        if location in self._compared or (tensor.is_cpu and other.is_cpu and _are_same(column, row)):
            return
        self._compared.add(location)
        frame = user_frame()
        found = expression_at(frame) if frame is not None else None
        if location is None or frame is None or not _is_mistake(frame, found, column, is_sum=name in _SUMMED_ONLY):
            return
        self._stream.emit(OutputsCompared(
            text="" if found is None else ast.unparse(found), compared_at=location.source_location,
            output_shape=tuple(column.shape), label_shape=tuple(row.shape),
        ))  # fmt: skip

    def _is_pair(self, column: tuple[int, ...], row: tuple[int, ...]) -> bool:
        """Return True for the shapes (N, 1) and (N,), if models returned N rows in one or several calls."""
        samples = column[0] if column else 0
        if samples < 2 or column != (samples, 1) or row != (samples,):
            return False
        sums = {0, *accumulate(self._rows)}
        return any(each + samples in sums for each in sums)

    def _on_array_reduced(self, rows: int, columns: int) -> None:
        """Check the arrays whose difference or comparison is reduced: ``np.mean((predicted - labels) ** 2)``."""
        frame = user_frame()
        found = call_at(frame) if rows == columns > 1 and frame is not None else None
        if found is None or frame is None or len(found.args) != 1 or not self._is_pair((rows, 1), (rows,)):
            return
        values, location = {**frame.f_globals, **variables(frame)}, user_location()
        for node in nodes_in(found.args[0], ast.BinOp, ast.Compare):
            pair = [values.get(each.id) if isinstance(each, ast.Name) else None for each in sides(node)]
            shapes = [tuple(getattr(each, "shape", ())) for each in pair]
            is_column_first = len(shapes) == 2 and len(shapes[0]) == 2
            column, row = shapes if is_column_first else (shapes or [(), ()])[::-1]
            if location is None or location in self._compared or not self._is_pair(column, row):
                continue
            self._compared.add(location)
            if _is_mistake(frame, node, None, is_sum=False):
                self._stream.emit(OutputsCompared(
                    text=ast.unparse(node), compared_at=location.source_location,
                    output_shape=column, label_shape=row,
                ))  # fmt: skip

    def _on_loss(self, event: LossEvaluated) -> None:
        """Check a loss of PyTorch that measures an evaluation, which PyTorch also warns about."""
        loss, location = event.live_loss, event.location
        shapes = tuple(loss.answers.shape), tuple(loss.targets.shape)
        column, row = shapes if len(shapes[0]) == 2 else shapes[::-1]
        if location is None or location in self._compared or loss.reduction == "none" or event.within_model:
            return
        if self._is_pair(column, row):
            self._compared.add(location)
            frame = user_frame()
            found = expression_at(frame) if frame is not None else None
            if frame is None or _is_mistake(frame, found, None, is_sum=False):
                self._stream.emit(OutputsCompared(
                    text="" if found is None else ast.unparse(found), compared_at=location.source_location,
                    output_shape=column, label_shape=row,
                ))  # fmt: skip

    def _on_event(self, event: Any) -> None:
        if isinstance(event, LossEvaluated):
            self._on_loss(event)
            return
        frame = user_frame()
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
        for compared, pair in _comparisons(loop):
            for output, label in (pair, pair[::-1]):
                shapes = [_shape(loop, each, values) for each in (output, label)]
                is_labelled = _comes_from(loop, label, batch, {})
                if all(shapes) and is_labelled and _comes_from(loop, output, set(), values):
                    self._stream.emit(OutputsCompared(
                        text=ast.unparse(compared), compared_at=SourceLocation(file, compared.lineno),
                        output_shape=shapes[0], label_shape=shapes[1],
                    ))  # fmt: skip


def _are_crossed(one: Tensor, other: Tensor) -> bool:
    """Return True for the shapes (N, 1) and (N,) in either order."""
    first, second = one.shape, other.shape
    column, row = (first, second) if len(first) == 2 else (second, first)
    return len(column) == 2 and len(row) == 1 and column[1] == 1 and column[0] == row[0] > 1


def _is_mistake(frame: FrameType, node: ast.expr | None, column: Tensor | None, *, is_sum: bool) -> bool:
    """Return True unless the text around an expression shows that the program wants all pairs.

    Args:
        frame: the frame that computes it.
        node: the expression; None if its text is not known.
        column: the tensor of one column, if it is known.
        is_sum: whether only a sum over all pairs is a mistake.
    """
    tree = tree_of(frame.f_code.co_filename) if node is not None else None
    inner = None if tree is None or node is None else find_node(tree, node, frame.f_lineno)
    if tree is None or inner is None:
        return not is_sum
    text = Combination(tree, inner)
    base = None if column is None else column._base  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    is_reshaped = column is not None and base is not None and base.numel() == column.numel()
    if text.wants_pairs() or (is_reshaped and text.has_arguments()):
        return False  # distances(outputs[:, None], labels)
    return text.is_summed() or not is_sum


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
