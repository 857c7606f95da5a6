"""The weight of a loss is learned, and nothing keeps it from becoming zero.

What you see
    The total loss falls quickly, below zero too, while the parts of it hardly improve: the model learns the weights of
    the losses instead of the tasks.

Why it happens
    ``w * loss`` becomes smaller if ``loss`` does or if ``w`` does, and the weight is far easier to change. It goes to
    zero and then to minus infinity, where a larger error is better.

Fix
    Add the term that makes small weights expensive, as for uncertainty weighting:

        total = (torch.exp(-s) * loss + s).sum()  # s = log of the variance, an nn.Parameter

When this is fine
    - The weight also appears in another term, such as its logarithm, or the weights go through a softmax.
    - The weight is the multiplier of a constraint, such as the temperature of soft actor-critic: it multiplies the
      distance of a value to its limit, which changes its sign.
    - The weight is a number or a buffer, or is updated by other means, as in GradNorm.

How it is detected
    Only the linter finds it, from the source code: in a value that is minimised, a loss is multiplied by an
    ``nn.Parameter`` or its exponential, and no other term contains this parameter.

References
    Kendall et al., "Multi-task learning using uncertainty to weigh losses", https://arxiv.org/abs/1705.07115
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import is_loss_call
from trueloop.analysis.queries.minimised_values import minimised
from trueloop.analysis.queries.possible_values import enclosing_expressions, origins
from trueloop.analysis.queries.signed_terms import may_ascend
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.failures.failure import Failure, Rule, Severity, changed

_POSITIVE: Final = frozenset(("exp", "sigmoid", "softplus", "abs", "square", "relu"))
_LOSS: Final = re.compile(r"loss|crit|cross_?entropy|mse|bce|nll|(^|_)l\d", re.IGNORECASE)
_OTHER_UPDATE: Final = re.compile(
    r"gradnorm|grad_norm_loss|autograd\.grad|requires_grad\s*=\s*False|renormal", re.IGNORECASE
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each product of a loss and a learned weight, if nothing else keeps the weight from falling."""
    if may_ascend(source) or _OTHER_UPDATE.search(source.text.source):
        return
    used, seen = minimised(source), set[int]()
    for node in source.nodes_of(ast.BinOp):
        if not isinstance(node.op, ast.Mult) or id(node) not in used:
            continue
        for weight, loss in ((node.left, node.right), (node.right, node.left)):
            parameter = _parameter(source, weight)
            if parameter is None or id(parameter) in seen or not _is_loss(source, loss):
                continue
            seen.add(id(parameter))
            if _is_balanced(source, _names(source, _variable(weight))):
                continue
            yield Hit(
                message=f"`{source.text.segment(node)}` becomes smallest if `{ast.unparse(weight)}` falls, and no "
                "other term keeps this learned weight from falling below every bound.",
                node=node,
                related=((parameter, "the weight is a parameter"),),
            )


def _variable(weight: ast.expr) -> ast.expr:
    """Return the variable of ``torch.exp(-self.s[0])``."""
    while True:
        match weight:
            case ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
                weight = inner
            case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _POSITIVE:
                weight = weight.args[0] if weight.args else inner  # type: ignore[attr-defined]
            case ast.BinOp(op=ast.Mult(), left=ast.Constant(), right=inner):
                weight = inner
            case _:
                return weight


def _parameter(source: SourceFile, weight: ast.expr) -> ast.expr | None:
    """Return the call of ``nn.Parameter`` that a weight is, or is the exponential of; None if there is none."""
    variable = _variable(weight)
    if not isinstance(variable, ast.Name | ast.Attribute):
        return None
    values = list(origins(source, variable))
    for each in (*values, *(stored for value in values for stored in _stored(source, value))):
        if isinstance(each, ast.Call) and last_name(each.func) == "Parameter":
            return each
    return None


def _stored(source: SourceFile, variable: ast.expr) -> Iterator[ast.expr]:
    """Yield the values of an attribute of this name, for ``model.weights`` outside of the class."""
    if isinstance(variable, ast.Attribute):
        for each in source.nodes_of(ast.Assign):
            if any(isinstance(e, ast.Attribute) and e.attr == variable.attr for e in each.targets):
                yield each.value


def _is_loss(source: SourceFile, node: ast.expr) -> bool:
    values = list(origins(source, node))
    if any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub) for each in values):
        return False  # the distance of a value to its limit, which a multiplier weighs: it may be negative
    calls = [each for each in values if isinstance(each, ast.Call)]
    return bool(_LOSS.search(last_name(node))) or any(
        is_loss_call(source, each) or _LOSS.search(last_name(each.func)) for each in calls
    )


def _is_balanced(source: SourceFile, names: set[str]) -> bool:
    """Return True if a weight is also read outside of products with losses, other than to show or rename it."""
    for each in source.nodes_of(ast.Name, ast.Attribute):
        if last_name(each) not in names or not isinstance(each.ctx, ast.Load) or _is_shown(source, each):
            continue
        node: Any = each
        parent: Any = source.parents.get(id(each))
        while isinstance(parent, ast.expr) and parent is not node and _variable(parent) is each:
            node, parent = parent, source.parents.get(id(parent))
        match parent:
            case ast.BinOp(op=ast.Mult(), left=left, right=right) if _is_loss(source, left) or _is_loss(source, right):
                pass
            case ast.Assign() if node is each:
                pass
            case _:
                return True
    return False


def _names(source: SourceFile, weight: ast.expr) -> set[str]:
    """Return all names of the variable of a weight."""
    found = {last_name(e) for e in origins(source, weight) if isinstance(e, ast.Name | ast.Attribute)}
    for each in source.nodes_of(ast.Assign):
        if isinstance(each.value, ast.Name | ast.Attribute) and last_name(each.value) in found:
            found |= {last_name(target) for target in each.targets}
    return found


def _is_shown(source: SourceFile, node: ast.AST) -> bool:
    for around in enclosing_expressions(source, node):
        name = last_name(around.func) if isinstance(around, ast.Call) else ""
        if name == "log":
            return any(isinstance(each, ast.Constant) for each in around.args)  # type: ignore[attr-defined]
        if isinstance(around, ast.FormattedValue) or name in ("print", "item", "tolist", "add_scalar"):
            return True
    return False


RULE = Rule(required_words=("Parameter(", "backward|training_step", "loss|crit|entropy"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
size, sign = x[:, :1] * 3, (x[:, 1:2] > 0).float()


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.size, self.sign = nn.Linear(32, 1), nn.Linear(32, 1)
        self.scales = nn.Parameter(torch.ones(2))

    def forward(self, x):
        features = self.body(x)
        return self.size(features), self.sign(features)


model = TwoTasks()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        sizes, signs = model(x[rows])
        size_loss = nn.functional.mse_loss(sizes, size[rows])
        sign_loss = nn.functional.binary_cross_entropy_with_logits(signs, sign[rows])
        loss = model.scales[0] * size_loss + model.scales[1] * sign_loss
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="LOS053",
    title="A learned weight makes a loss vanish",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "loss = model.scales[0] * size_loss + model.scales[1] * sign_loss": (
                "scales = model.scales\n"
                "        loss = torch.exp(-scales[0]) * size_loss + torch.exp(-scales[1]) * sign_loss + scales.sum()"
            )
        },
    ),
    fix="Add a term that grows as the weight falls, such as the logarithm of the variance.",
    rule=RULE,
)
