"""Finds what a call reduces, such as the mean, maximum or norm of a tensor, and along which dimension."""

import ast
from collections.abc import Container
from typing import Final, NamedTuple

from trueloop.analysis.source_file import last_name
from trueloop.core.source_text import integer

_LIBRARIES: Final = frozenset(("torch", "th", "np", "numpy", "linalg", "LA", "F", "functional"))
_BEFORE_DIM: Final = {"norm": 1, "vector_norm": 1, "quantile": 1}


class Reduction(NamedTuple):
    """A call that reduces a tensor."""

    operand: ast.expr
    dim: ast.expr | None
    """The dimension that the call names; None = all dimensions."""

    @property
    def is_over_batch(self) -> bool:
        """Whether the call reduces all dimensions, or the first one."""
        return self.dim is None or integer(self.dim) == 0


def reduction(node: ast.AST, names: Container[str]) -> Reduction | None:
    """Return what ``x.mean(1)`` or ``torch.mean(x, dim=1)`` reduces; None for a call of something else.

    ``torch.max(a, b)`` is none: its second argument is no number, and neither is one of an unpacked argument.

    Args:
        node: an expression.
        names: names of the functions and methods to find.
    """
    match node:
        case ast.Call(func=ast.Attribute(attr=name, value=owner)) if name in names:
            pass
        case _:
            return None
    is_function = last_name(owner) in _LIBRARIES
    named = {each.arg: each.value for each in node.keywords}
    operand = (node.args[0] if node.args else named.get("input") or named.get("A")) if is_function else owner
    rest = node.args[is_function:][_BEFORE_DIM.get(name, 0) :]
    dims = [*rest[:1], *(named[each] for each in ("dim", "axis") if each in named)]
    is_known = len(dims) < 2 and None not in named and not ({"other", "out"} & named.keys())
    if operand is None or not is_known or any(isinstance(each, ast.Starred) for each in node.args):
        return None
    dim = dims[0] if dims else None
    if name in ("max", "min", "maximum") and rest and not _is_dimension(dim):
        return None
    return Reduction(operand, None if isinstance(dim, ast.Constant) and dim.value is None else dim)


def _is_dimension(node: ast.expr | None) -> bool:
    return integer(node) is not None or isinstance(node, ast.Tuple) or "dim" in last_name(node)
