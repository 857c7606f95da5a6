"""Finds accuracies in the source code that count all positions of padded batches, also in functions and classes."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import (
    assigned_in,
    batch_loops,
    compared_sides,
    hand_made_batch_loops,
    is_loader,
    single_assignments,
    without_conversions,
)
from trueloop.analysis.queries.class_instances import called_function, definitions, instances
from trueloop.analysis.queries.possible_values import known_integer
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, integer, nodes_in, walk
from trueloop.failures.evaluation.padding_judged.positions_in_text import counts_all
from trueloop.failures.failure import Rule

_MASK: Final = re.compile(r"mask|valid|keep|ignore|pad|length|lens?($|_)", re.IGNORECASE)
_RESHAPING: Final = frozenset(("view", "reshape", "flatten", "ravel", "contiguous", "squeeze", "view_as", "reshape_as"))
_PADS: Final = re.compile(r"pad_(packed_)?sequence$|(^|_)pad(_|$)", re.IGNORECASE)
_PADDING: Final = re.compile(r"pad(_?(id|idx|index|token|label))?", re.IGNORECASE)
_LOSSES: Final = frozenset(("CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss"))
_FILLING: Final = frozenset(("full", "new_full", "full_like"))
_DEFAULT: Final = -100  # the label that PyTorch's losses ignore


class _Scope(NamedTuple):
    """A loop over batches, or a function that it calls with labels."""

    node: Any
    labels: set[str]
    """Variables that may hold the labels of a batch, or the whole batch."""
    predictions: set[str]
    """Variables that hold the classes with the highest score."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each accuracy that counts all positions of padded batches whose loss leaves out the padding."""
    ignoring = _ignoring_loss(source)
    if ignoring is None or not _pads_batches(source, ignoring):
        return
    for scope in _scopes(source):
        if uses_mask(source, scope.node):
            continue
        for node in nodes_in(scope.node, ast.Call, ast.Compare):
            label = _judged_label(source, scope, node)
            if label:
                yield Hit(
                    message=f"`{ast.unparse(node)}` also counts the padding of `{label}`, which the loss leaves "
                    "out: it is not the accuracy of the real tokens.",
                    node=node,
                    related=((ignoring, "the loss leaves the padding out"),),
                )


def _judged_label(source: SourceFile, scope: _Scope, node: ast.expr) -> str:
    """Return the labels all of which a comparison counts; "" for other expressions."""
    is_score = isinstance(node, ast.Call) and last_name(node.func) == "accuracy_score" and not node.keywords
    sides: Sequence[ast.expr] = node.args if is_score else compared_sides(node)  # type: ignore[attr-defined]
    if len(sides) != 2 or not any(_is_predicted(scope, each) for each in sides):
        return ""
    label = next((found for each in sides if (found := _label(scope, each))), "")
    names = {label, *(ast.unparse(_plain(each)) for each in sides)}
    return label if label and (is_score or counts_all(source.parents, scope.node, node, names)) else ""


def _scopes(source: SourceFile) -> Iterator[_Scope]:
    """Yield the loops over batches and the functions that they call, with the variables that may hold labels."""
    loops = [*batch_loops(source), *hand_made_batch_loops(source)]
    pending = [_scope(each.node, {name.id for name in nodes_in(each.node.target, ast.Name)}, set()) for each in loops]
    for each in source.nodes_of(ast.ListComp, ast.GeneratorExp):
        if any(is_loader(source, part.iter) for part in each.generators):
            names = {name.id for part in each.generators for name in nodes_in(part.target, ast.Name)}
            pending.append(_scope(each, names, set()))
    seen = set[int]()
    for scope in pending:
        if id(scope.node) in seen:
            continue
        seen.add(id(scope.node))
        yield scope
        for call in nodes_in(scope.node, ast.Call):
            function = _called(source, call)
            given = _arguments(source, function, call)
            labels = {name for name, value in given if _label(scope, value)}
            if labels:
                pending.append(_scope(function, labels, {name for name, value in given if _is_predicted(scope, value)}))


def _scope(node: Any, labels: set[str], predictions: set[str]) -> _Scope:
    """Return a scope with the variables that are unpacked from its batch, and those that get predictions."""
    for target, value in single_assignments(node):  # words, tags = pad_batch(rows)
        is_unpacked = isinstance(target, ast.Tuple) and isinstance(value, ast.Call | ast.Name | ast.GeneratorExp)
        is_item = isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant)
        is_read = is_unpacked and any(each.id in labels for each in nodes_in(value, ast.Name))
        if is_read or (is_item and last_name(value) in labels):
            labels = labels | {each.id for each in nodes_in(target, ast.Name)}
    for target, value in single_assignments(node):
        is_second = isinstance(target, ast.Tuple) and len(target.elts) == 2 and last_name(_func(value)) == "max"
        name: Any = target.elts[1] if is_second else target  # type: ignore[attr-defined]
        if isinstance(name, ast.Name) and (is_second or _is_argmax(value) or dotted_name(_plain(value)) in predictions):
            predictions = predictions | {name.id}
    return _Scope(node, labels - predictions, predictions)


def _called(source: SourceFile, call: ast.Call) -> Any:
    """Return the function, method or lambda of the program that a call runs; None if it is unknown."""
    name = last_name(call.func)
    function: Any = called_function(source, call)
    if function is None and isinstance(call.func, ast.Attribute):
        function = _method(source, last_name(call.func.value), name)
    if function is None and isinstance(call.func, ast.Name | ast.Attribute):
        values = assigned_in(source.tree, name)
        is_lambda = len(values) == 1 and isinstance(values[0], ast.Lambda)
        function = values[0] if is_lambda else _method(source, name, "__call__")
    return None if getattr(function, "name", "") == "__init__" else function


def _method(source: SourceFile, owner: str, name: str) -> Any:
    """Return the method of the object that a variable or attribute holds; None if its class is unknown."""
    found = {last_name(each.call.func) for each in instances(source) if last_name(each.target) == owner}
    classes = [definitions(source).classes[each] for each in found if each in definitions(source).classes]
    methods = [each for definition in classes for each in definition.body if getattr(each, "name", "") == name]
    return methods[0] if len(methods) == 1 else None


def _arguments(source: SourceFile, function: Any, call: ast.Call) -> list[tuple[str, ast.expr]]:
    """Return the parameters of a function with the arguments of a call."""
    if function is None:
        return []
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if isinstance(source.parents.get(id(function)), ast.ClassDef) else names
    return [*zip(names, call.args, strict=False), *((each.arg, each.value) for each in call.keywords if each.arg)]


def _pads_batches(source: SourceFile, loss: ast.Call) -> bool:
    """Return True if a function pads sequences, by its name or arguments, or the ignored label is the padding."""
    index = next((ast.unparse(each.value) for each in loss.keywords if each.arg == "ignore_index"), str(_DEFAULT))
    return any(_pads(each, index) for each in source.all_calls) or any(
        isinstance(each.op, ast.Mult) and ast.unparse(each.left) == f"[{index}]" for each in source.nodes_of(ast.BinOp)
    )  # labels + [IGNORE] * (longest - len(labels))


def _pads(call: ast.Call, index: str) -> bool:
    """Return True for a call that pads, or that fills a tensor with the ignored label."""
    fills = last_name(call.func) in _FILLING and any(ast.unparse(each) == index for each in call.args)
    return (
        fills
        or bool(_PADS.search(last_name(call.func)))
        or any(
            (key.arg in ("collate_fn", "ignore_index", "fill_value") and "pad" in ast.unparse(key.value).lower())
            or (key.arg == "padding" and ast.unparse(key.value).strip("'") in ("True", "max_length", "longest"))
            for key in call.keywords
        )
        or any(_PADDING.fullmatch(last_name(argument)) for argument in call.args)
    )


def _ignoring_loss(source: SourceFile) -> ast.Call | None:
    """Return the first cross-entropy if all of them leave out padding; else None."""
    losses = [each for each in source.all_calls if last_name(each.func) in _LOSSES]
    return losses[0] if losses and all(_leaves_out_padding(source, each) for each in losses) else None


def _leaves_out_padding(source: SourceFile, loss: ast.Call) -> bool:
    index = next((each.value for each in loss.keywords if each.arg == "ignore_index"), None)
    return (
        index is not None
        or _pads_with_default(source)
        or (
            bool(loss.args)
            and all(
                isinstance(each, ast.Subscript) and bool(_MASK.search(ast.unparse(each.slice)))
                for each in loss.args[:2]
            )
        )
    )


def _pads_with_default(source: SourceFile) -> bool:
    """Return True if sequences are padded with -100, which losses ignore without an ``ignore_index``."""
    return any(
        each.arg in ("padding_value", "fill_value", "value") and known_integer(source, each.value) == _DEFAULT
        for call in source.all_calls
        if _PADS.search(last_name(call.func)) or last_name(call.func) in _FILLING
        for each in call.keywords
    )


def uses_mask(source: SourceFile, scope: ast.AST, words: re.Pattern[str] = _MASK) -> bool:
    """Return True if a loop or function uses a variable that may be a mask, except as an argument of a model.

    Args:
        source: the program.
        scope: the loop or function.
        words: matches the names of masks.
    """
    passed = {id(part) for part in walk(getattr(scope, "iter", scope))} if isinstance(scope, ast.For) else set[int]()
    for each in nodes_in(scope, ast.Call):
        is_own = isinstance(each.func, ast.Attribute) and dotted_name(each.func.value) == "self"
        if not isinstance(each.func, ast.Attribute) or (is_own and called_function(source, each) is None):
            given = (*each.args, *(key.value for key in each.keywords))
            passed |= {id(part) for argument in given for part in walk(argument)}
    passed |= {id(each.func) for each in nodes_in(scope, ast.Call) if _PADS.search(last_name(each.func))}
    return any(
        not isinstance(each.ctx, ast.Store) and id(each) not in passed and bool(words.search(last_name(each)))
        for each in nodes_in(scope, ast.Name, ast.Attribute)
    )


def _is_predicted(scope: _Scope, node: ast.expr) -> bool:
    """Return True for the class of the highest score, or a variable that holds it."""
    inner = _plain(node)
    return _is_argmax(node) or (isinstance(inner, ast.Name) and inner.id in scope.predictions)


def _is_argmax(node: ast.expr) -> bool:
    inner = _plain(node)
    if isinstance(inner, ast.Subscript):  # scores.max(-1)[1]
        inner = inner.value
    return isinstance(inner, ast.Call) and last_name(inner.func) in ("argmax", "max")


def _func(node: ast.expr) -> ast.expr | None:
    return node.func if isinstance(node, ast.Call) else None


def _label(scope: _Scope, node: ast.expr) -> str:
    """Return the source code of the labels of the batch that an expression is; "" if it is something else."""
    inner = _plain(node)
    match inner:
        case ast.Name(id=name):
            values = [_plain(each) for each in assigned_in(scope.node, name)]
            is_kept = all(_owner(each) in scope.labels or _is_part(each, scope.labels) for each in values)
            return name if is_kept and (name in scope.labels or values) else ""
        case _:
            return ast.unparse(inner) if _owner(inner) in scope.labels else ""


def _owner(node: ast.expr) -> str:
    """Return the variable that holds a batch: "batch" for ``batch["tags"]`` and ``batch.tags``."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant()) | ast.Attribute(value=ast.Name(id=name)):
            return name
        case _:
            return ""


def _is_part(node: ast.expr, labels: set[str]) -> bool:
    return isinstance(node, ast.Attribute) and last_name(node.value) in labels


def _plain(node: ast.expr) -> ast.expr:
    """Return the tensor of which an expression is a view or conversion, also without its first or last positions."""
    while True:
        inner = without_conversions(node)
        match inner:
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _RESHAPING:
                inner = value
            case ast.Subscript(value=value, slice=index) if _is_shift(index):
                inner = value
            case _:
                pass
        if inner is node:
            return node
        node = inner


def _is_shift(index: ast.expr) -> bool:
    """Return True for an index such as ``[:, 1:]`` with constants only."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    bounds = [each for part in parts if isinstance(part, ast.Slice) for each in (part.lower, part.upper, part.step)]
    return all(isinstance(each, ast.Slice) for each in parts) and all(
        each is None or integer(each) is not None for each in bounds
    )


RULE = Rule(
    required_words=("cross_entropy|CrossEntropyLoss|nll_loss|NLLLoss", "pad|PAD|ignore_index", "argmax|.max("),
    find=find,
)
