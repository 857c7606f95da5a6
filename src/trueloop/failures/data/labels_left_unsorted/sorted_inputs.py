"""Finds functions in the text that sort the inputs of a batch, and return the labels in the original order."""

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import is_label
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_JOINS: Final = ("pad_sequence", "pack_sequence", "stack")


class SortedInputs(NamedTuple):
    """A function that sorts inputs only."""

    sorting: ast.AST
    labels: ast.Name
    """The labels in its return."""


def sorted_inputs(source: SourceFile) -> Iterator[SortedInputs]:
    """Yield each function that pads or stacks inputs in a new order, and returns labels of the same samples."""
    for function in source.nodes_of(ast.FunctionDef):
        returns = [each.value for each in nodes_in(function, ast.Return)]
        samples = {each.arg for each in function.args.args} - {"self"}
        if len(returns) != 1 or not isinstance(returns[0], ast.Tuple | ast.Dict):
            continue
        parts = returns[0].elts if isinstance(returns[0], ast.Tuple) else returns[0].values
        labels = [each for each in parts if isinstance(each, ast.Name) and is_label(each)]
        order, sorting = _order(function)
        moved = _moved_by(function, order) if order else None
        if moved is None:
            moved, sorting = _sorted_lists(function) if not order else (set[str](), None)
        touched = _derived(function, moved | {order} - {""})
        if sorting is None or not _is_joined(function, moved, touched) or samples & moved:
            continue
        known = _derived(function, samples)
        yield from (SortedInputs(sorting, each) for each in labels[:1] if each.id in known and each.id not in touched)


def _order(function: ast.FunctionDef) -> tuple[str, ast.AST | None]:
    """Return the variable of the new order, as in ``lengths, order = lengths.sort()``; "" unless there is one."""
    found: list[tuple[str, ast.AST]] = []
    for each in nodes_in(function, ast.Assign):
        match each:
            case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id=name)])], value=ast.Call(func=func) as call):
                found += [(name, call)] if last_name(func) == "sort" else []
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=func, args=args) as call):
                is_range = bool(args) and isinstance(args[0], ast.Call) and last_name(args[0].func) == "range"
                is_order = last_name(func) == "argsort" or (last_name(func) == "sorted" and is_range)
                found += [(name, call)] if is_order else []
            case _:
                pass
    return found[0] if len(found) == 1 else ("", None)


def _moved_by(function: ast.FunctionDef, order: str) -> set[str] | None:
    """Return the variables that are indexed by the order; None if it is used in another way, such as returned."""
    moved, uses = set[str](), 0
    for each in nodes_in(function, ast.Subscript, ast.ListComp, ast.Call):
        match each:
            case ast.Subscript(value=value, slice=ast.Name(id=name)) if name == order:
                moved |= _names(value)
                uses += 1
            case ast.ListComp(elt=element, generators=[ast.comprehension(iter=ast.Name(id=name))]) if name == order:
                moved |= {part.id for sub in nodes_in(element, ast.Subscript)
                          for part in [sub.value] if isinstance(part, ast.Name)}  # fmt: skip
                uses += 1
            case ast.Call(func=ast.Attribute(attr="index_select", value=value), args=[_, ast.Name(id=name)]) if (
                name == order
            ):
                moved |= _names(value)
                uses += 1
            case _:
                pass
    reads = [n for n in nodes_in(function, ast.Name) if n.id == order and isinstance(n.ctx, ast.Load)]
    return moved if len(reads) == uses else None


def _sorted_lists(function: ast.FunctionDef) -> tuple[set[str], ast.AST | None]:
    """Return the lists that are sorted by a key, such as ``sequences = sorted(sequences, key=len)``."""
    moved, sorting = set[str](), None
    for each in nodes_in(function, ast.Assign, ast.Call):
        match each:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="sorted"), keywords=[_, *_]) as call
            ):
                whole = _names(call.args[0]) if isinstance(call.args[0], ast.Name) else set[str]()
                moved, sorting = moved | {name} | whole, call
            case ast.Call(func=ast.Attribute(attr="sort", value=ast.Name(id=name)), args=[], keywords=[_, *_]) if any(
                keyword.arg == "key" for keyword in each.keywords
            ):
                moved, sorting = moved | {name}, each
            case _:
                pass
    return moved, sorting


def _derived(function: ast.FunctionDef, names: set[str]) -> set[str]:
    """Return names and the variables that are computed from them."""
    found = set(names)
    for each in nodes_in(function, ast.Assign):
        if _names(each.value) & found:
            found |= set().union(*map(_names, each.targets))
    return found


def _is_joined(function: ast.FunctionDef, moved: set[str], touched: set[str]) -> bool:
    """Return True if inputs in the new order become a batch, or a batch of inputs gets the new order."""
    for each in nodes_in(function, ast.Assign):
        if set().union(*map(_names, each.targets)) & moved and _joins(each.value):
            return True
    return any(_names(part) & touched for call in _joins(function) for part in _iterated(call.args))


def _joins(node: ast.AST) -> list[ast.Call]:
    return [each for each in nodes_in(node, ast.Call) if last_name(each.func) in _JOINS]


def _iterated(args: list[ast.expr]) -> list[ast.expr]:
    """Return what the first argument goes through: a variable, or the iterables of a comprehension."""
    parts = args[:1]
    comprehension = parts[0] if parts and isinstance(parts[0], ast.ListComp | ast.GeneratorExp) else None
    return parts if comprehension is None else [each.iter for each in comprehension.generators]


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name)}
