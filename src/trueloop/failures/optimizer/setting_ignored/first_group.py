"""Finds code that changes the learning rate of the first parameter group only, of an optimizer with several."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import enclosing_loops
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Severity

_SCHEDULER: Final = re.compile(r"lr_scheduler|[A-Z]\w*(LR|Scheduler)$|get_\w*schedule")
_ONE_PART: Final = re.compile(
    r"backbone|head|encoder|decoder|only|trunk|embed|classifier|bias|first|group[_ ]?0|bert|feature|(?<![a-z])actor"
    r"|critic|policy|pretrain|discrim|generator",
    re.IGNORECASE,
)
"""Words that name one part of the model."""
_MAX_DEPTH: Final = 4


def first_groups(source: SourceFile) -> Iterator[Hit]:
    """Yield each change of the learning rate of the first group, if nothing changes that of the others."""
    stores = list(_rate_stores(source))
    if any(optimizer is None for _, optimizer in stores) or any(_SCHEDULER.search(n) for n in _called(source)):
        return
    for target, optimizer in stores:
        creation = _creation(source, optimizer) if optimizer is not None else None
        count = _number_of_groups(source, creation) if creation is not None else 0
        is_repeated = isinstance(function_of(source, target), ast.FunctionDef) or any(enclosing_loops(source, target))
        if count < 2 or not is_repeated or _names_one_part(source, target):
            continue
        statement = source.statement_of(target)
        yield Hit(
            message=f"`{source.text.segment(statement)}` changes the learning rate of the first of {count} parameter "
            "groups: the others keep theirs.",
            node=statement,
            related=((creation, "the groups are created here"),),
            severity=Severity.WARNING,
        )


def _called(source: SourceFile) -> Iterator[str]:
    return (source.qualified_name(each.func) or last_name(each.func) for each in source.all_calls)


def _rate_stores(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield what sets a learning rate, with the optimizer whose first group it changes; None for other groups."""
    for node in source.nodes_of(ast.Subscript, ast.Call):
        group: Any = None
        match node:
            case ast.Subscript(value=group, slice=ast.Constant(value="lr"), ctx=ast.Store()):
                pass
            case ast.Call(func=ast.Attribute(attr="update", value=group), keywords=keywords) if any(
                each.arg == "lr" for each in keywords
            ):
                pass
            case _:
                continue
        values = [group] if isinstance(group, ast.Subscript) else possible_values(source, group)
        match values:
            case [
                ast.Subscript(value=ast.Attribute(attr="param_groups", value=optimizer), slice=ast.Constant(value=0))
            ]:
                yield node, optimizer
            case _:
                yield node, None


def _creation(source: SourceFile, optimizer: ast.expr) -> ast.Call | None:
    """Return the call that creates an optimizer last; None if it is unknown."""
    found: list[ast.Call] = []
    queue = [(optimizer, _MAX_DEPTH)]
    while queue:
        node, depth = queue.pop()
        values = possible_values(source, node) if depth else []
        if not values and not isinstance(node, ast.Call):
            return None
        if not values and isinstance(node, ast.Call):
            found.append(node)
        queue += [(each, depth - 1) for each in values]
    return max(found, key=lambda each: each.lineno) if found else None


def _number_of_groups(source: SourceFile, creation: ast.Call) -> int:
    """Return the number of parameter groups of an optimizer; 0 if it is unknown, 2 for a comprehension."""
    parameters = argument_node(creation, "params", 0)
    added = [each for each in source.all_calls if last_name(each.func) == "add_param_group"]
    if parameters is None:
        return 0
    values = possible_values(source, parameters) or [parameters]
    return min(_length(source, parameters, each) for each in values) + (len(added) if len(values) == 1 else 0)


def _length(source: SourceFile, variable: ast.expr, value: ast.expr) -> int:
    """Return the number of groups in a list, with those that are appended to its variable."""
    match value:
        case ast.List(elts=items):
            function = function_of(source, value)
            appended = [
                call
                for call in nodes_in(function, ast.Call)
                if last_name(call.func) == "append"
                and isinstance(call.func, ast.Attribute)
                and ast.unparse(call.func.value) == ast.unparse(variable)
            ]
            dictionaries = [each for each in items if isinstance(each, ast.Dict) or _is_dict(each)]
            return len(dictionaries) + len(appended) if len(dictionaries) == len(items) else 0
        case ast.ListComp(elt=ast.Dict()):
            return 2
        case ast.Call(func=ast.Attribute(attr="parameters")):
            return 1
        case _:
            return 0


def _is_dict(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "dict"


def _names_one_part(source: SourceFile, target: ast.expr) -> bool:
    """Return True if the line, the comment before it or the function says which part of the model it changes."""
    statement = source.statement_of(target)
    before = source.text.line(statement.lineno - 1)
    words = (source.text.line(statement.lineno), before if before.lstrip().startswith("#") else "")
    return any(_ONE_PART.search(each) for each in (*words, getattr(function_of(source, target), "name", "")))
