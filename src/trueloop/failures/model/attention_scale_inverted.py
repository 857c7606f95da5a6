"""Attention scores are multiplied by the root of the dimension instead of divided by it.

What you see
    A Transformer learns slowly or stops at a poor loss. Each position attends to a single other one from the first
    update on, and the queries and keys get almost no gradient.

Why it happens
    A product of two vectors with d entries of variance 1 has the variance d, so scores are divided by sqrt(d) to keep
    the softmax soft. Multiplied by it, they have the standard deviation d instead of 1, and the softmax is saturated.

Fix
    Divide, or multiply by the inverse:

        scores = q @ k.transpose(-2, -1) * math.sqrt(d)  # wrong
        scores = q @ k.transpose(-2, -1) / math.sqrt(d)  # right, as is * d ** -0.5

When this is fine
    - Queries and keys are normalised, so their products are cosines, which are multiplied by a scale.
    - Embeddings are multiplied by sqrt(d) before the positions are added to them.
    - A learned or other scale that is not the root of a dimension.

How it is detected
    Only the linter finds it: a softmax over a product of matrices, of which one is transposed, multiplied by the root
    of a dimension or divided by its inverse, perhaps through variables and attributes; also
    ``scaled_dot_product_attention`` with such a ``scale``. Not if queries or keys are normalised.

References
    Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762
    torch.nn.functional.scaled_dot_product_attention,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_DIMENSION: Final = re.compile(r"dim|size|shape|hidden|embed|head|channels|width|features|(^|[._])d(_\w+)?$|^\d+$")
_TRANSPOSED: Final = frozenset(("transpose", "permute", "swapaxes", "T", "mT", "t"))
_PRODUCTS: Final = frozenset(("matmul", "bmm", "mm", "einsum"))
_MASKING: Final = frozenset(("masked_fill", "masked_fill_", "float", "view", "reshape", "dropout", "where", "clamp"))
_MAX_DEPTH: Final = 6


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each product of attention scores with the root of their dimension."""
    reported: set[int] = set()
    for call in source.all_calls:
        name = last_name(call.func)
        if name == "scaled_dot_product_attention":
            scale = next((each.value for each in call.keywords if each.arg == "scale"), None)
            root = None if scale is None else _root(source, scale, inverse=False)
            if scale is not None and root is not None and not _is_normalised(source, call.args[:2]):
                yield Hit(
                    message=f"The scores are multiplied by `{ast.unparse(scale)}`, the root of their dimension: "
                    "`scale` is its inverse.",
                    node=call,
                )
        elif "softmax" in name.lower() and name != "log_softmax":
            first = call.args[0] if call.args else None
            is_method = first is None or isinstance(first, ast.Constant | ast.UnaryOp)  # x.softmax(-1)
            argument = getattr(call.func, "value", None) if is_method else first
            for node, factor in _scaled(source, argument, _MAX_DEPTH) if argument is not None else ():
                if id(node) not in reported:
                    reported.add(id(node))
                    yield _hit(source, node, factor)


def _hit(source: SourceFile, node: ast.BinOp, factor: ast.expr) -> Hit:
    fix = None
    if isinstance(node.op, ast.Mult) and node.right is factor:
        text = f"{source.text.segment(node.left)} / {source.text.segment(factor)}"
        fix = Fix((source.text.replace(node, text),), safe=False, description="Divide by the root")
    verb = "multiplied by" if isinstance(node.op, ast.Mult) else "divided by the inverse"
    return Hit(
        message=f"The attention scores are {verb} `{ast.unparse(factor)}`, the root of their dimension, which "
        "saturates the softmax: divide by the root.",
        node=node,
        fix=fix,
    )


def _scaled(source: SourceFile, node: ast.expr, depth: int) -> Iterator[tuple[ast.BinOp, ast.expr]]:
    """Yield the products of scores with a root from which a value is computed by masking, with the root."""
    for value in origins(source, node) if depth else ():
        match value:
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                for scores, factor in ((left, right), (right, left)):
                    if _root(source, factor, inverse=False) and _is_scores(source, scores):
                        yield value, factor
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                if _root(source, right, inverse=True) and _is_scores(source, left):
                    yield value, right
            case ast.BinOp(op=ast.Add() | ast.Sub(), left=left):
                yield from _scaled(source, left, depth - 1)
            case ast.Call(func=ast.Attribute(attr=name, value=owner)) if name in _MASKING:
                inner = value.args[-2:] if last_name(owner) in ("torch", "F") else [owner]
                for each in inner:
                    yield from _scaled(source, each, depth - 1)
            case _:
                pass


def _root(source: SourceFile, node: ast.expr, *, inverse: bool) -> ast.expr | None:
    """Return d of ``math.sqrt(d)`` or ``d ** 0.5``, or with ``inverse`` of ``d ** -0.5`` and ``1 / math.sqrt(d)``."""
    for value in origins(source, node):
        match value:
            case ast.BinOp(op=ast.Pow(), left=base, right=exponent) if _number(exponent) == (-0.5 if inverse else 0.5):
                return base if _is_dimension(source, base) else None
            case ast.BinOp(op=ast.Div(), left=ast.Constant(value=1 | 1.0), right=root) if inverse:
                return _root(source, root, inverse=False)
            case ast.Call(func=ast.Attribute(attr="float" | "to"), args=[]):
                continue
            case ast.Call(args=[base]) if last_name(value.func) == "sqrt" and not inverse:
                return base if _is_dimension(source, base) else None
            case ast.BinOp() | ast.Call():
                return None
            case _:
                pass
    return None


def _number(node: ast.expr) -> float:
    """Return the number of ``0.5``, ``-0.5`` or ``(1 / 2)``; 0 for others."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_number(inner)
        case ast.BinOp(op=ast.Div(), left=left, right=right) if _number(right):
            return _number(left) / _number(right)
        case _:
            return 0.0


def _is_dimension(source: SourceFile, node: ast.expr) -> bool:
    texts = [ast.unparse(each) for each in (*origins(source, node), *nodes_in(node, ast.Name, ast.Attribute))]
    return any(_DIMENSION.search(text) for text in texts)


def _is_scores(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a product of matrices of which one is transposed, without normalised rows."""
    for value in origins(source, node):
        match value:
            case ast.BinOp(op=ast.MatMult(), left=left, right=right):
                return _is_transposed(source, right) and not _is_normalised(source, [left, right])
            case ast.Call() if last_name(value.func) in _PRODUCTS:
                is_method = isinstance(value.func, ast.Attribute) and last_name(value.func.value) != "torch"
                parts: list[Any] = [*([value.func.value] if is_method else []), *value.args]  # type: ignore[union-attr]
                is_pair = last_name(value.func) == "einsum" or any(_is_transposed(source, each) for each in parts[1:])
                return is_pair and not _is_normalised(source, parts)
            case _:
                pass
    return False


def _is_transposed(source: SourceFile, node: ast.expr) -> bool:
    return any(
        last_name(each.func if isinstance(each, ast.Call) else each) in _TRANSPOSED for each in origins(source, node)
    )


def _is_normalised(source: SourceFile, parts: list[ast.expr]) -> bool:
    return any("norm" in ast.unparse(each).lower() for part in parts for each in origins(source, part))


RULE = Rule(
    required_words=("oftmax|scaled_dot_product_attention", "sqrt(|0.5|1 / 2", "@|matmul|bmm|einsum|scale"), find=find
)

BAD = """
import math
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.d = d
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-2, -1) * math.sqrt(self.d)
        return scores.softmax(dim=-1) @ self.v(x)


torch.manual_seed(0)
x = torch.randn(64, 5, 16)
y = x[:, 0].sum(1, keepdim=True)
attention, head = Attention(), nn.Linear(16, 1)
optimizer = torch.optim.Adam([*attention.parameters(), *head.parameters()], lr=0.001)
for step in range(10):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(head(attention(x).mean(1)), y)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL031",
    title="Attention scores are multiplied by the root of the dimension",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(-2, -1) * math.sqrt": "(-2, -1) / math.sqrt"}),
    fix="Divide the scores by sqrt(d), or multiply them by d ** -0.5.",
    rule=RULE,
)
