"""Finds programs that pad sequences on the right, and read the state of a recurrent layer behind the padding."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import FORWARD_RESULT, AbstractValue
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_first import RECURRENT, is_time_first, layer_outputs, tensors
from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.possible_values import known_integer, origins, parameters_of
from trueloop.analysis.queries.shuffled_loaders import function_called, passed_argument
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in

_AVOIDS: Final = re.compile(
    r"mask|msk|pack_padded|pack_sequence|padding_side|flip|bucket|gather|PackedSequence|is_pad|not_pad|valid_len"
)
"""Parts of names in programs that mask the padding, read the last real step, or have none in front of it."""
_LENGTH: Final = re.compile(r"(^|_)(len|lens|length|lengths|seqlens?|sizes?|last_idx|last_index)($|_)", re.IGNORECASE)
_TARGET: Final = re.compile(r"label|target|tgt|trg|(^|_)(y|ys|tags?|answers?)($|_)", re.IGNORECASE)
_EMPTY: Final = frozenset(("zeros", "full", "new_zeros", "new_full", "zeros_like", "full_like", "ones"))
_MAX_VALUES: Final = 4000
_MAX_CALLS: Final = 3


class PaddingBehind(NamedTuple):
    """A state that a recurrent layer has after the padding."""

    node: ast.expr
    """The expression that reads it."""
    layer: AbstractValue
    padding: ast.AST
    """The code that pads."""
    is_mean: bool


def read_behind_padding(source: SourceFile) -> Iterator[PaddingBehind]:
    """Yield each last step, final state or mean over time that a loss uses, if the program pads and masks nowhere."""
    paddings = [each for each in _paddings(source) if not _is_of_targets(source, each)]
    if not paddings or _is_avoided(source):
        return
    varies = next((each for each in paddings if _varies(each)), None)
    seen, used = set[int](), _used_by_losses(source)
    for value in tensors(source):
        if id(value) not in used or id(value.node) in seen or not value.sources:
            continue
        read = _read_of(source, value)
        if read is None or _uses_lengths(source, value.node) or (read[1] and varies is None):
            continue
        seen.add(id(value.node))
        yield PaddingBehind(value.node, read[0], varies or paddings[0], read[1])


def _read_of(source: SourceFile, value: AbstractValue) -> tuple[AbstractValue, bool] | None:
    """Return the recurrent layer whose last state a value is, and whether it is the mean over time instead."""
    first = value.sources[0]
    if _is_final_state(source, value):
        layer = first.sources[0].sources[0] if first.sources and first.sources[0].sources else first
        return layer, False
    for output in layer_outputs(source, first, RECURRENT):
        layer = output.sources[0]
        time = 0 if is_time_first(layer, RECURRENT) else 1
        match value.node:
            case ast.Subscript(slice=ast.Tuple(elts=[*items])) if len(items) > time and _is_last(source, items[time]):
                if all(_is_whole(source, each) for each in items[:time]):
                    return layer, False
            case ast.Subscript(slice=index) if time == 0 and _is_last(source, index):
                return layer, False
            case ast.Call(func=ast.Attribute(attr="select"), args=[dim, index]) if integer(dim) == time:
                if _is_last(source, index):
                    return layer, False
            case ast.Call() if last_name(value.node.func) == "mean" and _dimension(value.node) == time:
                return layer, True
            case _:
                pass
    return None


def _is_last(source: SourceFile, index: ast.expr) -> bool:
    """Return True for ``-1``, ``out.size(1) - 1``, and ``MAX_LEN - 1`` with a constant."""
    match index:
        case ast.BinOp(left=length, op=ast.Sub(), right=ast.Constant(value=1)):
            is_size = last_name(getattr(length, "func", getattr(length, "value", None))) in ("size", "shape")
            return is_size or known_integer(source, length) is not None
        case _:
            return integer(index) == -1


def _is_whole(source: SourceFile, index: ast.expr) -> bool:
    """Return True for ``:`` and for ``torch.arange(len(x))``, which take all samples."""
    if isinstance(index, ast.Slice):
        return not index.lower
    return any(isinstance(each, ast.Call) and last_name(each.func) == "arange" for each in origins(source, index))


def _dimension(call: ast.Call) -> int | None:
    is_function = isinstance(call.func, ast.Attribute) and last_name(call.func.value) in ("torch", "th")
    positional = call.args[1:] if is_function else call.args
    given = positional or [each.value for each in call.keywords if each.arg in ("dim", "axis")]
    return integer(given[0]) if given else None


def _is_final_state(source: SourceFile, value: AbstractValue) -> bool:
    """Return True for ``h[-1]``, ``h[0]`` and ``h.squeeze(0)`` of the final states of a recurrent layer."""
    match value.node:
        case ast.Subscript(value=ast.Name() as states, slice=index) if integer(index) in (-1, 0):
            pass
        case ast.Call(func=ast.Attribute(attr="squeeze", value=ast.Name() as states), args=[index]) if not integer(
            index
        ):
            pass
        case _:
            return False
    first = value.sources[0]
    return first.name in RECURRENT and _is_second_of_call(source, states)


def _is_second_of_call(source: SourceFile, states: ast.Name) -> bool:
    """Return True if a variable is the ``h`` of ``out, h = layer(x)`` or of ``out, (h, c) = layer(x)``."""
    for each in nodes_in(function_of(source, states), ast.Assign):
        match each.targets[0]:
            case ast.Tuple(elts=[_, ast.Name(id=name) | ast.Tuple(elts=[ast.Name(id=name), _])]) if name == states.id:
                return isinstance(each.value, ast.Call)
            case _:
                pass
    return False


def _used_by_losses(source: SourceFile) -> set[int]:
    """Return the ids of the values from which losses and the roots of backward passes are computed."""
    queue = [part for each in source.ops(OpKind.LOSS) if each.grad is not False for part in each.inputs[:1]]
    queue += [each.subject for each in source.ops(OpKind.BACKWARD)]
    seen = set[int]()
    while queue and len(seen) < _MAX_VALUES:
        value = queue.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        inner = value.attributes.get(FORWARD_RESULT)
        queue += [*value.sources, *value.union, *((inner,) if inner is not None else ())]
    return seen


def _paddings(source: SourceFile) -> Iterator[ast.AST]:
    """Yield the code that makes sequences equally long by padding behind them."""
    for call in source.all_calls:
        name, given = last_name(call.func), {each.arg: each.value for each in call.keywords}
        match name, given.get("padding"):
            case "pad_sequence", _:
                yield call
            case "pad_sequences", ast.Constant(value="post"):
                yield call
            case _, ast.Constant(value=True | "max_length" | "longest") if "okeniz" in ast.unparse(call.func):
                yield call
            case "pad", _ if len(call.args) > 1 and _is_behind(source, call.args[1]):
                yield call
            case _:
                pass
    for each in source.nodes_of(ast.Assign, ast.AugAssign, ast.BinOp):
        if _is_copied_to_zeros(source, each) or (isinstance(each, ast.BinOp) and _is_list_padded(source, each)):
            yield each


def _varies(padding: ast.AST) -> bool:
    """Return True if the padded length depends on the batch."""
    return isinstance(padding, ast.Call) and last_name(padding.func) == "pad_sequence"


def _is_difference(source: SourceFile, node: ast.expr) -> bool:
    """Return True for ``limit - len(x)``, and for a variable that has this value."""
    values = assigned_in(function_of(source, node), node.id) if isinstance(node, ast.Name) else [node]
    return any(isinstance(each.op, ast.Sub) for value in values for each in nodes_in(value, ast.BinOp))


def _is_behind(source: SourceFile, amounts: ast.expr) -> bool:
    """Return True for the amounts of a ``pad`` that adds nothing in front, and a difference of lengths behind."""
    items = amounts.elts if isinstance(amounts, ast.Tuple | ast.List) else []
    *others, last = items or [amounts]
    return bool(others) and all(integer(each) == 0 for each in others) and _is_difference(source, last)


def _is_copied_to_zeros(source: SourceFile, node: ast.AST) -> bool:
    """Return True for ``out[i, :len(row)] = row`` and ``out[:n] = row`` where ``out`` was filled with one value."""
    match node:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=index)]):
            items = index.elts if isinstance(index, ast.Tuple) else [index]
        case _:
            return False
    part = next((each for each in items if isinstance(each, ast.Slice)), None)
    if part is None or part.lower is not None or part.upper is None or integer(part.upper) is not None:
        return False
    values = assigned_in(function_of(source, node), name)
    return any(last_name(each.func) in _EMPTY for value in values for each in nodes_in(value, ast.Call))


def _is_list_padded(source: SourceFile, node: ast.BinOp) -> bool:
    """Return True for ``ids + [0] * (limit - len(ids))``."""
    match node:
        case ast.BinOp(op=ast.Add(), right=ast.BinOp(op=ast.Mult(), left=ast.List(elts=[_]), right=amount)):
            return _is_difference(source, amount)
        case _:
            return False


def _is_of_targets(source: SourceFile, padding: ast.AST) -> bool:
    """Return True if what is padded is named after targets, or is padded with an index that losses ignore."""
    statement = source.statement_of(padding)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [last_name(each) for each in targets if not isinstance(each, ast.Tuple)]
    if isinstance(padding, ast.Call):
        names += [last_name(each) for each in padding.args[:1]]
        values = [each.value for each in padding.keywords if each.arg in ("padding_value", "value")]
        if any((integer(each) or 0) < 0 for each in values):
            return True
    return any(_TARGET.search(each) for each in names)


def _is_avoided(source: SourceFile) -> bool:
    """Return True if a name in the program says that padding is masked, skipped or in front of the sequences."""
    named: Any = source.nodes_of(ast.Name, ast.Attribute, ast.arg, ast.keyword)
    for each in named:
        if _AVOIDS.search(getattr(each, "id", None) or getattr(each, "attr", None) or getattr(each, "arg", None) or ""):
            return True
    return any(isinstance(each.step, ast.UnaryOp) for each in source.nodes_of(ast.Slice))  # row[::-1]


def _uses_lengths(source: SourceFile, node: ast.AST) -> bool:
    """Return True if the methods of the module that reads a state use lengths, or compare tokens with the padding."""
    definition = enclosing_definition(source, node, ast.ClassDef) or function_of(source, node)
    for each in getattr(definition, "body", []):
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            continue
        for inner in nodes_in(each, ast.Name):
            is_length = isinstance(inner.ctx, ast.Load) and inner.id != "len" and _LENGTH.search(inner.id)
            if is_length and not _is_dropped(source, inner):
                return True
        if any(isinstance(part.ops[0], ast.Eq | ast.NotEq) for part in nodes_in(each, ast.Compare)):
            return True
    return False


def _is_dropped(source: SourceFile, argument: ast.Name, depth: int = _MAX_CALLS) -> bool:
    """Return True if a variable is only passed to an own method, which does not use it."""
    parent = source.parents.get(id(argument))
    call = source.parents.get(id(parent)) if isinstance(parent, ast.keyword) else parent
    if not depth or not isinstance(call, ast.Call) or not ast.unparse(call.func).startswith("self."):
        return False
    function = function_called(source, call)
    if function is None:
        return False
    for name in [each.arg for each in parameters_of(function)]:
        if passed_argument(source, function, call, name) is argument:
            used = [e for e in nodes_in(function, ast.Name) if e.id == name and isinstance(e.ctx, ast.Load)]
            return all(_is_dropped(source, each, depth - 1) for each in used)
    return False
