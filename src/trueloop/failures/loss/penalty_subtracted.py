"""A penalty is subtracted from the loss, so training makes it larger.

What you see
    The loss falls without end, below zero too, while the weights grow from epoch to epoch. With a gradient penalty, the
    critic gets steeper and steeper, until the loss is infinite or NaN.

Why it happens
    A loss is minimised. A penalty, such as the squared norm of the weights or the distance of a gradient's norm from 1,
    gets smaller only if it is added. With a minus in front of it, each update raises it. A formula from a paper that
    is maximised has the minus; PyTorch accepts both.

Fix
    Add the penalty.

        loss = criterion(model(x), y) + weight_decay * sum(p.pow(2).sum() for p in model.parameters())

When this is fine
    - The whole value is maximised: it gets a minus in front, or the optimizer has ``maximize=True``.
    - The norm that is subtracted is that of outputs or embeddings, which shall be large on purpose.

How it is detected
    Only the linter finds it: the value of ``backward()`` contains, with a negative sign, norms, squares or absolute
    values of the parameters of a model, or the square of a norm minus 1. The sign is followed through sums, products,
    variables, loops with ``+=`` and functions.

References
    Gulrajani et al., 2017, "Improved Training of Wasserstein GANs", arXiv:1704.00028
    torch.optim.SGD, weight_decay, https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.possible_values import loops_around
from trueloop.analysis.queries.signed_terms import may_ascend, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_POSITIVE: Final = frozenset(("norm", "pow", "square", "abs"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each penalty that a minimised value contains with a negative sign."""
    if may_ascend(source):
        return
    seen = set[int]()
    for terms in minimised_terms(source):
        for term in terms:
            positive = _positive(term.node) if term.sign < 0 else None
            if positive is None or id(term.added) in seen:
                continue
            if _is_norm_minus_one(positive) or _is_parameter(source, positive):
                seen.add(id(term.added))
                yield Hit(
                    message=f"`{ast.unparse(term.node)}` is a penalty, but it is subtracted from the value that is "
                    "minimised: each update makes it larger.",
                    node=term.added,
                )


def _positive(node: ast.expr) -> ast.expr | None:
    """Return x of ``x ** 2``, ``x.abs()``, ``torch.norm(x)``; None for expressions that may be negative."""
    match node:
        case ast.BinOp(left=inner, op=ast.Pow(), right=ast.Constant(value=2)):
            return inner
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in _POSITIVE:
            is_function = last_name(owner) in ("torch", "linalg")
            return (node.args[0] if node.args else None) if is_function else owner
        case _:
            return None


def _is_norm_minus_one(node: ast.expr) -> bool:
    """Return True for ``gradients.norm(2, dim=1) - 1``."""
    match node:
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant(value=1)):
            return any(last_name(each.func) == "norm" for each in nodes_in(left, ast.Call)) or "norm" in last_name(left)
        case _:
            return False


def _is_parameter(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the variable of a loop over the parameters of a model, and for the weight of a layer."""
    if isinstance(node, ast.Attribute):
        return node.attr == "weight"
    if not isinstance(node, ast.Name):
        return False
    for loop in loops_around(source, node):
        if node.id in [each.id for each in nodes_in(loop.target, ast.Name)]:
            iterated = {last_name(each.func) for each in nodes_in(loop.iter, ast.Call)}
            return not iterated.isdisjoint(("parameters", "named_parameters"))
    return False


RULE: Final = Rule(
    required_words=("backward(", " - |-=|-", "parameters()|.weight|norm", "norm|pow|square|abs|**"), find=find
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
labels = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    penalty = sum(weight.pow(2).sum() for weight in model.parameters())
    loss = nn.functional.cross_entropy(model(x), labels) - 0.001 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="LOS059",
    title="A penalty is subtracted from the loss",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"labels) - 0.001": "labels) + 0.001"}),
    fix="Add the penalty to the loss.",
    rule=RULE,
)
