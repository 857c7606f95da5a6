"""Finds masks of special values, such as -1 for padding, that reading a sample overwrites where it is stored."""

import ast
import operator
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.possible_values import parameters_of
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_TESTS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    name: getattr(operator, name.lower()) for name in ("Eq", "Ne", "Lt", "Le", "Gt", "Ge")
}
_OPERATORS: Final = {"NotEq": "Ne", "LtE": "Le", "GtE": "Ge"}


class LostMask(NamedTuple):
    """A statement that overwrites the values of a stored sample from which its mask is computed."""

    statement: ast.stmt
    mask: str
    view: ast.Subscript
    """The stored sample, ``self.tokens[index]``."""


class _Mask(NamedTuple):
    """A comparison of a sample with a number."""

    sample: str
    test: str
    number: ast.expr


def lost_masks(source: SourceFile, definition: ast.ClassDef) -> Iterator[LostMask]:
    """Yield each ``tokens[~mask] = 0`` after which ``tokens >= 0`` is true everywhere when the sample is read again."""
    for method in (each for each in definition.body if isinstance(each, ast.FunctionDef)):
        indices = {each.arg for each in parameters_of(method)[1:]}
        assigned = [each for each in nodes_in(method, ast.Assign) if len(each.targets) == 1]
        masks = {last_name(e.targets[0]): found for e in assigned if (found := _mask(e.value)) is not None}
        for statement in (each for each in nodes_in(method, ast.stmt) if masks):
            name, sample, is_negated, value = _overwritten(statement)
            mask = masks.get(name)
            if mask is None or mask.sample != sample or value is None or _is_kept(mask, value, is_negated=is_negated):
                continue
            view = _stored_view(source, assigned, sample, indices, statement.lineno)
            later = [e for e in nodes_in(method, ast.Name) if e.id == name and e.lineno > statement.lineno]
            if view is not None and later:
                yield LostMask(statement, name, view)


def masks_in(function: ast.AST, sample: str) -> set[str]:
    """Return the variables of a function that compare a sample with a number."""
    found = [(each.targets[0], _mask(each.value)) for each in nodes_in(function, ast.Assign)]
    return {last_name(target) for target, mask in found if mask is not None and mask.sample == sample}


def _mask(value: ast.expr) -> _Mask | None:
    """Return the comparison that a value is; None for other values."""
    match value:
        case ast.Compare(left=ast.Name(id=sample), ops=[test], comparators=[number]):
            name = type(test).__name__
            return _Mask(sample, _OPERATORS.get(name, name), number)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=sample), attr=test), args=[number]):
            return _Mask(sample, test.capitalize(), number) if test.capitalize() in _TESTS else None
        case _:
            return None


def _overwritten(statement: ast.stmt) -> tuple[str, str, bool, ast.expr | None]:
    """Return the mask, the sample, whether the mask is negated, and the new value of ``sample[~mask] = value``."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=sample), slice=place)], value=value):
            pass
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id=sample), attr="masked_fill_"), args=[place, value])
        ):
            pass
        case _:
            return "", "", False, None
    is_negated = isinstance(place, ast.UnaryOp) and isinstance(place.op, ast.Invert)
    return last_name(place.operand if isinstance(place, ast.UnaryOp) else place), sample, is_negated, value


def _is_kept(mask: _Mask, value: ast.expr, *, is_negated: bool) -> bool:
    """Return True if the comparison has the same result for the new value, or it is unknown."""
    try:
        result = _TESTS[mask.test](ast.literal_eval(value), ast.literal_eval(mask.number))
    except (KeyError, TypeError, ValueError):
        if mask.test not in ("Eq", "Ne"):
            return True
        result = (ast.unparse(value) == ast.unparse(mask.number)) is (mask.test == "Eq")
    return result is not is_negated


def _stored_view(
    source: SourceFile, assigned: list[ast.Assign], sample: str, indices: set[str], line: int
) -> ast.Subscript | None:
    """Return ``self.tokens[index]`` if a variable is that item, also where a new array is stored there; else None."""
    view = None
    for each in assigned:
        target = each.targets[0]
        if not isinstance(target, ast.Name) or target.id != sample or each.lineno >= line:
            continue
        if _is_stored_item(each.value, indices):
            view = each.value
            continue
        after = source.block(each)[source.block(each).index(each) + 1 :]
        stores = [e for e in after if isinstance(e, ast.Assign) and ast.unparse(e.value) == sample]
        if view is None or not any(ast.unparse(e.targets[0]) == ast.unparse(view) for e in stores):
            return None
    return view if isinstance(view, ast.Subscript) else None


def _is_stored_item(node: ast.expr, indices: set[str]) -> bool:
    match node:
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id="self")), slice=ast.Name(id=index)):
            return index in indices
        case _:
            return False
