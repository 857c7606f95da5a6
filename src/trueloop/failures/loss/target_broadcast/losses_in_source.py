"""Finds losses over all pairs of samples in the source: of (B, 1) and (B,)."""

import ast
from collections.abc import Iterator
from itertools import takewhile

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.broadcast_pairs import Pair, is_in_total, pair_of
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins
from trueloop.analysis.queries.target_shapes import PER_ITEM_LOSSES, Shapes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Severity


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss, and each difference or product in a total, of which one operand is (B, 1) and the other (B,)."""
    shapes = Shapes(source)
    losses = {id(each.node) for each in source.ops(OpKind.LOSS) if _broadcasts(each.name.rpartition(".")[2])}
    for call in source.all_calls:
        if len(call.args) < 2 or not (id(call) in losses or _is_loss(source, call)):
            continue
        pair = pair_of(source, shapes, call, call.args[0], call.args[1])
        if pair is not None:
            yield _hit(pair, None)
    for node in source.nodes_of(ast.BinOp):
        if isinstance(node.op, ast.Sub | ast.Mult) and is_in_total(source, node) and not _is_read(source, node):
            pair = pair_of(source, shapes, node, node.left, node.right)
            if pair is not None:
                yield _hit(pair, Severity.WARNING)


def _is_read(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a metric, ``(a - b).abs().mean().item()``; see EVL018."""
    kinds = ast.Attribute | ast.Call | ast.BinOp
    around = takewhile(lambda each: isinstance(each, kinds), enclosing_nodes(source, node))
    return any(isinstance(each, ast.Attribute) and each.attr == "item" for each in around)


def _hit(pair: Pair, severity: Severity | None) -> Hit:
    return Hit(
        message=f"`{ast.unparse(pair.column)}` has the shape (B, 1) and `{ast.unparse(pair.row)}` has the shape (B,): "
        "both are broadcast to (B, B), so this is over all pairs of samples.",
        node=pair.node,
        severity=severity,
    )


def _is_loss(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a loss of PyTorch that broadcasts its arguments."""
    names = [last_name(call.func)]
    if not PER_ITEM_LOSSES.match(names[0]):
        made = list(origins(source, call.func))
        names = [last_name(each.func) for each in made if isinstance(each, ast.Call)]
        names = names or [name for each in made if PER_ITEM_LOSSES.match(name := last_name(each))]
    return bool(names) and all(map(_broadcasts, names))


def _broadcasts(name: str) -> bool:
    """Return True for a loss that broadcasts its arguments; a binary cross-entropy raises an error."""
    return bool(PER_ITEM_LOSSES.match(name)) and not name.startswith(("binary", "BCE"))
