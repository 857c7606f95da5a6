"""Finds new learning rates that are computed and not stored, and functions that set one and are never called."""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Severity


def unused_rates(source: SourceFile) -> Iterator[Hit]:
    """Yield each rate that a loop over parameter groups computes for nothing, and each function that nothing calls."""
    for loop in source.nodes_of(ast.For):
        if last_name(loop.iter) == "param_groups" and isinstance(loop.target, ast.Name):
            yield from _not_stored(source, loop, loop.target.id)
    yield from _never_called(source)


def _not_stored(source: SourceFile, loop: ast.For, group: str) -> Iterator[Hit]:
    """Yield ``lr = group["lr"] * 0.1`` in a loop that stores nothing in the group, if nothing reads the variable."""
    is_stored = any(isinstance(each.ctx, ast.Store) for each in nodes_in(loop, ast.Subscript, ast.Attribute))
    if is_stored or any(
        last_name(call.func) in ("update", "append", "setdefault") for call in nodes_in(loop, ast.Call)
    ):
        return
    for statement in loop.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name) as target], value=ast.BinOp() as value):
                pass
            case _:
                continue
        reads = [
            each
            for each in nodes_in(function_of(source, loop), ast.Name)
            if each.id == name and isinstance(each.ctx, ast.Load)
        ]
        if not reads and any(_is_rate(each, group) for each in nodes_in(value, ast.Subscript)):
            edit = source.text.replace(target, f'{group}["lr"]')
            yield Hit(
                message=f"`{source.text.segment(statement)}` computes a new learning rate that nothing reads: the "
                "parameter group keeps its own.",
                node=statement,
                fix=Fix((edit,), safe=False, description="Store the rate in the group"),
                severity=Severity.WARNING,
            )


def _is_rate(node: ast.Subscript, group: str) -> bool:
    key = getattr(node.slice, "value", None)
    return key == "lr" and isinstance(node.value, ast.Name) and node.value.id == group


def _never_called(source: SourceFile) -> Iterator[Hit]:
    """Yield each function of a training script that sets the learning rate and is never used, if nothing else does."""
    first = source.modules[0]
    if ".backward(" not in first.text.source or not _is_script(first.tree):
        return
    stores = [each for each in source.nodes_of(ast.Subscript) if _stores_rate(each)]
    functions = {id(function_of(source, each)): function_of(source, each) for each in stores}
    if len(functions) != 1 or any("scheduler" in each.text.source.lower() for each in source.modules):
        return
    [function] = functions.values()
    if not isinstance(function, ast.FunctionDef) or function not in first.tree.body or function.decorator_list:
        return
    used = {last_name(each) for each in source.nodes_of(ast.Name, ast.Attribute)}
    texts = {each.value for each in source.nodes_of(ast.Constant) if isinstance(each.value, str)}
    if function.name not in used | texts:
        yield Hit(
            message=f"`{function.name}()` sets the learning rate, but nothing calls it: the rate never changes.",
            node=function,
            severity=Severity.WARNING,
        )


def _is_script(tree: ast.Module) -> bool:
    """Return True for a file that trains when it is run: a loop at its top level, or the test of ``__name__``."""
    blocks: list[Any] = [each for each in tree.body if isinstance(each, ast.If | ast.For | ast.While | ast.With)]
    return any(not isinstance(each, ast.If) or "__name__" in ast.unparse(each.test) for each in blocks)


def _stores_rate(node: ast.Subscript) -> bool:
    return isinstance(node.ctx, ast.Store) and getattr(node.slice, "value", None) == "lr"
