"""Finds the line of a program that averages weights."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.core.findings import CodePosition, SourceLocation
from trueloop.tracing.events import Event
from trueloop.tracing.running_code import user_modules
from trueloop.tracing.source_calls import tree_of

_REST: Final = re.compile(r"1(\.0)? ?- ?(self\.)?\w+")
_CALL: Final = re.compile(r"lerp_?\(|\.mul_\(.*\.add_\(")


def averaging_line(event: Event) -> SourceLocation | CodePosition | None:
    """Return the innermost statement that mixes old and new weights; the line of the event if there is none."""
    file = event.location.source_location.path if event.location else ""
    for each in dict.fromkeys(filter(None, [file, *user_modules().values()])):
        tree = tree_of(each)
        found = None if tree is None else next(_mixtures(tree), None)
        if found is not None:
            return SourceLocation(each, found)
    return event.location


def creation_line(name: str) -> SourceLocation | None:
    """Return the last statement that gives an average its variable or attribute: of "ema.module" the one of "ema"."""
    first = name.partition(".")[0]
    for each in user_modules().values():
        tree = tree_of(each, first)
        for node in ast.walk(tree) if tree is not None else ():
            targets = node.targets if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else []
            if any(ast.unparse(target).rpartition(".")[2] == first for target in targets):
                return SourceLocation(each, targets[0].lineno)
    return None


def _mixtures(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr):
            text = ast.unparse(node)
            if _CALL.search(text) or (_REST.search(text) and "*" in text):
                yield node.lineno
