"""Finds totals in the default value of a parameter, which all calls of the function share."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.class_instances import definitions, enclosing_loops
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in

_ADDING: Final = frozenset(("append", "extend", "update", "add"))
_RESETTING: Final = frozenset(("reset", "clear", "pop", "popitem", "zero_"))
_MEANS: Final = frozenset(("sum", "mean", "average", "fmean", "cat", "concatenate", "stack", "hstack", "vstack"))
_RESULTS: Final = frozenset(("compute", "avg", "average", "mean", "result"))


def find_default_arguments(source: SourceFile) -> Iterator[Hit]:
    """Yield each default value to which a function adds the batches of a loop, and from which it computes a mean."""
    for function in source.nodes_of(ast.FunctionDef):
        for name, value in _defaults(function):
            added = _added(function, name) if _is_mutable(value) else None
            read = _mean(function, name) if added is not None else None
            if read is not None and not _is_reset(function, name) and _shares(source, function, name):
                yield Hit(
                    message=f"The default of `{name}` is made once: from the second call of `{function.name}` on it "
                    f"also contains the batches of the earlier calls, and so does `{ast.unparse(read)}`.",
                    node=value,
                    related=((added, "added here"), (read, "computed here")),
                )
                break


def _defaults(function: ast.FunctionDef) -> list[tuple[str, ast.expr]]:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    found = list(zip(names[::-1], arguments.defaults[::-1], strict=False))
    only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return found + [(each.arg, value) for each, value in only if value is not None]


def _is_mutable(value: ast.expr) -> bool:
    """Return True for a dictionary or list, or an object that a call of a class creates."""
    name = last_name(value.func) if isinstance(value, ast.Call) else ""
    return isinstance(value, ast.Dict | ast.List) or name in ("dict", "list", "defaultdict") or name[:1].isupper()


def _added(function: ast.FunctionDef, name: str) -> ast.AST | None:
    """Return the statement in a loop of a function that adds to a parameter or a part of it."""
    for loop in nodes_in(function, ast.For, ast.While):
        for each in nodes_in(loop, ast.AugAssign, ast.Call):
            match each:
                case ast.AugAssign(op=ast.Add(), target=ast.Subscript() | ast.Attribute() as target):
                    owner: Any = target.value
                case ast.Call(func=ast.Attribute(attr=attr, value=owner)) if attr in _ADDING:
                    pass
                case _:
                    continue
            if _is_part(owner, name):
                return each
    return None


def _is_part(node: ast.expr, name: str) -> bool:
    """Return True for a variable or an item of it."""
    inner = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(inner, ast.Name) and inner.id == name


def _mean(function: ast.FunctionDef, name: str) -> ast.expr | None:
    """Return the expression that computes a mean, or a metric, of all that a parameter holds."""
    for each in nodes_in(function, ast.BinOp, ast.Call, ast.Attribute):
        match each:
            case ast.BinOp(op=ast.Div(), left=left):
                parts = [*nodes_in(left, ast.Subscript), left]
                found = any(_is_part(part, name) for part in parts) and not nodes_in(left, ast.Slice)
            case ast.Call(func=func, args=args) if last_name(func) in _MEANS or last_name(func).endswith("_score"):
                found = any(_is_part(part, name) for part in args)
            case ast.Attribute(attr=attr, value=owner) if attr in _RESULTS:
                found = _is_part(owner, name)
            case _:
                found = False
        if found:
            return each
    return None


def _is_reset(function: ast.FunctionDef, name: str) -> bool:
    """Return True if a function assigns a parameter or a part of it, or calls a method that empties it."""
    for node in nodes_in(function, ast.Assign, ast.Call, ast.Delete):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                parts = [part for each in targets for part in nodes_in(each, ast.Name, ast.Subscript)]
                if any(_is_part(part, name) for part in parts):
                    return True
            case ast.Call(func=ast.Attribute(attr=attr, value=owner)) if attr in _RESETTING:
                if _is_part(owner, name):
                    return True
            case _:
                pass
    return False


def _shares(source: SourceFile, function: ast.FunctionDef, name: str) -> bool:
    """Return True if a function is called several times without its own value for a parameter."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    is_method = isinstance(source.parents.get(id(function)), ast.ClassDef)
    position = names.index(name) - is_method if name in names else len(names)
    calls = [
        each
        for each in definitions(source).calls.get(function.name, ())
        if len(each.args) <= position and all(key.arg not in (name, None) for key in each.keywords)
    ]
    repeated = any(path for each in calls for path in enclosing_loops(source, each))
    return len([each for each in calls if not encloses(function, each)]) > 1 or repeated
