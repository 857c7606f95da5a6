"""Finds out whether a number counts micro-batches or optimizer updates."""

import ast
import re
from collections.abc import Container, Iterable, Iterator
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op
from trueloop.analysis.queries.possible_values import possible_values, values_in_closure
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

LENGTH_ARGUMENTS: Final = {
    "CosineAnnealingLR": ("1", "T_max"),
    "CosineAnnealingWarmRestarts": ("1", "T_0"),
    "CyclicLR": ("3", "step_size_up"),
    "OneCycleLR": ("2", "total_steps", "4", "steps_per_epoch"),
    "PolynomialLR": ("1", "total_iters"),
    "LinearLR": ("3", "total_iters"),
    "get_linear_schedule_with_warmup": ("2", "num_training_steps"),
    "get_cosine_schedule_with_warmup": ("2", "num_training_steps"),
    "get_scheduler": ("3", "num_training_steps"),
}
"""Class or function name of a schedule -> positions and names of the arguments with the steps of it, or of a cycle."""
MAX_DEPTH: Final = 12  # levels of nested terms
_UPDATES: Final = re.compile(
    r"(^|_)(total|num|max|n|all|t)_?(train(ing)?_|opt(im)?_)?(steps|iters|iterations|updates)$"
)
"""Names for the number of updates of a whole run."""
_PER_EPOCH: Final = re.compile(r"len\(|//|steps|iter|batches|updates|per_epoch|ceil\(|/.*(batch|\bbs\b)")
_SIZE: Final = re.compile(r"batch|(^|\.)bs$", re.IGNORECASE)
_BATCHES: Final = re.compile(r"steps|iter|batches|updates|per_epoch", re.IGNORECASE)
ROUNDING_FUNCTIONS: Final = frozenset(("int", "round", "max", "min", "ceil", "floor"))


def iterations_per_step(step: Op, loop: Loop) -> AbstractValue | None:
    """Return K if a loop steps the optimizer in every K-th iteration, under a condition with ``i % K``; else None."""
    for branch in step.conditions(loop) if step.loops[-1].node is loop.node else ():
        for each in branch.test.ancestors() if branch.test is not None else ():
            if isinstance(each.node, ast.BinOp) and isinstance(each.node.op, ast.Mod) and len(each.sources) == 2:
                return each.sources[1]
    return None


def schedule_lengths(scheduler: AbstractValue) -> list[AbstractValue]:
    """Return the numbers of steps of a schedule and of the schedules that it consists of."""
    names = LENGTH_ARGUMENTS.get(scheduler.name.rpartition(".")[2], ())
    found = [each for name, each in scheduler.arguments.items() if name in names]
    for each in scheduler.arguments.values():
        for inner in each.sources if each.kind is ValueKind.SEQUENCE else ():
            found += schedule_lengths(inner) if inner.kind is ValueKind.SCHEDULER and inner is not scheduler else ()
    return found


def counts_updates(source: SourceFile, expressions: Iterable[ast.AST], epochs: Container[str] = ()) -> bool:
    """Return True if expressions use the number of updates of the run: ``epochs * len(loader)``, or a name of it.

    Args:
        source: the file.
        expressions: expressions and definitions, of which variables, also of closures, and attributes are followed.
        epochs: names for the number of epochs, besides those with "epoch" in them.
    """
    return any(_Totals(source, epochs).has(each) for each in expressions)


class _Totals:
    """Searches expressions for the number of updates of a run."""

    def __init__(self, source: SourceFile, epochs: Container[str]) -> None:
        self._source, self._epochs, self._seen = source, epochs, set[int]()

    def has(self, node: ast.AST, depth: int = 6) -> bool:
        """Return True if a part of a node, or of a value that it reads, is the number of updates of the run."""
        if id(node) in self._seen:
            return False
        self._seen.add(id(node))
        match node:
            case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv() as op, right=right):
                if self.has(right, depth) or (isinstance(op, ast.FloorDiv) and self._is_total(node)):
                    return True
                is_conversion = self._is_per_epoch(right)  # warm_up_steps / steps_per_epoch
                return not is_conversion and self.has(left, depth)
            case ast.BinOp() if self._is_total(node):
                return True
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()) if depth:
                return any(self.has(each, depth - 1) for each in self._values(node))
            case _:
                return any(self.has(each, depth) for each in ast.iter_child_nodes(node))

    def _is_total(self, node: ast.BinOp) -> bool:
        """Return True for ``epochs * steps_per_epoch`` and ``epochs * samples // batch_size``."""
        if isinstance(node.op, ast.FloorDiv):
            is_product = isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Mult)
            sides = (node.left.left, node.left.right) if is_product else ()  # type: ignore[attr-defined]
            return _SIZE.search(ast.unparse(node.right)) is not None and any(map(self._is_epochs, sides))
        if not isinstance(node.op, ast.Mult):
            return False
        pairs = (node.left, node.right), (node.right, node.left)
        return any(self._is_epochs(one) and self._is_per_epoch(other) for one, other in pairs)

    def _is_epochs(self, node: ast.expr) -> bool:
        return "epoch" in ast.unparse(node).lower().replace("per_epoch", "") or dotted_name(node) in self._epochs

    def _is_per_epoch(self, node: ast.expr) -> bool:
        """Return True for the number of batches of an epoch, by its name or how it is computed."""
        values = self._values(node) if isinstance(node, ast.Name | ast.Attribute) else []
        return any(_PER_EPOCH.search(ast.unparse(each).lower()) for each in (node, *values))

    def _values(self, node: ast.expr) -> list[ast.expr]:
        """Return what a variable, an attribute, or a field or property of a class may be."""
        if isinstance(node, ast.Name):
            found = values_in_closure(self._source, node)
        else:
            found = [*possible_values(self._source, node), *self._fields(last_name(node))]
        by_name = _definitions_of(self._source, last_name(node)) if _UPDATES.search(last_name(node)) else ()
        return [*found, *by_name]

    def _fields(self, name: str) -> Iterator[ast.expr]:
        """Yield the values of a field, and the results of a property, of the classes of the program."""
        for definition in self._source.nodes_of(ast.ClassDef):
            for each in definition.body:
                targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
                if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
                    yield from [each.value] if name in map(last_name, targets) else ()
                elif isinstance(each, ast.FunctionDef) and each.name == name and each.decorator_list:
                    yield from (e.value for e in nodes_in(each, ast.Return) if e.value is not None)


def counts_batches(node: ast.AST) -> bool:
    """Return True for an expression with the number of batches in it, such as ``epochs * len(loader)``."""
    names = (last_name(each) for each in nodes_in(node, ast.Name, ast.Attribute))
    return any(name == "len" or _BATCHES.search(name) for name in names)


def _definitions_of(source: SourceFile, name: str) -> Iterator[ast.expr]:
    """Yield what variables, attributes and properties of a name have as values, and what is passed under this name."""
    for each in source.nodes_of(ast.Assign):
        if name in map(last_name, each.targets):
            yield each.value
    for call in source.all_calls:
        yield from (word.value for word in call.keywords if word.arg == name)
    for each in source.nodes_of(ast.FunctionDef):
        if each.name == name:
            yield from (returned.value for returned in nodes_in(each, ast.Return) if returned.value is not None)


def unit_exponent(number: AbstractValue, unit: AbstractValue, depth: int = 0) -> int | None:
    """Return how often a unit is a factor of a computed number: 1 = once a factor, -1 = once a divisor.

    Args:
        number: a computed value.
        unit: the value that may be a factor or divisor.
        depth: number of terms that enclose the number.

    Returns:
        The exponent; None if unknown.
    """
    if number is unit or number.union or depth > MAX_DEPTH:
        return 1 if number is unit else None
    parts = [
        unit_exponent(each, unit, depth + 1)
        for each in number.sources
        if each.kind in (ValueKind.UNKNOWN, ValueKind.CONSTANT)
    ]
    known = [each for each in parts if each is not None]
    if len(known) < len(parts):
        return None
    node = number.node
    if isinstance(node, ast.BinOp) and len(parts) == 2:
        return _combine_exponents(node.op, known[0], known[1])
    called = node.func if isinstance(node, ast.Call) else None
    keeps_factors = (
        isinstance(node, ast.UnaryOp) or getattr(called, "attr", getattr(called, "id", "")) in ROUNDING_FUNCTIONS
    )
    return _common_exponent(known) if keeps_factors else 0


def _combine_exponents(op: ast.operator, left: int, right: int) -> int | None:
    match op:
        case ast.Mult():
            return left + right
        case ast.Div() | ast.FloorDiv():
            return left - right
        case ast.Add() | ast.Sub():
            return _common_exponent([left, right])
        case _:
            return None if left or right else 0


def _common_exponent(exponents: list[int]) -> int | None:
    """Return the common exponent of the terms of a sum, ignoring terms without the unit; None if they differ."""
    found = {each for each in exponents if each}
    return None if len(found) > 1 else next(iter(found), 0)
