"""Finds targets that are taken from within the window, or the columns, that the model gets, in the source."""

import ast
import re
from collections.abc import Iterator

from trueloop.analysis.queries.window_pairs import Part, add_linear, is_only_target, parts_of, window_pairs
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Rule


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each target that is the last value of the window, or one of the columns, that is its input."""
    reported = set[int]()
    for pair in window_pairs(source):
        for window, target in parts_of(pair):
            if id(target.node) not in reported and _is_inside(window, target) and is_only_target(pair, window, target):
                reported.add(id(target.node))
                is_column = bool(window.before) and set(window.lower) <= {""} and set(target.lower) <= {""}
                yield Hit(
                    message=f"The target `{ast.unparse(target.node)}` is "
                    f"{'one of the columns' if is_column else 'the last step'} of the input "
                    f"`{ast.unparse(window.node)}`: the model only has to copy it.",
                    node=target.node,
                    related=((window.node, "the input"),),
                    fix=_next_step_fix(source, target),
                )


def _next_step_fix(source: SourceFile, target: Part) -> Fix | None:
    """Return the fix that takes ``series[i + width]`` for ``series[i + width - 1]``."""
    index = target.node.slice
    index = index.elts[len(target.before)] if isinstance(index, ast.Tuple) else index
    match index:
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant(value=1)):
            text = source.text.segment(left)
            return Fix((source.text.replace(index, text),), safe=False, description="Predict the step after the window")
        case _:
            return None


def _is_inside(window: Part, target: Part) -> bool:
    """Return True if the target is the last step of the window, or one of a table's columns."""
    if window.rest and window.rest != target.rest:
        return False  # other columns
    if target.is_own_end:
        return not window.before and bool(window.lower)
    if set(window.lower) | set(window.upper or {}) | set(target.lower) <= {""}:
        return bool(window.before) and set(window.before) <= {":"} and _is_column(window, target)
    if window.upper is None or window.lower == target.lower:
        return False
    is_shifted = target.is_slice and (
        target.upper is None or add_linear(target.upper, target.lower, -1) == add_linear(window.upper, window.lower, -1)
    )
    return add_linear(window.upper, target.lower, -1) == {"": 1} and not is_shifted


def _is_column(window: Part, target: Part) -> bool:
    """Return True if constant columns of the inputs contain the column of the target."""
    first, column = window.lower.get("", 0), target.lower.get("", 0)
    last = None if window.upper is None else window.upper.get("", 0)
    if target.is_slice or first < 0:
        return False
    if column < 0:
        return column == -1 if last is None else last < 0 and column < last
    return first <= column < last if last is not None and last > 0 else last is None and first <= column


RULE = Rule(
    required_words=("torch", re.compile(r"\[.*:.*\]")),
    find=find,
)
