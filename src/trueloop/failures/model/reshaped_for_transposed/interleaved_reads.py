"""Finds interleaved samples, all channels of one time after the other, that are reshaped to one row per channel."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.possible_values import computed_from, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer

_INTERLEAVED: Final = frozenset(("readframes", "get_array_of_samples"))
"""Functions that return one sample of each channel after the other."""
_READING: Final = frozenset(("frombuffer", "fromfile", "memmap"))
_WRITING: Final = frozenset(("tobytes", "tofile"))
_CONVERSIONS: Final = frozenset(("astype", "copy", "numpy", "cpu", "detach", "round", "clip", "contiguous"))
_EXCHANGES: Final = frozenset(("transpose", "permute", "swapaxes", "moveaxis", "reshape", "T", "rearrange", "stack"))
_CHANNELS: Final = re.compile(r"chan|(^|_)n?_?ch(_|$)", re.IGNORECASE)


def find_interleaved_reads(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``reshape(channels, -1)`` of interleaved samples, or in another order than they are written in."""
    calls = [each for each in source.all_calls if last_name(each.func) in _READING | _INTERLEAVED]
    if not calls:
        return
    written = [(each, shape) for each in source.all_calls if (shape := _written_shape(source, each))]
    for call in source.all_calls:
        sizes = _sizes(call)
        if not sizes or not isinstance(call.func, ast.Attribute):
            continue
        base = [each for each in computed_from(source, call.func.value) if isinstance(each, ast.Call | ast.Attribute)]
        names = {last_name(each.func) if isinstance(each, ast.Call) else each.attr for each in base}
        if names & _EXCHANGES or not names & (_READING | _INTERLEAVED):
            continue
        if names & _INTERLEAVED and _is_channel_first(sizes):
            yield Hit(
                message=f"`{ast.unparse(call)}` cuts interleaved samples into rows: they hold one sample of each "
                "channel after the other, so every row has samples of all channels.",
                node=call,
            )
        for write, shape in written if names & _READING else ():
            if _is_exchanged(shape, sizes):
                yield Hit(
                    message=f"`{ast.unparse(call)}` reads ({', '.join(map(ast.unparse, sizes))}), but the numbers are "
                    f"written in the order ({', '.join(map(ast.unparse, shape))}): every row has numbers of several.",
                    node=call,
                    related=((write, "written here"),),
                )
                break


def _sizes(call: ast.Call) -> list[ast.expr]:
    """Return the sizes of ``reshape`` and ``view``; [] for other calls."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("reshape", "view") or call.keywords:
        return []
    first = call.args[0] if len(call.args) == 1 else None
    return list(first.elts if isinstance(first, ast.Tuple | ast.List) else call.args)


def _is_channel_first(sizes: list[ast.expr]) -> bool:
    """Return True for ``(channels, -1)`` and ``(2, -1)``."""
    if len(sizes) != 2 or integer(sizes[1]) != -1:
        return False
    first = sizes[0].func if isinstance(sizes[0], ast.Call) else sizes[0]
    return integer(first) == 2 or _CHANNELS.search(last_name(first)) is not None


def _written_shape(source: SourceFile, call: ast.Call) -> list[ast.expr]:
    """Return the shape of an array whose numbers a call writes; [] if it is unknown."""
    if last_name(call.func) not in _WRITING or not isinstance(call.func, ast.Attribute):
        return []
    node: ast.expr = call.func.value
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CONVERSIONS:
        node = node.func.value
    for each in origins(source, node):
        given = [*each.args, *(word.value for word in each.keywords)] if isinstance(each, ast.Call) else []
        shapes = [list(part.elts) for part in given if isinstance(part, ast.Tuple) and len(part.elts) > 1]
        if len(shapes) == 1 and isinstance(each, ast.Call) and last_name(each.func) not in _EXCHANGES:
            return shapes[0]
    return []


def _is_exchanged(written: list[ast.expr], read: list[ast.expr]) -> bool:
    """Return True if two named sizes come in the other order."""
    before, after = ([last_name(each) for each in sizes] for sizes in (written, read))
    common = [name for name in after if name and before.count(name) == after.count(name) == 1]
    return len(common) > 1 and [name for name in before if name in common] != common
