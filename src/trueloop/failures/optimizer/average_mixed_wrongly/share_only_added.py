"""Finds averages to which a share of the new weights is added, without the same share being removed, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.weight_averages import parameter_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in

_AVERAGE: Final = re.compile(r"target|tgt|teacher|(^|[^a-z])ema([^a-z]|$)|shadow|polyak|momentum", re.IGNORECASE)
_SHARE: Final = re.compile(r"tau|polyak|update|decay|alpha|momentum|rate|beta|soft|mix|share", re.IGNORECASE)
_STATES: Final = re.compile(r"\.(parameters|state_dict|named_parameters)\(\)")
_BEGUN_AT_ZERO: Final = re.compile(
    r"mul_|\*=|1(\.0?)? - |zero|fill_\(|lerp|copy_\(\w+(\.data)?\)|div_|/=|- \w+(\.data)?\b"
)
"""What removes a share, or begins at zero: ``p.mul_(1 - tau)``."""
MAX_SHARE: Final = 0.5


def shares_only_added(source: SourceFile) -> Iterator[Hit]:
    """Yield each loop that adds a share of a model's weights to those of its target network or teacher."""
    for loop in source.nodes_of(ast.For):
        if not _STATES.search(ast.unparse(loop.iter)) or nodes_in(loop, ast.For)[1:]:
            continue
        for node in nodes_in(loop, ast.AugAssign, ast.Call, ast.Assign):
            average, weights = _added(node)
            if average is None or weights is None or not _is_average(loop, average):
                continue
            if _takes_share(weights, average) and not _BEGUN_AT_ZERO.search(ast.unparse(function_of(source, node))):
                yield Hit(
                    message=f"`{ast.unparse(node)}` adds a share of the new weights and keeps all of the old ones: the "
                    "weights grow in each update. The old ones are multiplied by one minus the share.",
                    node=node,
                )


def _added(node: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    """Return the average and what is added to it; None for other nodes."""
    match node:
        case ast.AugAssign(target=average, op=ast.Add(), value=weights):
            return parameter_of(average), weights
        case ast.Call(func=ast.Attribute(attr="add_", value=average), args=[weights], keywords=[]):
            return parameter_of(average), weights
        case ast.Call(func=ast.Attribute(attr="add_", value=average), args=[weights], keywords=[ast.keyword(value=by)]):
            return parameter_of(average), ast.BinOp(by, ast.Mult(), weights)
        case (
            ast.Assign(targets=[average], value=ast.BinOp(op=ast.Add(), left=left, right=right))
            | ast.Call(
                func=ast.Attribute(attr="copy_", value=average), args=[ast.BinOp(op=ast.Add(), left=left, right=right)]
            )
        ):
            name = ast.unparse(parameter_of(average))
            others = [each for each in (left, right) if ast.unparse(parameter_of(each)) != name]
            return (parameter_of(average), others[0]) if len(others) == 1 else (None, None)
        case _:
            return None, None


def _is_average(loop: ast.For, average: ast.expr) -> bool:
    """Return True for a tensor of a network that is named after what an average of the weights is used for."""
    if isinstance(average, ast.Name) and not any(each.id == average.id for each in nodes_in(loop.target, ast.Name)):
        return False
    return isinstance(average, ast.Name | ast.Subscript) and bool(_AVERAGE.search(ast.unparse(average)))


def _takes_share(weights: ast.expr, average: ast.expr) -> bool:
    """Return True for a product of a small share and a tensor of another network."""
    if not isinstance(weights, ast.BinOp) or not isinstance(weights.op, ast.Mult):
        return False
    for share, tensor in ((weights.left, weights.right), (weights.right, weights.left)):
        number = share.value if isinstance(share, ast.Constant) else None
        is_share = isinstance(number, float) and 0 < number <= MAX_SHARE if number else _SHARE.search(last_name(share))
        names = {each.id for each in nodes_in(tensor, ast.Name)}
        is_tensor = isinstance(parameter_of(tensor), ast.Name | ast.Subscript) and ".grad" not in ast.unparse(tensor)
        if is_share and is_tensor and names and last_name(average) not in names:
            return not isinstance(share, ast.Name) or share.id not in names
    return False
