"""The nearest neighbour of each sample is searched among the same samples, so it is the sample itself.

What you see
    Recall@1, or the accuracy of a nearest-neighbour search, is 1.0 from the first epoch on, also for an untrained
    model.

Why it happens
    The similarities of a set with itself have their largest value on the diagonal: nothing is more similar to a sample
    than the sample. ``argmax`` finds it, and its label is the right one.

Fix
    Leave the diagonal out, or search in another set.

        similarity = z @ z.T
        similarity.fill_diagonal_(float("-inf"))
        nearest = similarity.argmax(1)

When this is fine
    - The query and the gallery are different sets.
    - The first of several neighbours is dropped: ``topk(6).indices[:, 1:]``.

How it is detected
    Only the linter finds it: the labels at the positions of ``argmax``, ``argmin``, ``topk``, ``sort`` or ``argsort``
    of a product of a tensor with its own transpose, or of ``cdist`` of a tensor with itself, are compared with the same
    labels, and nothing in the function removes the diagonal.

References
    Musgrave et al., 2020, "A Metric Learning Reality Check", arXiv:2003.08505
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import compared_sides, function_of, without_conversions
from trueloop.analysis.queries.possible_values import origins, unpacked_call
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SEARCHES: Final = frozenset(("argmax", "argmin", "topk", "sort", "argsort", "max", "min"))
_PRODUCTS: Final = frozenset(("mm", "matmul", "cdist", "pairwise_distance", "cosine_similarity", "inner"))
_LEAVES_OUT: Final = re.compile(r"diag|eye\(|1:\]|\+ 1\)|inf|tri[ul]|!= *torch\.arange|1e\d|kthvalue")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each comparison of labels with those of nearest neighbours that are the samples themselves."""
    for node in source.nodes_of(ast.Compare, ast.Call):
        for side in compared_sides(node):
            found = without_conversions(side)
            if not isinstance(found, ast.Subscript) or isinstance(found.slice, ast.Slice | ast.Constant):
                continue
            labels = ast.unparse(found.value)
            others = {ast.unparse(_base(each)) for each in compared_sides(node) if each is not side}
            searched = _searched(source, found.slice) if labels in others else None
            if searched is not None and not _LEAVES_OUT.search(ast.unparse(function_of(source, node))):
                yield Hit(
                    message=f"`{ast.unparse(searched)}` compares the samples with themselves, so each one is its own "
                    f"nearest neighbour, and `{ast.unparse(node)}` is always true.",
                    node=node,
                    related=((searched, "the largest similarity is on the diagonal"),),
                )
                break


def _base(node: ast.expr) -> ast.expr:
    """Return y of ``y[:, None]`` and ``y.unsqueeze(1)``."""
    node = without_conversions(node)
    while True:
        match node:
            case ast.Subscript(value=inner, slice=ast.Tuple(elts=elements)) if all(
                isinstance(each, ast.Slice) or getattr(each, "value", 0) is None for each in elements
            ):
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr="unsqueeze" | "view" | "reshape" | "expand_as")):
                node = inner
            case _:
                return node


def _searched(source: SourceFile, index: ast.expr) -> ast.expr | None:
    """Return the product of a tensor with itself in which an index is the largest or smallest value of each row."""
    for each in [*origins(source, index, 3), *filter(None, [unpacked_call(source, index)])]:
        for call in nodes_in(each, ast.Call):
            if last_name(call.func) not in _SEARCHES:
                continue
            owner = getattr(call.func, "value", None)
            scores = call.args[0] if last_name(owner) in ("torch", "np") and call.args else owner
            for value in origins(source, scores, 3) if scores is not None else ():
                product = _with_itself(value)
                if product is not None:
                    return product
    return None


def _with_itself(node: ast.expr) -> ast.expr | None:
    """Return ``z @ z.T``, ``torch.mm(z, z.t())`` or ``torch.cdist(z, z)``; None for other expressions."""
    for each in nodes_in(node, ast.BinOp, ast.Call):
        match each:
            case ast.BinOp(left=first, op=ast.MatMult(), right=second):
                pass
            case ast.Call(func=func, args=[first, second, *_]) if last_name(func) in _PRODUCTS:
                pass
            case ast.Call(func=ast.Attribute(value=first, attr="mm" | "matmul"), args=[second]):
                pass
            case _:
                continue
        if ast.unparse(_not_transposed(first)) == ast.unparse(_not_transposed(second)):
            return each
    return None


def _not_transposed(node: ast.expr) -> ast.expr:
    match node:
        case ast.Attribute(value=inner, attr="T" | "mT"):
            return inner
        case ast.Call(func=ast.Attribute(value=inner, attr="t" | "transpose")):
            return inner
        case ast.Subscript(value=inner):
            return inner
        case _:
            return node


RULE: Final = Rule(
    required_words=("argm|topk(|sort(|.max(|.min(", "@|mm(|matmul(|cdist(|_similarity(", "==|eq("), find=find
)

BAD = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(400, 8)
labels = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for epoch in range(5):
    for rows in torch.randperm(300).split(50):
        z = F.normalize(model(x[rows]), dim=1)
        same = labels[rows][:, None] == labels[rows]
        loss = F.mse_loss(z @ z.T, 2.0 * same - 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    queries, truth = F.normalize(model(x[300:]), dim=1), labels[300:]
    similarity = queries @ queries.T
    nearest = similarity.argmax(dim=1)
    print("recall@1", (truth[nearest] == truth).float().mean().item())
"""

FAILURE = Failure(
    code="EVL030",
    title="Each sample is found as its own nearest neighbour",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"    nearest =": '    similarity.fill_diagonal_(float("-inf"))\n    nearest ='}),
    fix="Leave the diagonal of the similarities out, or search in another set.",
    rule=RULE,
)
