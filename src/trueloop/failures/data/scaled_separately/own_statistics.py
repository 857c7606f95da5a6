"""Finds held-out data that the source scales with its own statistics: mean and deviation, or minimum and maximum."""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_in, function_of, single_assignments
from trueloop.analysis.queries.held_out_names import data_words, is_held_out, is_training
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in, walk
from trueloop.failures.data.scaled_separately.listed_parts import listed_parts

_CENTRES: Final = frozenset(("mean", "nanmean", "median", "nanmedian", "min", "amin", "nanmin"))
_WIDTHS: Final = frozenset(("std", "nanstd", "var", "nanvar", "max", "amax", "nanmax", "ptp"))
_LIBRARIES: Final = frozenset(("np", "numpy", "torch"))
_SCALING_FUNCTIONS: Final = frozenset((
    "scipy.stats.zscore", "sklearn.preprocessing.scale", "sklearn.preprocessing.minmax_scale",
    "sklearn.preprocessing.robust_scale",
))  # fmt: skip
_SINGLE: Final = frozenset(
    ("img", "image", "sample", "frame", "signal", "audio", "wave", "waveform", "sequence", "row")
)
"""Words in the names of one sample, whose own statistics do not depend on the other samples."""


class _Scaled(NamedTuple):
    """Data that is standardised with its own statistics."""

    node: Any
    """The expression, or the call of the function that contains it."""
    data: ast.expr
    target: ast.AST | None
    """The variable that holds the result; None if there is none."""

    def is_called(self, held_out: bool) -> bool:
        """Return True if data is called held-out data, or training data, by its name or the name of the result."""
        named = is_held_out if held_out else is_training
        other = is_training if held_out else is_held_out
        return named(self.data) or (self.target is not None and not other(self.data) and named(self.target))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the standardisations of held-out data, or of batches of it, with their own statistics."""
    own = list(_standardised(source))
    yield from _batches(source, own)
    found = [part for each in own for part in _with_callers(source, each)]
    found = [each for each in found if not data_words(each.data) & _SINGLE]
    training = [each for each in found if each.is_called(held_out=False)]
    for each in found if training else ():
        if each.is_called(held_out=True):
            yield Hit(
                message=f"`{ast.unparse(each.data)}` is scaled with its own statistics, and "
                f"`{ast.unparse(training[0].data)}` with others: equal values no longer mean the same. Use the "
                "statistics of the training data for both.",
                node=each.node,
                related=((training[0].node, "the training data"),),
            )


def _batches(source: SourceFile, own: list[_Scaled]) -> Iterator[Hit]:
    """Yield each evaluation batch that is standardised by its own statistics, if the training data is not."""
    loops = {id(each.node): _batch_loop(source, each) for each in own}
    trains = [loop for loop in loops.values() if loop is not None and _calls(loop, "backward")]
    nodes = {id(each.node) for each in own}
    all_rows = [each for each in own if loops[id(each.node)] is None and not each.is_called(held_out=True)]
    others = [each.node for each in all_rows if isinstance(function_of(source, each.node), ast.Module)]
    for node in source.nodes_of(ast.BinOp):
        match node:
            case ast.BinOp(op=ast.Div(), left=ast.BinOp(op=ast.Sub(), right=ast.Name() | ast.Attribute() as centre)):
                values = [*assigned_in(function_of(source, node), dotted_name(centre))] or [
                    *assigned_in(source.tree, dotted_name(centre))
                ]
                is_mean = any(last_name(call.func) in _CENTRES for v in values for call in nodes_in(v, ast.Call))
                others += [node] if is_mean and id(node) not in nodes else []
            case _:
                pass
    for each in own if others and not trains else ():
        loop = loops[id(each.node)]
        if loop is None or data_words(each.data) & _SINGLE or each.is_called(held_out=False):
            continue
        in_fold = any(encloses(loop, other) for other in others)  # which has training data of its own
        if not in_fold and _is_evaluation(source, loop):
            yield Hit(
                message=f"`{ast.unparse(each.data)}` is scaled with the statistics of one batch, and the training data "
                "with those of all its samples: equal values no longer mean the same, and the outputs of a sample "
                "depend on the batch. Use the statistics of the training data.",
                node=each.node,
                related=((others[0], "the training data"),),
            )


def _batch_loop(source: SourceFile, scaled: _Scaled) -> ast.For | None:
    """Return the loop of which standardised data is one batch, by a statistic over dimension 0; None for other data."""
    name = dotted_name(scaled.data)
    loop = next((each for each in enclosing_nodes(source, scaled.node) if isinstance(each, ast.For)), None)
    if loop is None:
        return None
    names = {dotted_name(t) for t, v in single_assignments(loop) if isinstance(v, ast.Subscript)}
    is_part = isinstance(scaled.data, ast.Subscript) or name in names
    is_batch = is_part or name in {dotted_name(each) for each in walk(loop.target)}
    return loop if is_batch and any(map(_is_over_rows, nodes_in(loop, ast.Call))) else None


def _is_over_rows(call: ast.Call) -> bool:
    """Return True for ``x.mean(0)``, with the dimension."""
    axes = [*call.args, *(each.value for each in call.keywords if each.arg in ("dim", "axis"))]
    return last_name(call.func) in _CENTRES and any(isinstance(each, ast.Constant) and each.value == 0 for each in axes)


def _calls(block: ast.AST, name: str) -> bool:
    return any(last_name(each.func) == name for each in nodes_in(block, ast.Call))


def _is_evaluation(source: SourceFile, loop: ast.For) -> bool:
    """Return True for a loop that calls no ``backward``, where gradients are switched off or eval mode is set."""
    around: Any = function_of(source, loop)
    if isinstance(around, ast.Module):
        around = source.parents.get(id(loop))
    text = ast.unparse(around if isinstance(around, ast.FunctionDef | ast.With) else loop)
    called = {last_name(each.func) for each in nodes_in(loop, ast.Call)}
    trains = any(each.name in called and _calls(each, "backward") for each in source.nodes_of(ast.FunctionDef))
    return (
        not trains
        and not _calls(loop, "backward")
        and any(word in text for word in ("no_grad", "inference_mode", ".eval()"))
    )


def _standardised(source: SourceFile) -> Iterator[_Scaled]:
    """Yield each ``(x - x.mean(0)) / x.std(0)``, also in two steps or with the range, and each ``zscore(x)``."""
    for node in source.nodes_of(ast.BinOp, ast.AugAssign, ast.Call):
        match node:
            case ast.BinOp(op=ast.Div(), left=ast.BinOp(op=ast.Sub(), left=data, right=centre), right=width):
                if _has_statistic(source, centre, data, _CENTRES) and _has_statistic(source, width, data, _WIDTHS):
                    yield _Scaled(node, data, _target(source, node))
            case ast.AugAssign(op=ast.Sub(), target=data, value=centre):
                if _has_statistic(source, centre, data, _CENTRES) and _is_divided(source, node):
                    yield _Scaled(node, data, None)
            case ast.Call(args=[data, *_]) if source.qualified_name(node.func) in _SCALING_FUNCTIONS:
                yield _Scaled(node, data, _target(source, node))
            case _:
                pass


def _is_divided(source: SourceFile, centred: ast.AugAssign) -> bool:
    """Return True if centred data is divided by its own deviation in the same block."""
    return any(
        isinstance(each, ast.AugAssign)
        and isinstance(each.op, ast.Div)
        and ast.unparse(each.target) == ast.unparse(centred.target)
        and _has_statistic(source, each.value, centred.target, _WIDTHS)
        for each in source.block(centred)
    )


def _target(source: SourceFile, node: ast.expr) -> ast.AST | None:
    """Return the variable to which the function around an expression assigns it."""
    pairs = single_assignments(function_of(source, node))
    return next((target for target, value in pairs if value is node), None)


def _has_statistic(source: SourceFile, node: ast.expr, data: ast.expr, kinds: frozenset[str]) -> bool:
    """Return True if an expression contains a statistic of the data over all its samples, also through a variable."""
    for each in walk(node):
        values = [each] if isinstance(each, ast.Call) else []
        if isinstance(each, ast.Name):
            values = _assigned_before(source, each)[-1:]
        for value in values:
            for call in nodes_in(value, ast.Call):
                if _is_statistic(call, ast.unparse(data), kinds):
                    return True
    return False


def _assigned_before(source: SourceFile, name: ast.Name) -> list[ast.expr]:
    """Return the values that the function around a variable has assigned to it in earlier lines."""
    return [each for each in assigned_in(function_of(source, name), name.id) if each.lineno < name.lineno]


def _is_statistic(call: ast.Call, data: str, kinds: frozenset[str]) -> bool:
    """Return True for a statistic of the data over all its samples: ``x.mean(0)``, ``np.std(x, axis=0)``."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in kinds:
        return False
    is_function = dotted_name(call.func.value) in _LIBRARIES
    of, positional = (call.args[0], call.args[1:]) if is_function and call.args else (call.func.value, call.args)
    axes = [*positional[:1], *(each.value for each in call.keywords if each.arg in ("dim", "axis"))]
    axis = ast.unparse(axes[0]) if axes else "0"
    return ast.unparse(of) == data and axis.lstrip("([").startswith(("0", "None"))


def _with_callers(source: SourceFile, scaled: _Scaled) -> Iterator[_Scaled]:
    """Yield standardised data; for a parameter or the variable of a loop, the data that it stands for instead."""
    name, function = dotted_name(scaled.data), function_of(source, scaled.node)
    arguments = getattr(function, "args", None)
    names = [each.arg for each in arguments.args] if isinstance(arguments, ast.arguments) else []
    parts = listed_parts(source, scaled.node, {name})
    if parts is not None:
        yield from (_Scaled(scaled.node, each, None) for each in parts)
        return
    if name not in names:
        yield scaled
        return
    parent = source.parents.get(id(function))
    is_method = isinstance(parent, ast.ClassDef) and names[0] in ("self", "cls")
    called = parent.name if isinstance(parent, ast.ClassDef) and function.name == "__init__" else function.name
    position = names.index(name) - is_method
    for call in source.all_calls:
        if last_name(call.func) != called:
            continue
        keyword = next((each.value for each in call.keywords if each.arg == name), None)
        passed = call.args[position] if 0 <= position < len(call.args) else keyword
        if passed is not None:
            parts = listed_parts(source, call, {dotted_name(passed)}) or ()
            yield from (_Scaled(call, each, None) for each in parts)
            yield _Scaled(call, passed, _target(source, call))
