"""Finds code that changes the learning rate of the first parameter group only, of an optimizer with several."""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.failures.failure import Severity


def first_groups(source: SourceFile) -> Iterator[Hit]:
    """Yield each change of the learning rate of one group, if nothing changes that of the others."""
    stores = [each for each in source.nodes_of(ast.Subscript) if isinstance(each.ctx, ast.Store) and _is_rate(each)]
    updates = [each.func for each in source.all_calls if last_name(each.func) == "update"]
    if {_index(each) for each in stores} != {0} or any("group" in ast.unparse(each) for each in updates):
        return
    optimizers = [each for each in source.all_calls if _is_optimizer(source, each)]
    counts = [_group_count(source, each) for each in optimizers]
    has_scheduler = any("lr_scheduler" in source.qualified_name(each.func) for each in source.all_calls)
    if len(optimizers) != 1 or counts[0] < 2 or has_scheduler:
        return
    for each in stores:
        statement: Any = source.parents[id(each)]
        yield Hit(
            message=f"`{source.text.segment(statement)}` changes the learning rate of the first of {counts[0]} "
            "parameter groups: the others keep theirs.",
            node=statement,
            related=((optimizers[0], "the groups are created here"),),
            severity=Severity.WARNING,
        )


def _is_rate(node: ast.Subscript) -> bool:
    return isinstance(node.slice, ast.Constant) and node.slice.value == "lr"


def _index(node: ast.Subscript) -> int:
    """Return the number of the group in ``optimizer.param_groups[0]["lr"]``; -1 for other groups."""
    match node.value:
        case ast.Subscript(value=ast.Attribute(attr="param_groups"), slice=ast.Constant(value=int(number))):
            return number
        case _:
            return -1


def _is_optimizer(source: SourceFile, call: ast.Call) -> bool:
    name = source.qualified_name(call.func)
    return name.startswith("torch.optim.") and ".lr_scheduler" not in name and last_name(call.func)[:1].isupper()


def _group_count(source: SourceFile, call: ast.Call) -> int:
    """Return the number of groups that an optimizer is created with; 1 if it is unknown."""
    groups = call.args[0] if call.args else None
    values = assigned_in(function_of(source, call), groups.id) if isinstance(groups, ast.Name) else []
    groups = values[0] if len(values) == 1 else groups
    parts = groups.elts if isinstance(groups, ast.List | ast.Tuple) else []
    return len(parts) if all(isinstance(each, ast.Dict) for each in parts) else 1
