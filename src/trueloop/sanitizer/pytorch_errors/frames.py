"""Reads the stack of an exception: the code that raised it, and the arguments of the failing line."""

import ast
import dis
import linecache
import os
import sys
from collections.abc import Mapping
from types import CodeType
from typing import Any, Final, NamedTuple

from torch import Tensor, nn

from trueloop.core.findings import CodePosition, SourceLocation
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.user_location import is_trueloop_code, is_user_code

_RAISES: Final = ("RAISE_VARARGS", "RERAISE")
_MAX_DEPTH: Final = 6  # levels of attributes that are followed


class Frame(NamedTuple):
    """A function that an exception left. It refers to objects of the program, so it must not be stored."""

    code: CodeType
    instruction: int
    locals: Mapping[str, Any]
    globals: Mapping[str, Any]

    @property
    def position(self) -> CodePosition:
        """Position of the instruction that raised or called."""
        return CodePosition(self.code, self.instruction)

    @property
    def location(self) -> SourceLocation:
        """Line of the instruction that raised or called."""
        return self.position.source_location

    @property
    def in_user_code(self) -> bool:
        """Whether the function belongs to the user's code."""
        return is_user_code(self.code)

    @property
    def raises(self) -> bool:
        """Whether the instruction is a ``raise``; in the innermost frame it is otherwise a call of code in C++."""
        return dis.opname[self.code.co_code[self.instruction]] in _RAISES


def stack(error: BaseException) -> list[Frame]:
    """Return the frames of an exception's traceback, outermost first, without those of trueloop."""
    frames: list[Frame] = []
    trace = error.__traceback__
    while trace is not None:
        if not is_trueloop_code(trace.tb_frame.f_code):
            frame = trace.tb_frame
            frames.append(Frame(frame.f_code, trace.tb_lasti, variables(frame), frame.f_globals))
        trace = trace.tb_next
    return frames


def torch_file(frame: Frame) -> str:
    """Return the path of the frame's file within torch, "nn/modules/linear.py"; "" if it is not in torch."""
    folder = os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep  # noqa: PTH120
    name = frame.code.co_filename
    return name.removeprefix(folder).replace(os.sep, "/") if name.startswith(folder) else ""


def resolve_expression(expression: ast.expr, frame: Frame) -> Any:
    """Return the value of a name or an attribute in a frame; None for an expression that would have to be run."""
    return _resolve(expression, frame, _MAX_DEPTH)[0]


def operands(frame: Frame) -> list[tuple[str, Tensor, Any]]:
    """Return the tensor arguments of the expression that a frame runs: source code, tensor, and owner of the attribute.

    The names and attributes in the expression are looked up without running any code.
    """
    found: list[tuple[str, Tensor, Any]] = []
    for expression in _argument_expressions(_running_expression(frame)):
        value, owner = _resolve(expression, frame, _MAX_DEPTH)
        text = ast.unparse(expression)
        if isinstance(value, Tensor):
            found.append((text, value, owner))
        elif type(value) in (tuple, list):
            found += [(f"{text}[{i}]", each, None) for i, each in enumerate(value[:8]) if isinstance(each, Tensor)]
    return found


def _running_expression(frame: Frame) -> ast.expr | ast.stmt | None:
    """Parse the part of the source code from which the frame's instruction was compiled."""
    code = frame.code
    first, last, start, end = list(code.co_positions())[frame.instruction // 2]
    if first is None or last is None or start is None or end is None:
        return None
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[first - 1 : last]]  # columns count bytes
    if not lines:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    text = b"".join(lines)
    try:
        return ast.parse(b"(" + text + b")", mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        pass  # a statement, such as `raise` or `x += 1`
    try:
        return ast.parse(text).body[0]
    except (SyntaxError, ValueError, RecursionError, IndexError):
        return None


def _argument_expressions(expression: ast.expr | ast.stmt | None) -> list[ast.expr]:
    if isinstance(expression, ast.AugAssign):
        return [expression.target, expression.value]
    if isinstance(expression, ast.Call):
        method = [expression.func.value] if isinstance(expression.func, ast.Attribute) else []
        arguments = [*expression.args, *(keyword.value for keyword in expression.keywords)]
        return [*method, *(each.value if isinstance(each, ast.Starred) else each for each in arguments)]
    if isinstance(expression, ast.BinOp):
        return [expression.left, expression.right]
    if isinstance(expression, ast.Subscript):
        return [expression.value, expression.slice]
    if isinstance(expression, ast.Compare):
        return [expression.left, *expression.comparators]
    return [expression] if isinstance(expression, ast.Name | ast.Attribute) else []


def _resolve(expression: ast.expr, frame: Frame, depth: int) -> tuple[Any, Any]:
    """Return the value of an expression, and the object whose attribute it is; None if they would have to be run."""
    if isinstance(expression, ast.Name):
        name = expression.id
        return (frame.locals[name] if name in frame.locals else frame.globals.get(name)), None
    if isinstance(expression, ast.Attribute) and depth:
        owner, _ = _resolve(expression.value, frame, depth - 1)
        return stored_attribute(owner, expression.attr), owner
    return None, None


def stored_attribute(owner: Any, name: str) -> Any:
    """Return an attribute from the ``__dict__`` of an object, without calling any method of the object."""
    try:
        stored: Any = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None
    if type(stored) is not dict:
        return None
    if issubclass(type(owner), nn.Module):
        for kind in ("_parameters", "_buffers", "_modules"):
            if type(stored.get(kind)) is dict and name in stored[kind]:
                return stored[kind][name]
    return stored.get(name)
