"""Differences are averaged with their signs, so that errors in opposite directions cancel each other.

What you see
    The loss is near 0 or falls without end below 0, but the predictions are not near the targets. The model learns the
    mean of the targets at best.

Why it happens
    The mean of ``prediction - target`` is 0 as soon as the errors above and below are equally large. Without an
    absolute value or a square it has no minimum: lower predictions always give a lower loss. ``(p - y).mean() ** 2``
    is 0 wherever the mean of the predictions equals that of the targets.

Fix
    Make each error positive first, then average:

        loss = (prediction - target).pow(2).mean()
        loss = F.mse_loss(prediction, target)

When this is fine
    - The mean error is one term of a loss besides others, to penalise a bias.
    - The difference is that of two scores, as in the loss of a WGAN.

How it is detected
    Only the linter finds it: the value of ``backward()`` is the mean or sum of a difference of something and labels,
    perhaps squared or made positive afterwards.

References
    torch.nn.MSELoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import is_label
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.queries.signed_terms import minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LATE: Final = frozenset(("abs", "pow", "square", "sqrt", "norm"))
"""Methods that come too late if they are applied to the mean."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each mean of signed errors that is the whole loss."""
    seen = set[int]()
    for terms in minimised_terms(source):
        sums = [each.node for each in terms if isinstance(each.node, ast.BinOp)]
        for term in terms:
            reduced = _reduced(term.node)
            if reduced is None or id(reduced) in seen:
                continue
            difference = _difference(source, reduced)
            is_whole = all(encloses(reduced, each) or each is difference for each in sums if _is_sum(each))
            if difference is not None and is_whole:
                seen.add(id(reduced))
                yield Hit(
                    message=f"`{ast.unparse(term.node)}` averages errors with their signs: those above and below the "
                    "target cancel each other.",
                    node=term.node,
                    related=((difference, "the errors"),) if not encloses(term.node, difference) else (),
                )


def _is_sum(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)


def _reduced(node: ast.expr) -> ast.Call | None:
    """Return the mean or sum of an expression, perhaps squared or made positive afterwards; None for others."""
    match node:
        case ast.BinOp(left=left, op=ast.Pow()):
            return _reduced(left)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name), args=[inner, *_]) if name in _LATE:
            return _reduced(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _LATE:
            return _reduced(inner)
        case ast.Call(func=ast.Attribute(attr="mean" | "sum")):
            return node
        case _:
            return None


def _difference(source: SourceFile, reduced: ast.Call) -> ast.BinOp | None:
    """Return the difference of a value and labels of which a mean or sum is taken."""
    is_function = isinstance(reduced.func, ast.Attribute) and last_name(reduced.func.value) == "torch"
    inner = reduced.args[0] if is_function and reduced.args else getattr(reduced.func, "value", None)
    values = [inner, *(possible_values(source, inner) if isinstance(inner, ast.Name) else ())]
    found = [each for each in values if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub)]
    if len(found) != 1 or len(values) > 2:
        return None
    return found[0] if is_label(found[0].left) is not is_label(found[0].right) else None


RULE: Final = Rule(required_words=("mean|sum", "backward", " - |-y|-target|-label"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(200, 8)
targets = x[:, 0] + x[:, 1]
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(20):
    predicted = model(x).squeeze(1)
    loss = (predicted - targets).mean() ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="LOS046",
    title="Errors of opposite sign cancel in the loss",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(predicted - targets).mean() ** 2": "((predicted - targets) ** 2).mean()"}),
    fix="Square each error or take its absolute value first, then average.",
    rule=RULE,
)
