"""Finds calls in source files, and the call that a frame is executing."""

import ast
import linecache
from collections.abc import Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any, Final

MAX_LINES: Final = 5000  # longer files are not parsed


def calls_in(file: str, *words: str) -> Sequence[ast.Call]:
    """Return all calls in a file; [] if it does not contain all of the words, is too long, or cannot be parsed.

    Cost: 10 us for each line of a file that contains the words.
    """
    tree = tree_of(file, *words)
    return [] if tree is None else [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def tree_of(file: str, *words: str) -> ast.Module | None:
    """Return the parsed file; None if it does not contain all of the words, is too long, or cannot be parsed."""
    lines = linecache.getlines(file)
    text = "".join(lines)
    if len(lines) > MAX_LINES or not all(word in text for word in words):
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # the file has changed since it was imported
        return None


def call_at(frame: FrameType) -> ast.Call | None:
    """Return the call that a frame is executing; None if its source code is not available."""
    found = expression_at(frame)
    return found if isinstance(found, ast.Call) else None


def expression_at(frame: FrameType) -> ast.expr | None:
    """Return the expression that a frame is computing; None if its source code is not available."""
    line, last, begin, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if line is None or last is None or begin is None or end is None:
        return None
    lines = [text.encode() for text in linecache.getlines(frame.f_code.co_filename, frame.f_globals)[line - 1 : last]]
    if len(lines) != last - line + 1:
        return None
    lines[-1] = lines[-1][:end]  # columns count bytes
    lines[0] = lines[0][begin:]
    try:
        return ast.parse("(" + b"".join(lines).decode() + "\n)", mode="eval").body
    except (SyntaxError, ValueError):  # a call over several lines may start at its last name
        return None


def resolve_global(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of one of a file's global ``names``, or of an attribute of a module; None otherwise."""
    if isinstance(node, ast.Attribute):
        module = resolve_global(node.value, names)
        return vars(module).get(node.attr) if isinstance(module, ModuleType) else None
    return names.get(node.id) if isinstance(node, ast.Name) else None
