"""Finds views of a tensor that the program creates and fills with the sizes in another order, in the source."""

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, integer, nodes_in
from trueloop.failures.model.reshaped_for_transposed.merged_sizes import SAME_ORDER, sizes_of

_CREATING: Final = frozenset(("zeros", "empty", "ones", "full", "new_zeros", "new_empty", "new_ones", "new_full"))
_VIEWS: Final = ("view", "reshape")
_EXCHANGES: Final = ("transpose", "permute", "swapaxes", "T", "t", "mT")


def find_created_sizes(source: SourceFile, reported: set[int]) -> Iterator[Hit]:
    """Yield each ``out.view(batch, steps)`` of ``out = torch.zeros(steps, batch)`` that was filled step by step."""
    for call in source.all_calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _VIEWS or id(call) in reported:
            continue
        created = _created(source, call.func.value)
        is_exchanged = getattr(source.parents.get(id(call)), "attr", "") in _EXCHANGES
        if created is None or is_exchanged or len(sizes_of(created)) < 2 or not _is_filled(source, call.func.value):
            continue
        before = _factors(sizes_of(created))
        after = _with_rest(_factors(sizes_of(call)), before)
        is_certain = len(set(before)) == len(before) and Counter(before) == Counter(after)
        if is_certain and before != after:
            yield Hit(
                message=f"`{ast.unparse(call)}` does not exchange dimensions: the numbers are stored in the order "
                f"`({', '.join(before)})`, so each new row has numbers of several old ones. `transpose` and `permute` "
                "exchange them.",
                node=call,
                related=((created, "created here"),),
            )


def _created(source: SourceFile, node: ast.expr, depth: int = 4) -> ast.Call | None:
    """Return the call that creates a tensor with given sizes, if all that a variable may hold was created alike."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAME_ORDER:
        node = node.func.value
    if isinstance(node, ast.Call):
        return node if last_name(node.func) in _CREATING else None
    values = possible_values(source, node) if depth and isinstance(node, ast.Name | ast.Attribute) else []
    found = [_created(source, each, depth - 1) for each in values]
    shapes = {tuple(map(ast.unparse, sizes_of(each))) if each is not None else () for each in found}
    return found[0] if len(shapes) == 1 else None


def _is_filled(source: SourceFile, node: ast.expr) -> bool:
    """Return True if a function writes the parts of a tensor before a node."""
    name = dotted_name(node)
    stores = [e for e in nodes_in(function_of(source, node), ast.Subscript) if isinstance(e.ctx, ast.Store)]
    return bool(name) and any(dotted_name(each.value) == name and each.lineno < node.lineno for each in stores)


def _factors(sizes: list[ast.expr]) -> list[str]:
    """Return the sizes in the order of the memory, with those of a merged dimension one by one, without ones."""
    found: list[str] = []
    for each in sizes:
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult):
            found += _factors([each.left, each.right])
        elif integer(each) != 1:
            found.append(ast.unparse(each))
    return found


def _with_rest(sizes: list[str], known: list[str]) -> list[str]:
    """Return the sizes of a view with those that -1 stands for."""
    if sizes.count("-1") != 1:
        return sizes
    position = sizes.index("-1")
    return [*sizes[:position], *(each for each in known if each not in sizes), *sizes[position + 1 :]]
