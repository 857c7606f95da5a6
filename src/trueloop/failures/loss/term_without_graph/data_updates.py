"""Finds derivatives with a graph that are only written to ``.data``, where the graph is lost."""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.loops import assigned_names
from trueloop.analysis.queries.possible_values import enclosing_nodes, is_without_gradients
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in


def updates_without_graph(source: SourceFile) -> Iterator[Hit]:
    """Yield the updates ``p.data -= rate * g`` of derivatives that were computed with ``create_graph=True``."""
    if not definitions(source).calls.get("backward"):
        return  # there is no outer loss
    for call in source.calls_of("torch.autograd.grad"):
        if not any(each.arg == "create_graph" and getattr(each.value, "value", None) is True for each in call.keywords):
            continue
        statement = source.statement_of(call)
        names = assigned_names(statement) if isinstance(statement, ast.Assign) else set[str]()
        uses = list(_writes(source, function_of(source, call), names)) if names else []
        writes = [each for each in uses if each is not None]
        if writes and len(writes) == len(uses) and not _is_detached_after(source, writes[0]):
            yield Hit(
                message=f"`{ast.unparse(writes[0])}` drops the graph that `create_graph=True` has kept: a loss that is "
                "computed with the updated weights has no gradient for the weights before the update.",
                node=writes[0],
                related=((call, "computed with a graph here"),),
            )


def _is_detached_after(source: SourceFile, write: ast.stmt) -> bool:
    """Return True if a function returns what it has written without a graph, as a sampler does."""
    written = next((each.value.id for each in nodes_in(write, ast.Attribute) if isinstance(each.value, ast.Name)), "")
    return any(
        isinstance(each.func, ast.Attribute) and each.func.attr == "detach" and last_name(each.func.value) == written
        for result in nodes_in(function_of(source, write), ast.Return)
        for each in nodes_in(result, ast.Call)
    )


def _writes(source: SourceFile, function: Any, names: set[str]) -> Iterator[ast.stmt | None]:
    """Yield the statement that writes past the graph for each use of derivatives, and None for any other use."""
    for loop in nodes_in(function, ast.For):
        if any(each.id in names for each in nodes_in(loop.iter, ast.Name)):
            names = names | _items(loop, names)
    for each in nodes_in(function, ast.Name):
        parents = list(enclosing_nodes(source, each))
        is_iterated = any(isinstance(parent, ast.For) and parent.iter in (each, *parents) for parent in parents)
        if each.id in names and isinstance(each.ctx, ast.Load) and not is_iterated:
            statement = source.statement_of(each)
            yield statement if _is_past_graph(source, statement) else None


def _items(loop: ast.For, names: set[str]) -> set[str]:
    """Return the loop variables that are derivatives: the second of ``for p, g in zip(parameters, grads)``."""
    match loop.iter, loop.target:
        case ast.Call(func=ast.Name(id="zip"), args=args), ast.Tuple(elts=targets):
            return {
                target.id
                for target, arg in zip(targets, args, strict=False)
                if isinstance(target, ast.Name) and any(each.id in names for each in nodes_in(arg, ast.Name))
            }
        case _, target:
            return assigned_names(target)


def _is_past_graph(source: SourceFile, statement: ast.stmt) -> bool:
    """Return True for a write to ``p.data``, and for one in place without gradients."""
    match statement:
        case ast.AugAssign(target=ast.Attribute(attr="data")) | ast.Assign(targets=[ast.Attribute(attr="data")]):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name, value=ast.Attribute(attr="data")))):
            return name.endswith("_")
        case ast.AugAssign() | ast.Expr(value=ast.Call(func=ast.Attribute(attr="sub_" | "add_" | "copy_"))):
            return is_without_gradients(source, statement)
        case _:
            return False
