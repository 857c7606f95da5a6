"""A padding mask is broadcast along the queries of the attention, so that the keys of the padding are still read.

What you see
    The prediction for a sequence depends on how much padding the batch gives it. The validation loss changes with the
    batch size, and a sequence alone gets another prediction than in a batch.

Why it happens
    Attention scores have the shape [..., queries, keys], and the softmax is over the keys. A mask of [batch, tokens]
    needs its new dimensions before the last one: ``mask[:, None, None, :]``. With ``mask[:, None, :, None]`` whole rows
    of the padding are filled, which softmax turns into equal weights, and real tokens still attend to the padding.

Fix
    Leave the dimension of the keys last.

        mask = (ids != padding).unsqueeze(1).unsqueeze(3)  # wrong: [batch, 1, queries, 1]
        mask = (ids != padding).unsqueeze(1).unsqueeze(2)  # right: [batch, 1, 1, keys]

When this is fine
    - The mask is combined with one for the keys, or with a causal mask.
    - Values, not scores, are set to 0 where there is padding.
    - The softmax is over another dimension, as in pooling over the tokens.

How it is detected
    Only the linter finds it: a comparison with the padding, or something called a mask, gets its last dimension of size
    1 directly before scores of a product are filled with a large negative number and normalised over the last
    dimension; or in a function called a mask, in a program without a causal mask.

References
    Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762
    torch.nn.functional.scaled_dot_product_attention,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import origins, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, is_none, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_MASK: Final = re.compile(r"mask|pad|valid", re.IGNORECASE)
_KEYS_TOO: Final = re.compile(r"tril|triu|causal|subsequent|look_ahead|no_peek", re.IGNORECASE)
_PRODUCTS: Final = frozenset(("matmul", "bmm", "einsum", "baddbmm"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each mask of the queries that fills scores, or that a function for masks returns."""
    filled = list(_filled_scores(source))
    for node, shape in _query_masks(source):
        if _is_combined(source, node):
            continue
        fills = [scores for mask, scores in filled if any(each is node for each in origins(source, mask))]
        in_function = shape == 4 and _MASK.search(getattr(function_of(source, node), "name", "")) is not None
        if any(_is_product(source, scores) for scores in fills) or (
            in_function and not fills and not _KEYS_TOO.search(source.text.source)
        ):
            yield Hit(
                message=f"`{ast.unparse(node)}` leaves the last dimension to be broadcast, which is that of the keys: "
                "the padding is still attended to.",
                node=node,
            )


def _query_masks(source: SourceFile) -> Iterator[tuple[ast.expr, int]]:
    """Yield each ``mask.unsqueeze(1).unsqueeze(3)`` and ``mask[:, :, None]``, with the number of dimensions."""
    for node in source.nodes_of(ast.Call, ast.Subscript):
        match node:
            case ast.Call(
                func=ast.Attribute(
                    attr="unsqueeze", value=ast.Call(func=ast.Attribute(attr="unsqueeze", value=base), args=[first])
                ),
                args=[second],
            ) if (integer(first), integer(second)) in ((1, 3), (1, -1), (-1, 1), (2, 1)):
                shape = 4
            case ast.Call(func=ast.Attribute(attr="unsqueeze", value=base), args=[only]) if integer(only) in (2, -1):
                shape = 3
            case ast.Subscript(value=base, slice=ast.Tuple(elts=[_, new, keys, last])) if (
                is_none(new) and isinstance(keys, ast.Slice) and is_none(last)
            ):
                shape = 4
            case ast.Subscript(value=base, slice=ast.Tuple(elts=[_, ast.Slice(), last])) if is_none(last):
                shape = 3
            case _:
                continue
        made = list(origins(source, base, 2))
        if any(map(_is_padding, made)) and not any(map(_adds_dimension, made)):
            yield node, shape


def _filled_scores(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the mask and the scores of each ``scores.masked_fill(mask, -1e9)`` before a softmax over the keys."""
    for call in source.all_calls:
        match call:
            case ast.Call(func=ast.Attribute(attr="masked_fill" | "masked_fill_", value=scores), args=[mask, value]):
                pass
            case _:
                continue
        compared = (
            mask.left if isinstance(mask, ast.Compare) else mask.operand if isinstance(mask, ast.UnaryOp) else mask
        )
        text = ast.unparse(value)
        normalised = [
            each for each in nodes_in(function_of(source, call), ast.Call) if "softmax" in last_name(each.func)
        ]
        over = [_dimension(each) for each in normalised]
        if ("-" in text or "min" in text) and over and all(each in (-1, 2, 3) for each in over):
            yield compared, scores


def _dimension(call: ast.Call) -> int | None:
    given = [each.value for each in call.keywords if each.arg == "dim"] or call.args[-1:]
    return integer(given[0]) if given else -1  # self.softmax(scores)


def _is_padding(node: ast.expr) -> bool:
    """Return True for a comparison with the padding, and for something called a mask."""
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], ast.Eq | ast.NotEq)
    if isinstance(node, ast.Call):  # torch.cat([first, ids != padding], dim=1)
        return bool(nodes_in(node, ast.Compare)) and _MASK.search(ast.unparse(node)) is not None
    return isinstance(node, ast.Name | ast.Attribute) and _MASK.search(last_name(node)) is not None


def _adds_dimension(node: ast.expr) -> bool:
    """Return True for a mask that has got a further dimension before: ``(ids != padding).unsqueeze(1)``."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Tuple) and any(map(is_none, node.slice.elts))
    return isinstance(node, ast.Call) and last_name(node.func) == "unsqueeze"


def _is_combined(source: SourceFile, node: ast.expr) -> bool:
    """Return True if a mask, or the variable that it is assigned to, meets another mask."""
    parent = source.parents.get(id(node))
    uses: list[Any] = [node]
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        name = parent.targets[0].id
        uses += [each for each in nodes_in(function_of(source, node), ast.Name) if each.id == name]
    for use in uses:
        around = source.parents.get(id(use))
        if isinstance(around, ast.BinOp | ast.AugAssign | ast.BoolOp) or "logical" in last_name(
            getattr(around, "func", None)
        ):
            return True
    return False


def _is_product(source: SourceFile, scores: ast.expr) -> bool:
    """Return True for the product of two matrices, also divided by a number."""
    for each in (scores, *possible_values(source, scores)):
        for inner in nodes_in(each, ast.BinOp, ast.Call):
            if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.MatMult):
                return True
            if isinstance(inner, ast.Call) and last_name(inner.func) in _PRODUCTS:
                return True
    return False


RULE = Rule(required_words=("mask|pad|valid", "unsqueeze(|None", "softmax|mask(|masks(", "torch"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embedding, self.qkv = nn.Embedding(20, width, padding_idx=0), nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, 1)

    def forward(self, ids):
        mask = ids != 0
        q, k, v = self.qkv(self.embedding(ids)).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / 4
        scores = scores.masked_fill(mask[:, :, None] == 0, -1e9)
        return self.head((scores.softmax(-1) @ v)[:, 0])


model = Attention()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
ids = torch.randint(1, 20, (64, 12)) * (torch.arange(12) < torch.randint(3, 12, (64, 1)))
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(ids), (ids > 9).sum(1, keepdim=True) / 4)
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="MDL032",
    title="A padding mask covers the queries instead of the keys",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"mask[:, :, None]": "mask[:, None, :]"}),
    fix="Leave the dimension of the keys last: mask[:, None, None, :].",
    rule=RULE,
)
