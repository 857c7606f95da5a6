"""What a line of the program is just calling, and whether a condition decides that it does."""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

_RETURNS: Final = frozenset(("RETURN_VALUE", "RETURN_CONST"))


def called_as(frame: FrameType, accepts: Callable[[int, set[str]], bool]) -> Any:
    """Return the function that a frame is at the call of, read from its source.

    Args:
        frame: a running function's.
        accepts: given the number of positional arguments and the names of the others, says whether it is wanted.

    Returns:
        The function; None where the source is not there or the call not plain: unpacked arguments, a local name.
    """
    call = _call(frame)
    if call is None or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    named = {word.arg for word in call.keywords if word.arg is not None}
    if len(named) != len(call.keywords) or not accepts(len(call.args), named):
        return None
    return _named(call.func, frame)


@lru_cache(maxsize=1024)
def is_conditional(code: CodeType, at: int) -> bool:
    """True where an instruction is reached under a condition only, or may be missed as the function returns before.

    The exit of a ``for`` is no condition.
    """
    for step in dis.get_instructions(code):
        if step.offset >= at:
            return False
        if step.opname in _RETURNS or ("JUMP" in step.opname and "_IF_" in step.opname and step.argval > at):
            return True
    return False


def _call(frame: FrameType) -> ast.Call | None:
    """Return the call a frame is at; None where its source cannot be had."""
    line, last, begin, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if line is None or last is None or begin is None or end is None:
        return None
    lines = [text.encode() for text in linecache.getlines(frame.f_code.co_filename, frame.f_globals)[line - 1 : last]]
    if len(lines) != last - line + 1:
        return None
    lines[-1] = lines[-1][:end]  # columns count bytes
    lines[0] = lines[0][begin:]
    try:
        found = ast.parse("(" + b"".join(lines).decode() + "\n)", mode="eval").body
    except (SyntaxError, UnicodeDecodeError):  # a call over several lines may be said to begin at its last name
        return None
    return found if isinstance(found, ast.Call) else None


def _named(node: ast.expr, frame: FrameType) -> Any:
    """Return what a name, or one within modules, stands for in a frame; None where it is not that plain."""
    if isinstance(node, ast.Attribute):
        inside = _named(node.value, frame)
        return vars(inside).get(node.attr) if isinstance(inside, ModuleType) else None
    code = frame.f_code
    if not isinstance(node, ast.Name) or node.id in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        return None
    return frame.f_globals.get(node.id)
