"""Finds images with the channels last that are reshaped to images with the channels first."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.possible_values import computed_from, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer

_READS: Final = re.compile(r"\bImage\.(open|new|fromarray)\(|\bimread\(|\.convert\(['\"]RGB|load_sample_image")
"""Calls whose result has the channels last."""
_EXCHANGES: Final = re.compile(
    r"permute|transpose|ToTensor|to_tensor|ToImage\b|to_image\b|moveaxis|movedim|rollaxis|swapaxes|einsum|rearrange|\.T\b|cv2\.split"
)
CHANNELS: Final = 3


def find_channels_last(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``view(n, 3, h, w)`` of images that are read or created with the channels last, and never permuted."""
    for call in source.all_calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("view", "reshape") or call.keywords:
            continue
        sizes = call.args[0].elts if len(call.args) == 1 and isinstance(call.args[0], ast.Tuple) else call.args
        is_pixel = all(integer(each) == 1 for each in sizes[-2:])  # one number per channel, such as its mean
        is_image = len(sizes) in (3, 4) and getattr(sizes[-3], "value", None) == CHANNELS and not is_pixel
        if is_image and (_keeps_dimensions(source) or _is_created(source, call.func.value, sizes)):
            height, width = (source.text.segment(each) for each in sizes[-2:])
            yield Hit(
                message=f"`{ast.unparse(call)}` cuts the rows of an image with the channels last, "
                f"(..., {height}, {width}, 3), into three channels: every channel contains all three colours.",
                node=call,
            )


def _is_created(source: SourceFile, images: ast.expr, sizes: list[ast.expr]) -> bool:
    """Return True if a batch of images is computed from an array of sizes (h, w, 3), and never permuted."""
    channels, height, width = map(ast.unparse, sizes[-3:])
    nodes = list(computed_from(source, images))
    returned = [each for call in nodes if isinstance(call, ast.Call) for each in possible_values(source, call)]
    nodes += [inner for each in returned for inner in computed_from(source, each)]
    shapes = [node.elts if isinstance(node, ast.Tuple | ast.List) else getattr(node, "args", None) for node in nodes]
    is_last = len(sizes) == 4 and any(
        [ast.unparse(e) for e in each[-3:]] == [height, width, channels] for each in shapes if each
    )
    used = [f".{last_name(each)}" for each in nodes if isinstance(each, ast.Name | ast.Attribute)]
    return is_last and not any(map(_EXCHANGES.search, used))


def _keeps_dimensions(source: SourceFile) -> bool:
    """Return True for a program that reads images and never exchanges dimensions."""
    return source.mentions(_READS) and not source.mentions(_EXCHANGES)
