"""Finds the calls of a training step that stand one after the other in the text, whatever their objects are."""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.project import WITH_BLOCKS
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

_ROLES: Final = {
    "zero_grad": "clear", "step": "step", "backward": "backward", "clip_grad_norm_": "clip", "clip_grad_value_": "clip",
    "clip_grad_norm": "clip",
}  # fmt: skip
_HARMLESS: Final = frozenset((
    "print", "step", "zero_grad", "item", "append", "update", "set_postfix", "log", "add_scalar", "set_description",
    "format", "join", "len", "float", "str",
))  # fmt: skip
"""Functions between two calls that do not change gradients."""


class PlainCall(NamedTuple):
    """A statement that consists of a call of a training step."""

    role: str
    """"clear", "step", "backward" or "clip"."""
    owner: str
    """Object of the call: "optimizer" for ``optimizer.step()``."""
    statement: ast.Expr
    call: ast.Call


def plain_calls(source: SourceFile) -> Iterator[list[PlainCall | None]]:
    """Yield the calls of each block with their order kept; None stands for a statement that may change gradients."""
    for node in source.nodes_of(*WITH_BLOCKS):
        for name in ("body", "orelse"):
            block: Any = getattr(node, name, None)
            if isinstance(block, list) and sum(map(_has_role, block)) > 2:
                found = [each for statement in block for each in _plain_call(statement)]
                if sum(each is not None for each in found) > 2:
                    yield found


def _has_role(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and bool(_role(call))


def _role(call: ast.Call) -> str:
    """Return the role of a method, or of ``clip_grad_norm_`` imported by its name; "" for other functions."""
    role = _ROLES.get(last_name(call.func), "")
    return role if isinstance(call.func, ast.Attribute) or role == "clip" else ""


def _plain_call(statement: ast.stmt) -> list[PlainCall | None]:
    """Return the call of a statement; [] if it does not matter, [None] if it may change gradients."""
    match statement:
        case ast.Expr(value=ast.Call() as call) if _role(call):
            role, owner = _role(call), getattr(call.func, "value", None)
            if role == "step" and "sched" in ast.unparse(call.func).lower():
                return []
            if role == "step" and (call.args or call.keywords):
                return [None]
            return [PlainCall(role, dotted_name(owner), statement, call)]
        case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Import():
            return []
        case _:
            calls = list(nodes_in(statement, ast.Call))
            matters = any(last_name(each.func) not in _HARMLESS for each in calls) or _uses_gradients(statement)
            return [None] if matters else []


def _uses_gradients(statement: ast.stmt) -> bool:
    return any(each.attr in ("grad", "backward") for each in nodes_in(statement, ast.Attribute))
