"""Tells programs that only run on a PyTorch of before 0.5, whose rules were others."""

import ast
import re
from typing import Any, Final

from trueloop.analysis.project import Module

_WORDS: Final = re.compile(r"\basync *=|loss\w*\.data\[0\]")


def runs_only_on_old_torch(module: Module) -> bool:
    """Return True for a file with ``x.cuda(async=True)``, or ``loss.data[0]`` of a loss, which is one number."""
    if not module.mentions(_WORDS):
        return False
    is_async = any(each.arg == "async" for each in module.nodes_of(ast.keyword))
    return is_async or any(_is_item_of_loss(each) for each in module.nodes_of(ast.Subscript))


def _is_item_of_loss(node: Any) -> bool:
    match node:
        case ast.Subscript(value=ast.Attribute(attr="data", value=owner), slice=ast.Constant(value=0)):
            return ast.unparse(owner).lower().rstrip("0123456789_").endswith("loss")
        case _:
            return False
