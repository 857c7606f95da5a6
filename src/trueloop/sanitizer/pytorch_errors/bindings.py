"""Finds the statement that bound a name to its value, from the source code alone, if it is certain."""

import ast
import linecache
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache
from types import CodeType
from typing import Final, NamedTuple

from trueloop.core.findings import SourceLocation

Function = ast.FunctionDef | ast.AsyncFunctionDef
_BLOCKS: Final = ("body", "orelse", "finalbody", "handlers", "cases")
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_CONVERSIONS: Final = ("to", "cuda", "cpu", "float", "double", "half", "bfloat16", "long", "int", "contiguous")


class Binding(NamedTuple):
    """The statement that binds a name to its value."""

    line: int
    made_by: str
    """Outermost call in the value: "detach"; "for" = the name is a loop variable; "" = anything else."""
    alias: bool = False
    """Whether the statement only gives an existing object another name."""


class _Open(Enum):
    """The reason why no statement is certain."""

    UNCLEAR = "several statements could have bound the name"
    START = "no earlier statement binds the name: it is a parameter, or belongs to another function"


def binding(code: CodeType, line: int, name: str) -> Binding | None:
    """Return the statement that bound a name to the value that it has at a line; None if it is not certain.

    Args:
        code: code of the function or module that contains the line.
        line: number of the line.
        name: name of a variable of the function or module.
    """
    body = _body(code)
    if body is None or any(name in node.names for node in _walk(body) if isinstance(node, ast.Global | ast.Nonlocal)):
        return None
    found = _before(body, line, name)
    return found if isinstance(found, Binding) else None


def attribute(code: CodeType, name: str) -> SourceLocation | None:
    """Return the line that sets ``self.<name>``, if the class of a method has exactly one such line."""
    owner = _class(code)
    if owner is None:
        return None
    found: set[tuple[int, str]] = set()
    for method in owner.body:
        if not isinstance(method, ast.FunctionDef) or not method.args.args:
            continue
        own = method.args.args[0].arg
        for target in _targets(method):
            if isinstance(target, ast.Attribute) and target.attr == name and _is_name(target.value, own):
                found.add((target.lineno, f"{owner.name}.{method.name}"))
    return SourceLocation(code.co_filename, *found.pop()) if len(found) == 1 else None


def inplace_changes(code: CodeType) -> list[tuple[SourceLocation, ast.expr]]:
    """Return line and target of each in-place operation in a function: ``x += 1``, ``x.relu_()``."""
    function = "" if code.co_name == "<module>" else code.co_qualname
    return [
        (SourceLocation(code.co_filename, node.lineno, function), target)
        for node in _walk(_body(code) or [])
        if isinstance(node, ast.stmt | ast.expr) and (target := _changed_target(node)) is not None
    ]


def _changed_target(node: ast.stmt | ast.expr) -> ast.expr | None:
    if isinstance(node, ast.AugAssign):
        return node.target.value if isinstance(node.target, ast.Subscript) else node.target
    if isinstance(node, ast.Assign):
        return next((target.value for target in node.targets if isinstance(target, ast.Subscript)), None)
    if not isinstance(node, ast.Call):
        return None
    if any(k.arg == "inplace" and isinstance(k.value, ast.Constant) and k.value.value is True for k in node.keywords):
        return node.args[0] if node.args else None
    if not isinstance(node.func, ast.Attribute) or not node.func.attr.endswith("_") or node.func.attr[-2] == "_":
        return None
    return None if node.func.attr == "requires_grad_" else node.func.value


# The function a code object was compiled from --------------------------------------------------------------------


@lru_cache(maxsize=8)
def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None  # a notebook cell with magics, or a file that was edited since


def _tree(path: str) -> ast.Module | None:
    return _parse("".join(linecache.getlines(path)))


def _body(code: CodeType) -> Sequence[ast.stmt] | None:
    tree = _tree(code.co_filename)
    if tree is None or code.co_name == "<module>":
        return tree and tree.body
    found = [node for node in ast.walk(tree) if isinstance(node, Function) and _is(node, code)]
    return found[0].body if len(found) == 1 else None


def _class(code: CodeType) -> ast.ClassDef | None:
    tree = _tree(code.co_filename)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ClassDef) and any(isinstance(each, Function) and _is(each, code) for each in node.body):
            return node
    return None


def _is(node: Function, code: CodeType) -> bool:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno


# The last statement before a line that binds a name ----------------------------------------------------------------


def _before(block: Sequence[ast.AST], line: int, name: str) -> Binding | _Open:
    for index, statement in enumerate(block):
        if not _contains(statement, line):
            continue
        for inner in _blocks(statement):
            if any(_contains(each, line) for each in inner):
                found = _within(statement, inner, line, name)
                if found is not _Open.START:
                    return found
        return _last(block[:index], name)
    return _Open.UNCLEAR


def _within(statement: ast.AST, block: Sequence[ast.AST], line: int, name: str) -> Binding | _Open:
    found = _before(block, line, name)
    if found is not _Open.START:
        return found
    header = _header(statement, name)
    if header is not None:
        return header
    if isinstance(statement, _LOOPS) and _may_bind(statement, name):
        return _Open.UNCLEAR  # an earlier iteration may have bound it
    if isinstance(statement, ast.Try) and block is not statement.body and _may_bind(statement, name):
        return _Open.UNCLEAR
    return _Open.START


def _last(block: Sequence[ast.AST], name: str) -> Binding | _Open:
    for statement in reversed(block):
        found = _binds(statement, name)
        if found is not None:
            return found
        if isinstance(statement, ast.With | ast.AsyncWith):
            within = _last(statement.body, name)
            if within is not _Open.START:
                return within
            if (header := _header(statement, name)) is not None:
                return header
        elif _may_bind(statement, name):
            return _Open.UNCLEAR
    return _Open.START


def _binds(statement: ast.AST, name: str) -> Binding | None:
    """Return the binding of a plain assignment; ``x += 1`` is none, since the tensor remains the same."""
    if isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets, value = [statement.target], statement.value
    else:
        return None
    for target in targets:
        if isinstance(target, ast.Name) and target.id == name:
            return Binding(statement.lineno, _made_by(value), isinstance(value, ast.Name))
        if isinstance(target, ast.Tuple | ast.List) and name in _names(target):
            return Binding(statement.lineno, _made_by(value))
    return None


def _header(statement: ast.AST, name: str) -> Binding | None:
    if isinstance(statement, ast.For | ast.AsyncFor) and name in _names(statement.target):
        return Binding(statement.lineno, "for")
    if isinstance(statement, ast.With | ast.AsyncWith):
        for item in statement.items:
            if item.optional_vars is not None and name in _names(item.optional_vars):
                return Binding(statement.lineno, "")
    return None


def _made_by(value: ast.expr) -> str:
    """Return the name of the call that created a value, skipping conversions of its result."""
    if isinstance(value, ast.Attribute):
        return value.attr
    if not isinstance(value, ast.Call):
        return ""
    name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
    if name in _CONVERSIONS and isinstance(value.func, ast.Attribute):
        return _made_by(value.func.value) or name
    return name


def _contains(node: ast.AST, line: int) -> bool:
    if isinstance(node, ast.match_case):
        return any(_contains(each, line) for each in node.body)
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def _blocks(node: ast.AST) -> Iterator[Sequence[ast.AST]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return  # the body is another scope
    for name in _BLOCKS:
        block = getattr(node, name, None)
        if isinstance(block, list) and block:
            yield block


def _may_bind(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store | ast.Del)
        for each in ast.walk(node)
        if each is not _aug_target(node)
    )


def _aug_target(node: ast.AST) -> ast.AST | None:
    return node.target if isinstance(node, ast.AugAssign) else None


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _names(target: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    for each in ast.walk(node):
        if isinstance(each, ast.Assign):
            yield from each.targets
        elif isinstance(each, ast.AnnAssign):
            yield each.target


def _walk(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of statements, without the bodies of functions and classes that they define."""
    pending = [*body]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)
