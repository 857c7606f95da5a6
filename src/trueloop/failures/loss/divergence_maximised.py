"""The KL term of a variational autoencoder has the wrong sign, so training maximises the divergence.

What you see
    The loss becomes more and more negative. Samples from the prior look like noise, and the means or variances of the
    codes grow without a limit.

Why it happens
    ``0.5 * sum(1 + logvar - mu**2 - exp(logvar))`` is minus the divergence. Papers add it to the lower bound, which is
    maximised. A loss is minimised, so the divergence itself has to be added to it.

Fix
    Add the divergence with a positive sign:

        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = reconstruction_loss + kl

When this is fine
    - The sum is the lower bound, and the loss is minus this sum.
    - The term is subtracted: ``loss = reconstruction_loss - 0.5 * torch.sum(1 + logvar - ...)``.
    - The encoder of an adversarial model pushes codes away from the prior on purpose.

How it is detected
    The sanitizer reads the divergence, by its terms, from the graph of its sum with a reconstruction loss, and reports
    it if its factor is negative in 3 backward passes.

    The linter finds it in the source code. It recognises the divergence by its terms: a logarithm of the
    variance, its exponential and a square. It follows the sign through factors, ``sum``, ``mean`` and variables, and
    reports a sum of minus the divergence and a reconstruction loss, if "loss" is in the name of the sum or of the
    function that returns it, or if ``backward()`` is called on the sum.

References
    Kingma and Welling, 2013, "Auto-Encoding Variational Bayes", appendix B, arXiv:1312.6114
    pytorch/examples#824, on the sign of this term, https://github.com/pytorch/examples/issues/824
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of, without_conversions
from trueloop.analysis.queries.best_values import initial_number
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import DivergenceRead

_RECONSTRUCTION: Final = re.compile(
    r"rec|bce|mse|loss|nll|cross_entropy|likelihood_loss|l1|(^|_)ce($|_)", re.IGNORECASE
)
_LOSS: Final = re.compile(r"loss|criterion|(^|_)err(or)?($|_)", re.IGNORECASE)
_REDUCTIONS: Final = frozenset(("sum", "mean", "squeeze", "view", "reshape", "to", "float"))
_MAX_DEPTH: Final = 12
MIN_TIMES: Final = 3


class Detector(BaseDetector):
    """Counts the losses that contain minus a divergence."""

    def __init__(self) -> None:
        self._losses = self._times = 0

    def on_divergence_read(self, event: DivergenceRead) -> Evidence | None:
        """Return evidence for the third loss that a larger divergence makes smaller, next to a reconstruction."""
        self._losses += 1
        if event.weight >= 0 or event.loss_weight <= 0:
            return None
        self._times += 1
        if self._times != MIN_TIMES:
            return None
        return Evidence(
            message=f"The loss contains {event.weight:.3g} times the KL divergence: training makes the divergence "
            "larger. Add it with a positive sign.",
            location=event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if no loss had a divergence."""
        return "" if self._losses else "no loss was the sum of a KL divergence and a reconstruction loss"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sum of a loss and minus a divergence that is minimised."""
    for node in source.nodes_of(ast.BinOp):
        if isinstance(source.parents.get(id(node)), ast.BinOp):
            continue
        sign = _divergence_sign(node)
        total = _containing_loss(source, node, sign, 0) if sign else None
        if total is not None:
            yield Hit(
                message=f"`{ast.unparse(total)}` contains minus the KL divergence, so training makes the divergence "
                "larger: add it with a positive sign.",
                node=node,
                related=((total, "the loss"),),
                fix=_negate_fix(source, node),
            )


def _divergence_sign(node: ast.expr) -> int:
    """Return the sign of the divergence that is part of a sum: 1, or -1 for ``1 + logvar - mu**2 - exp(logvar)``."""
    terms = list(_terms(node, 1))
    logarithms = [(sign, ast.unparse(each)) for sign, each in terms if isinstance(each, ast.Name | ast.Attribute)]
    squares = [sign for sign, each in terms if _is_square(each)]
    for sign, each in terms:
        logvar = _exponent(each)
        if logvar and (-sign, logvar) in logarithms and squares == [sign] and len(terms) in (3, 4):
            return sign
    return 0


def _terms(node: ast.expr, sign: int) -> Iterator[tuple[int, ast.expr]]:
    """Yield the terms of a sum with their signs."""
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            yield from _terms(left, sign)
            yield from _terms(right, sign if isinstance(op, ast.Add) else -sign)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from _terms(operand, -sign)
        case _:
            yield sign, node


def _exponent(node: ast.expr) -> str:
    """Return x of ``x.exp()`` or ``torch.exp(x)``; "" for other expressions."""
    match node:
        case ast.Call(func=ast.Attribute(attr="exp"), args=[of]):
            return ast.unparse(of)
        case ast.Call(func=ast.Attribute(attr="exp", value=of), args=[]):
            return ast.unparse(of)
        case _:
            return ""


def _is_square(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(op=ast.Pow(), left=ast.Name() | ast.Attribute(), right=ast.Constant(value=2)):
            return True
        case ast.BinOp(op=ast.Mult(), left=ast.Name() as left, right=ast.Name() as right):
            return left.id == right.id
        case ast.Call(func=ast.Attribute(attr="pow", value=owner), args=[*first, ast.Constant(value=2)]):
            return isinstance(first[0] if first else owner, ast.Name | ast.Attribute)
        case ast.Call(func=ast.Attribute(attr="square")):
            return True
        case _:
            return False


def _containing_loss(source: SourceFile, node: ast.expr, sign: int, depth: int) -> ast.expr | None:
    """Return the loss that contains an expression with a negative sign; None if there is none."""
    for _ in range(_MAX_DEPTH - depth):
        parent: Any = source.parents.get(id(node))
        if isinstance(parent, ast.Assign):
            name = dotted_name(parent.targets[0])
            return _loss_of_variable(source, parent, name, sign, depth) if name.isidentifier() else None
        sign *= _factor(parent, node)
        if sign < 0 and _is_sum_with_loss(parent, node) and _is_loss(source, parent):
            return parent
        if not sign:
            return None
        node = parent
    return None


def _factor(parent: Any, node: ast.expr) -> int:
    """Return the sign that an expression gets in the expression around it; 0 if it is unknown."""
    match parent:
        case ast.UnaryOp(op=ast.USub()):
            return -1
        case ast.BinOp(op=ast.Mult() | ast.Div()):
            return _sign(parent.right if parent.left is node else parent.left)
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return -1 if isinstance(parent.op, ast.Sub) and parent.right is node else 1
        case ast.Attribute(attr=attr):
            return int(attr in _REDUCTIONS)
        case ast.Call():
            return int(last_name(parent.func) in _REDUCTIONS and (parent.func is node or node in parent.args[:1]))
        case _:
            return 0


def _sign(factor: ast.expr) -> int:
    """Return the sign of a factor: -1 for ``-0.5 * beta``, 1 for a variable."""
    if isinstance(factor, ast.BinOp) and isinstance(factor.op, ast.Mult | ast.Div):
        return _sign(factor.left) * _sign(factor.right)
    number = initial_number(factor)
    return -1 if isinstance(factor, ast.UnaryOp) or (number is not None and number < 0) else 1


def _is_sum_with_loss(parent: Any, node: ast.expr) -> bool:
    """Return True for the sum of an expression and a reconstruction loss."""
    if not isinstance(parent, ast.BinOp) or not isinstance(parent.op, ast.Add | ast.Sub):
        return False
    other = parent.left if parent.right is node else parent.right
    is_positive = parent.left is other or isinstance(parent.op, ast.Add)
    is_loss = _RECONSTRUCTION.search(ast.unparse(other)) is not None and not isinstance(other, ast.UnaryOp)
    return is_loss and is_positive


def _loss_of_variable(source: SourceFile, statement: ast.Assign, name: str, sign: int, depth: int) -> ast.expr | None:
    """Return the loss that contains a variable with a negative sign."""
    function = function_of(source, statement)
    if len(assigned_in(function, name)) > 1:
        return None
    uses = [each for each in nodes_in(function, ast.Name) if each.id == name and isinstance(each.ctx, ast.Load)]
    found = (_containing_loss(source, each, sign, depth + 1) for each in uses)
    return next((each for each in found if each is not None), None)


def _is_loss(source: SourceFile, total: ast.expr) -> bool:
    """Return True if a sum is called a loss, is returned by a function that is called so, or starts ``backward()``."""
    parent: Any = source.parents.get(id(total))
    while isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add | ast.Div) and parent.right is not total:
        total, parent = parent, source.parents.get(id(parent))
    total = without_conversions(total)
    function = function_of(source, total)
    if isinstance(parent, ast.Assign):
        name = dotted_name(parent.targets[0])
        negated = any(
            isinstance(each.op, ast.USub) and dotted_name(each.operand) == name
            for each in nodes_in(function, ast.UnaryOp)
        )
        return bool(_LOSS.search(name)) and not negated
    if isinstance(parent, ast.Return):
        return bool(_LOSS.search(getattr(function, "name", "")))
    return isinstance(parent, ast.Attribute) and parent.attr == "backward"


def _negate_fix(source: SourceFile, node: ast.expr) -> Fix | None:
    """Return the fix that changes the sign of the divergence."""
    text = f"-({source.text.segment(node)})"
    parent = source.parents.get(id(node))
    is_alone = isinstance(parent, ast.Call | ast.Assign)
    return Fix((source.text.replace(node, text),), safe=False, description="Change the sign") if is_alone else None


RULE = Rule(required_words=("exp(", "pow|square|**|*", "oss|backward(|riterion"), find=find)

BAD = """
import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 4)
        self.decoder = nn.Linear(2, 8)

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decoder(z), mu, logvar


torch.manual_seed(0)
x = torch.randn(128, 8)
model = Autoencoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(8):
    optimizer.zero_grad()
    output, mu, logvar = model(x)
    reconstruction = nn.functional.mse_loss(output, x)
    kl = 0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())
    loss = reconstruction + kl
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS011",
    title="KL divergence has the wrong sign",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"kl = 0.5 * torch.mean": "kl = -0.5 * torch.mean"}),
    fix="Add the divergence to the loss with a positive sign.",
    rule=RULE,
    detector=Detector,
)
