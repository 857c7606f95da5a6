"""Attention weights are normalised over the queries, the heads or the batch instead of over the keys.

What you see
    The loss falls more slowly and stays higher than it should. The attention maps show keys that no query reads, and
    queries that read more than one value's worth of them. No error is raised.

Why it happens
    ``softmax`` accepts every dimension and returns the same shape. In ``weights @ values`` the last dimension of the
    weights is summed over, so only a softmax over that dimension makes each result a mean of the values. ``dim=1`` is
    right for scores of shape [queries, keys], but is the queries in [batch, queries, keys] and the heads in [batch,
    heads, queries, keys]. Without ``dim``, PyTorch chooses dimension 0 or 1.

Fix
    Normalise over the dimension of the keys, which the product with the values sums over.

        weights = torch.softmax(queries @ keys.transpose(-2, -1) / width**0.5, dim=-1)
        outputs = weights @ values

When this is fine
    - The weights are divided by their sum over the keys afterwards, as in slot attention.
    - A matrix of scores is normalised both ways, and its transpose weights the other side, as in co-attention.
    - Samples are assigned to clusters or slots that are parameters, and each cluster adds up its samples.
    - Linear attention normalises the queries over their features, and the keys over the positions.

How it is detected
    In the graph of the loss, the sanitizer looks for a softmax of a product of queries and keys whose result is
    multiplied with values, with nothing but scaling, masks, dropout and changes of shape in between. It follows the
    dimension that this product sums over back to the softmax, and reports a softmax over another dimension. A
    transposed matrix of weights is not judged, nor are weights that the program also uses elsewhere. A softmax over the
    only score that a linear layer gives for each position of a sequence is reported too, and one over the samples of
    the batch, if the positions are summed over, in either order of the two dimensions.

    In the text, the linter looks for the same product in one function, where the dimension is a number, and the keys
    are transposed by number or ``bmm`` shows that there are three dimensions. In an ``einsum`` the letters name the
    dimensions. It also looks for attention pooling, ``(weights * features).sum(1)`` or the same with ``bmm``, whose
    weights layers compute from the features, through modules and functions: a softmax over dimension 0, over dimension
    1 where dimension 0 is added up, or over the single output of a linear layer.

References
    Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762
    Locatello et al., "Object-Centric Learning with Slot Attention", 2020, arXiv:2006.15055
    torch.nn.functional.softmax, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.program_files import parse_files
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.model.attention_over_queries.pooled_features import softmax_dimension
from trueloop.failures.model.attention_over_queries.softmax_calls import RULE
from trueloop.tracing.events import Event

PRODUCTS: Final = ("matmul", "bmm", "einsum", "baddbmm")


@dataclass(slots=True, kw_only=True, eq=False)
class AttentionRead(Event):
    """The graphs of some losses contain softmaxes of products that weight values."""

    wrong: tuple[tuple[str, int, int, int, int], ...]
    """Each softmax over another dimension than the keys: what it is over, its dimension, the dimension of the keys, the
    number of dimensions, and the size of its dimension."""
    files: tuple[str, ...]
    """The program's files."""


class Detector(BaseDetector):
    """Reports each dimension that an attention is wrongly normalised over."""

    def __init__(self) -> None:
        self._seen = False
        self._reported = set[tuple[int, int]]()

    def on_attention_read(self, event: AttentionRead) -> Iterator[Evidence]:
        """Return evidence for each softmax over another dimension than the keys, once for each dimension."""
        self._seen = True
        for kind, dimension, keys, dimensions, size in event.wrong:
            if (dimension, dimensions) in self._reported:
                continue
            self._reported.add((dimension, dimensions))
            yield Evidence(
                message=f"The attention weights are normalised over the {size} {kind} (dimension {dimension} of "
                f"{dimensions}), but their product with the values sums over the keys (dimension {keys}): the weights "
                "of a query do not add up to 1."
                if size > 1
                else f"The attention weights are normalised over a dimension of size 1 (dimension {dimension} of "
                f"{dimensions}) instead of over the keys (dimension {keys}): all of them are 1.",
                location=_softmax_line(event.files, dimension, dimensions) or event.location,
                related=((event.location, "`backward()`"),) if event.location else (),
            )

    def inconclusive(self) -> str:
        """Return a reason if no attention was found."""
        return "" if self._seen else "no softmax of queries times keys was found in the graph of a loss"


def _softmax_line(files: tuple[str, ...], dimension: int, dimensions: int) -> SourceLocation | None:
    """Return the softmax over a dimension, first in functions and classes that multiply matrices."""
    found: list[tuple[int, SourceLocation]] = []
    for file, tree in (parse_files(files) or {}).items():
        scopes = list(nodes_in(tree, ast.ClassDef, ast.FunctionDef))
        for scope in (*scopes, tree):
            multiplies = any(map(_is_product, walk(scope)))
            rank = 0 if multiplies and scope is not tree else 1
            found += [
                (rank, SourceLocation(file, each.lineno))
                for each in nodes_in(scope, ast.Call)
                if softmax_dimension(each) in (dimension, dimension - dimensions)
            ]
    return min(found, key=lambda each: each[0])[1] if found else None


def _is_product(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute | ast.Name) and ast.unparse(node.func).endswith(PRODUCTS)
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)


BAD = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        weights = torch.softmax(scores, dim=1)
        return weights @ self.value(x)


torch.manual_seed(0)
inputs = torch.randn(160, 7, 16)
labels = inputs[:, 0, :3].argmax(1)
attention, head = Attention(16), nn.Linear(16, 3)
optimizer = torch.optim.Adam([*attention.parameters(), *head.parameters()], lr=0.003)
for step in range(20):
    rows = torch.randint(160, (32,))
    loss = nn.functional.cross_entropy(head(attention(inputs[rows])[:, 0]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL020",
    title="Attention weights are normalised over the wrong dimension",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.softmax(scores, dim=1)": "torch.softmax(scores, dim=-1)"}),
    fix="Apply softmax over the keys, which is usually dim=-1.",
    detector=Detector,
    rule=RULE,
)
