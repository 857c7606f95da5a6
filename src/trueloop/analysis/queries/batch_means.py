"""Finds means over the batches of a loader."""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.evaluation_loops import find_loader
from trueloop.analysis.queries.loops import is_inside
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import dotted_name, nodes_in, walk


def means_of_batch_means(source: SourceFile) -> Iterator[tuple[ast.BinOp, Op]]:
    """Yield each division of a sum of batch means by the number of batches, with the loss.

    The file must create the loader, its last batch may be smaller, and the loop must not train.
    """
    quotients = [
        each
        for each in source.nodes_of(ast.BinOp)
        if isinstance(each.op, ast.Div) and len_argument(source, each.right) is not None
    ]
    for loss in source.ops(OpKind.LOSS) if quotients else ():
        reduction = loss.arguments.get("reduction")
        mean = reduction is None or reduction.constant() == "mean"
        if not mean or not loss.loops or not _may_have_short_batch(loss.loops[-1]):
            continue
        if source.ops_in_loop(loss.loops[-1], OpKind.BACKWARD, OpKind.STEP):
            continue  # a running mean during training
        loop = loss.loops[-1].node
        for quotient in quotients:
            if _is_mean_over_loop(source, quotient, loop, loss) and not is_inside(quotient, loop):
                yield quotient, loss


def len_argument(source: SourceFile, node: ast.expr) -> Any:
    """Return the argument of ``len()``; None for any other expression."""
    if isinstance(node, ast.Call) and source.qualified_name(node.func) == "builtins.len" and len(node.args) == 1:
        return node.args[0]
    return None


def _may_have_short_batch(loop: Loop) -> bool:
    loader = find_loader(loop)
    if loader is None or loader.kind is not ValueKind.LOADER or loader.union or not loader.arguments:
        return False
    last, size = loader.arguments.get("drop_last"), loader.arguments.get("batch_size") or loader.arguments.get("1")
    several = size is not None and size.constant(2) not in (None, 1)
    plain = not {"batch_sampler", "**"} & loader.arguments.keys()
    return several and plain and (last is None or last.constant() is False)


def _is_mean_over_loop(source: SourceFile, quotient: ast.BinOp, loop: Any, loss: Op) -> bool:
    """Return True if a quotient divides a sum over a loop by the loop's number of iterations."""
    counted = dotted_name(len_argument(source, quotient.right))
    if isinstance(loop, ast.comprehension):
        dividend, statement = quotient.left, loss.statement
        summed = (
            isinstance(dividend, ast.Call) and source.qualified_name(dividend.func) == "builtins.sum" and dividend.args
        )
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        return bool(counted and summed and dotted_name(summed[0]) == counted == dotted_name(target)) and _is_list_item(
            statement, loss
        )
    iterables = {dotted_name(each) for each in walk(loop.iter)} - {""} if isinstance(loop, ast.For) else set[str]()
    added = [
        dotted_name(each.target)
        for each in nodes_in(loop, ast.AugAssign)
        if isinstance(each.op, ast.Add) and _is_loss_value(each.value, loss)
    ]
    return counted in iterables and dotted_name(quotient.left) in added


def _is_list_item(statement: Any, loss: Op) -> bool:
    """Return True if a statement assigns a list comprehension whose items are the loss."""
    value = getattr(statement, "value", None)
    return isinstance(value, ast.ListComp) and _is_loss_value(value.elt, loss)


def _is_loss_value(value: Any, loss: Op) -> bool:
    """Return True for the loss, the variable that it is assigned to, or its value as a number."""
    while isinstance(value, ast.Call) and value is not loss.node:
        method = value.func
        if not isinstance(method, ast.Attribute) or method.attr not in ("item", "detach", "cpu", "float"):
            return False
        value = method.value
    statement = loss.statement
    name = ""
    if isinstance(statement, ast.Assign) and statement.value is loss.node:
        name = dotted_name(statement.targets[0])
    return value is loss.node or (bool(name) and dotted_name(value) == name)
