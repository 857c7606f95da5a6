"""Finds numbers that a loop changes step by step after the only objects that use them have copied them."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.queries.unread_variables import has_loop, is_unread, scope_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in

_WORDS: Final = (
    "eps|temp|coef|const|weight|lambda|alpha|beta|gamma|rate|entropy|tau|sigma|noise|std|decay|factor|ratio|prob|kl|"
    "clip|explor|margin|scale|norm"
)
_SETTING: Final = re.compile(_WORDS, re.IGNORECASE)
CHANGE: Final = re.compile(rf"(?m)^[ \t]+\w*({_WORDS})\w* ?([*+-]= ?|= ?.*[*+-])", re.IGNORECASE)
"""A line that may change a variable step by step."""
_TENSOR: Final = re.compile(r"tensor|array|np\.|numpy|torch\.|zeros|ones|Parameter|list\(|\[|Variable|nn\.")


def copied_numbers(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``epsilon *= decay`` in a loop, if an object got epsilon before and nothing reads the new value."""
    reported: set[tuple[int, str]] = set()
    for statement in source.nodes_of(ast.AugAssign, ast.Assign):
        variable = _changed(statement)
        if variable is None or not _SETTING.search(variable.id) or not has_loop(source, statement):
            continue
        scope = scope_of(source, variable)
        key = (id(scope), variable.id)
        copy = _copy(source, scope, variable, statement) if key not in reported else None
        stores = _stores(scope, variable.id)
        is_number = not any(_TENSOR.search(ast.unparse(each.value)) for each in stores)
        if copy is None or not is_number or not is_unread(source, copy, variable, stores):
            continue
        loops = [each for each in enclosing_nodes(source, statement) if isinstance(each, ast.For | ast.While)]
        if not any(_is_used(each, variable.id) for each in loops):
            reported.add(key)
            yield Hit(
                message=f"`{source.text.segment(statement)}` has no effect: `{last_name(copy.func)}` copied "
                f"`{variable.id}` when it was called, and nothing reads the new value.",
                node=statement,
                related=((copy, "the number is copied here"),),
            )


def _changed(statement: ast.AugAssign | ast.Assign) -> ast.Name | None:
    """Return the variable that a statement decays or increases: ``x *= 0.9``, ``x = max(x * 0.9, 0.1)``."""
    match statement:
        case ast.AugAssign(target=ast.Name() as variable, op=ast.Mult() | ast.Sub() | ast.Add()):
            return variable
        case ast.Assign(targets=[ast.Name() as variable], value=ast.BinOp() | ast.Call() as value):
            sums = nodes_in(value, ast.BinOp)
            own = [each for each in sums for part in (each.left, each.right) if last_name(part) == variable.id]
            return variable if own else None
        case _:
            return None


def _stores(scope: ast.AST, name: str) -> list[Any]:
    """Return the statements that assign a variable alone."""
    found: list[Any] = []
    for each in nodes_in(scope, ast.Assign, ast.AugAssign):
        targets = each.targets if isinstance(each, ast.Assign) else [each.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            found.append(each)
    return found


def _copy(source: SourceFile, scope: Any, variable: ast.Name, statement: ast.stmt) -> ast.Call | None:
    """Return the last call that creates an object of a class from a variable, before all loops in which it changes."""
    found = None
    for call in nodes_in(scope, ast.Call):
        given = [*call.args, *(key.value for key in call.keywords)]
        is_given = any(isinstance(each, ast.Name) and each.id == variable.id for each in given)
        is_class = last_name(call.func)[:1].isupper() and last_name(call.func) in definitions(source).classes
        is_first = call.lineno < statement.lineno and function_of(source, call) is function_of(source, statement)
        if is_given and is_class and is_first and called_function(source, call) is not None:
            found = call if not has_loop(source, call) else None
    return found


def _is_used(loop: ast.AST, name: str) -> bool:
    """Return True if a condition in a loop depends on a variable, apart from one that guards its own change."""
    stores = _stores(loop, name)
    for test in nodes_in(loop, ast.If, ast.While, ast.IfExp):
        is_guard = isinstance(test, ast.If) and all(any(each is store for store in stores) for each in test.body)
        if not is_guard and any(each.id == name for each in nodes_in(test.test, ast.Name)):
            return True
    calls = [each for each in nodes_in(loop, ast.Call) if last_name(each.func) == "update"]
    return any(each.id == name for call in calls for each in nodes_in(call, ast.Name))
