"""Finds target encodings: the mean label of each group of a whole table, as a feature of rows that are split."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of, is_label, single_assignments
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING, data_words
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.loop_variables import stored_names
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk

_SPLITS: Final = frozenset(
    ("cross_val_predict", "cross_val_score", "cross_validate", "random_split", "split", "train_test_split")
)
_MEANS: Final = frozenset(("mean", "agg", "aggregate", "transform", "median", "sum"))
_SCORES: Final = re.compile(r"_score$|^log_loss$|_error$")
_LOOKING_UP: Final = frozenset(("map", "merge", "join", "replace", "apply", "get", "take", "reindex", "assign"))
ORDERED: Final = re.compile(r"shift|expanding|cumsum|cumcount|rolling|ewm")
_SELECTING: Final = frozenset(("rows", "take", "iloc", "loc", "select", "query", "filter", "head", "tail", "sample"))
_MAX_DEPTH: Final = 3
_MAX_CALLS: Final = 8


class _Means(NamedTuple):
    """A computation of the mean or total label of each group."""

    node: ast.Call
    tables: tuple[ast.expr, ...]
    """What holds the rows: the table, or the arrays of groups and labels."""


def group_means(source: SourceFile) -> Iterator[Hit]:
    """Yield the encodings for which the labels of all rows are used before, or next to, their split."""
    columns = _label_columns(source)
    reported: set[int] = set()
    for call in source.all_calls:
        means = _means(call, columns)
        if means is None or not _is_looked_up(source, call):
            continue
        for node, split in _leaks(source, means.node, means.tables, {}):
            if source.statement_of(node).lineno in reported:
                continue
            reported.add(source.statement_of(node).lineno)
            yield Hit(
                message=f"`{ast.unparse(means.node)}` uses the labels of all rows, which are split into training and "
                "held-out rows: the feature of each row contains its own label.",
                node=node,
                related=tuple(
                    pair for pair in ((split, "split here"), (means.node, "computed here")) if pair[0] is not node
                ),
            )


def _label_columns(source: SourceFile) -> set[str]:
    """Return the columns of tables that hold labels: they are stratified by, scored, or assigned to ``y``."""
    labels: list[ast.AST] = []
    for call in source.all_calls:
        name = last_name(call.func)
        labels += [word.value for word in call.keywords if word.arg in ("stratify", "y_true")]
        labels += call.args[1:2] if name == "split" and isinstance(call.func, ast.Attribute) else []
        labels += call.args[:1] if _SCORES.search(name) else []
    labels += [value for target, value in single_assignments(source.tree) if is_label(target)]
    columns = [each.slice for label in labels for each in nodes_in(label, ast.Subscript)]
    return {each.value for each in columns if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def _is_label_of(node: ast.expr, columns: set[str]) -> bool:
    """Return True for a label column, its name, or an array of labels."""
    match node:
        case ast.Constant(value=str(name)):
            return name in columns or is_label(ast.Name(name))
        case ast.Subscript(slice=column):
            return _is_label_of(column, columns) or is_label(node)
        case ast.Attribute(value=owner, attr=name):
            return name in columns or is_label(node) or (name == "values" and _is_label_of(owner, columns))
        case ast.Call(func=ast.Attribute(value=owner)):
            return _is_label_of(owner, columns)
        case _:
            return is_label(node)


def _means(call: ast.Call, columns: set[str]) -> _Means | None:
    """Return the table and labels of ``table.groupby(c)[y].mean()`` or ``np.bincount(c, weights=y)``."""
    named = {each.arg: each.value for each in call.keywords}
    match call:
        case ast.Call(
            func=ast.Attribute(
                attr=method,
                value=ast.Subscript(
                    value=ast.Call(func=ast.Attribute(attr="groupby", value=table), args=groups), slice=column
                )
                | ast.Attribute(
                    value=ast.Call(func=ast.Attribute(attr="groupby", value=table), args=groups), attr=column
                ),
            )
        ) if method in _MEANS:
            label = ast.Constant(column) if isinstance(column, str) else column
            label = label.elts[0] if isinstance(label, ast.List) and len(label.elts) == 1 else label
            is_same = any(ast.unparse(each) == ast.unparse(label) for each in groups)
            is_ordered = ORDERED.search(ast.unparse(call))
            return _Means(call, (table,)) if _is_label_of(label, columns) and not is_same and not is_ordered else None
        case ast.Call(args=[groups, *_]) if last_name(call.func) == "bincount" and "weights" in named:
            label = named["weights"]
            return _Means(call, (groups, label)) if _is_label_of(label, columns) else None
        case ast.Call() if last_name(call.func) == "pivot_table" and {"values", "index"} <= named.keys():
            owner: Any = getattr(call.func, "value", None)
            is_method = owner is not None and getattr(owner, "id", "") not in ("pd", "pandas")
            table: Any = owner if is_method else call.args[0] if call.args else named.get("data", call)
            return _Means(call, (table,)) if _is_label_of(named["values"], columns) else None
        case ast.Call(
            func=ast.Attribute(
                attr="mean", value=ast.Subscript(value=label, slice=ast.Compare(left=groups, ops=[ast.Eq()]))
            )
        ):
            return _Means(call, (groups, label)) if _is_label_of(label, columns) and _root(groups) else None
        case _:
            return None


def _is_looked_up(source: SourceFile, call: ast.Call) -> bool:
    """Return True if rows get what was computed for their group: by ``map``, an index, or ``transform``."""
    function, statement = function_of(source, call), source.statement_of(call)
    if last_name(call.func) == "transform":
        return isinstance(statement, ast.Assign | ast.Return | ast.Expr)
    names = stored_names(statement) | {
        last_name(each.value) for each in nodes_in(statement, ast.Subscript) if isinstance(each.ctx, ast.Store)
    }
    for target, value in [*single_assignments(function)]:
        if names & {each.id for each in nodes_in(value, ast.Name)}:
            names |= stored_names(target)
    for each in nodes_in(function, ast.Subscript, ast.Call):
        match each:
            case ast.Subscript(value=ast.Name() | ast.BinOp() as owner, slice=index, ctx=ast.Load()):
                used = {n.id for n in nodes_in(owner, ast.Name)}
                if used & names and not isinstance(index, ast.Constant | ast.Slice):
                    return True
            case ast.Call(func=ast.Attribute(attr=attr, value=owner), args=args) if attr in _LOOKING_UP:
                used = {n.id for part in (owner, *args) for n in nodes_in(part, ast.Name)}
                if used & names or any(call in nodes_in(part, ast.Call) for part in args):
                    return True
            case _:
                pass
    return any(isinstance(each.value, ast.Name) and each.value.id in names for each in nodes_in(function, ast.Return))


def _leaks(
    source: SourceFile, node: ast.expr, tables: tuple[ast.expr, ...], bound: Mapping[int, ast.Call]
) -> Iterator[tuple[ast.expr, ast.AST]]:
    """Yield each place where the table of an encoding is one that the program splits, with the split."""
    names = {_root(each) for each in tables}
    if "" in names or any(data_words(ast.Name(each)) & (TRAINING | HELD_OUT) for each in names):
        return
    function = function_of(source, node)
    results = stored_names(source.statement_of(node)) if bound else set[str]()
    split = next(filter(None, (split_of(function, each) for each in sorted(names | results))), None)
    if split is not None:
        if not _is_part(function, names):
            yield node, split
        return
    if isinstance(function, ast.Module) or len(bound) == _MAX_DEPTH or id(function) in bound:
        return
    positions = [each.arg for each in function.args.args if each.arg != "self"]
    if not names <= set(positions):
        return
    known = definitions(source)
    calls = known.calls.get(function.name, []) if known.functions.get(function.name) is function else []
    for call in calls[:_MAX_CALLS]:
        given = [argument_node(call, name, positions.index(name)) for name in names]
        if all(each is not None for each in given):
            yield from _leaks(source, call, tuple(e for e in given if e is not None), {**bound, id(function): call})


def _root(node: ast.expr) -> str:
    """Return the variable of a whole table or of one of its columns; "" for a part of its rows."""
    while True:
        match node:
            case ast.Name(id=name):
                return name
            case ast.Subscript(value=inner, slice=ast.Constant(value=str()) | ast.List()):
                node = inner
            case ast.Subscript(value=inner, slice=ast.Name(id=name)) if not data_words(ast.Name(name)) & (
                TRAINING | HELD_OUT
            ):
                node = inner
            case ast.Attribute(value=inner, attr=attr) if attr not in _SELECTING:
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr="astype" | "copy" | "to_numpy" | "float" | "long")):
                node = inner
            case _:
                return ""


def _is_part(function: Any, names: set[str]) -> bool:
    """Return True if a variable is assigned some rows of another table."""
    return any(
        bool(stored_names(target) & names) and _selected(value) not in ("", *names)
        for target, value in single_assignments(function)
    )


def _selected(value: ast.expr) -> str:
    """Return the variable of which an expression selects rows, by an index or a method; "" for others."""
    for each in walk(value):
        match each:
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="iloc" | "loc")):
                return name
            case ast.Subscript(value=ast.Name(id=name), slice=index) if not isinstance(index, ast.Constant | ast.List):
                return name
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr), args=[_, *_]) if attr in _SELECTING:
                return name
            case _:
                pass
    return ""


def split_of(function: Any, name: str) -> ast.AST | None:
    """Return where a function splits the rows of a table into training and held-out rows; None if it does not."""
    for call in nodes_in(function, ast.Call):
        if last_name(call.func) in _SPLITS and any(n.id == name for e in call.args for n in nodes_in(e, ast.Name)):
            return call
    parts = {
        word: value
        for target, value in single_assignments(function)
        if _selected(value) == name
        for word in data_words(target) | data_words(value)
    }
    used = {
        word: each
        for each in nodes_in(function, ast.Subscript)
        if _selected(each) == name
        for word in data_words(each.slice)
    }
    parts |= used
    held = next((node for word, node in parts.items() if word in HELD_OUT), None)
    return held if held is not None and parts.keys() & TRAINING else None
