"""Errors, or the weights of a penalty, are summed with their signs, so that opposite ones cancel each other.

What you see
    The loss is near 0 or falls without end below 0, but the predictions are not near the targets. The model learns the
    mean of the targets at best. A penalty of the weights falls below 0 and makes no weight small.

Why it happens
    The mean of ``prediction - target`` is 0 as soon as the errors above and below are equally large. Without an
    absolute value or a square it has no minimum: lower predictions always give a lower loss. ``(p - y).mean() ** 2``
    is 0 wherever the mean of the predictions equals that of the targets. The sum of the weights has no minimum either:
    as a penalty it pushes all of them down, below 0 too, instead of towards 0.

Fix
    Make each error positive first, then average:

        loss = (prediction - target).pow(2).mean()
        loss = F.mse_loss(prediction, target)
        l1 = sum(p.abs().sum() for p in model.parameters())

When this is fine
    - The mean error is one term of a loss besides others, to penalise a bias.
    - The difference is that of two scores, as in the loss of a WGAN.
    - A sum of all parameters times 0, with which DistributedDataParallel finds all of them in the graph.
    - An example of autograd, in which the label gets a gradient too.
    - Weights that are clamped to positive values, or a sum of them that is the whole loss of a test.

How it is detected
    Only the linter finds it: the value of ``backward()`` is the mean or sum of a difference of something and labels,
    perhaps squared or made positive afterwards. Or it contains, next to other terms, the sum or mean of each parameter
    of a model, or of the weights of layers, without an absolute value, a square or a norm of each one.

References
    Tibshirani, "Regression Shrinkage and Selection via the Lasso", 1996,
    https://doi.org/10.1111/j.2517-6161.1996.tb02080.x
    torch.nn.MSELoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import is_label, is_loss_call
from trueloop.analysis.queries.class_instances import instances
from trueloop.analysis.queries.minimised_values import added_values
from trueloop.analysis.queries.possible_values import loops_around, origins, possible_values
from trueloop.analysis.queries.reductions import reduction
from trueloop.analysis.queries.signed_terms import minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SUMS: Final = frozenset(("mean", "sum"))
_LATE: Final = frozenset(("abs", "pow", "square", "sqrt", "norm"))
"""Methods that come too late if they are applied to the mean."""
_SCORE: Final = re.compile(r"score|logit|non_?target", re.IGNORECASE)
_PARAMETERS: Final = frozenset(("parameters", "named_parameters", "modules", "named_modules", "children"))
_LAYER: Final = re.compile(r"Linear|Conv|Embedding|GRU|LSTM|RNN|MultiheadAttention")
_VIEWS: Final = frozenset(("view", "reshape", "flatten", "float", "to", "ravel", "double"))
_POSITIVE: Final = re.compile(r"clamp\w*_\(|clip_\(|\.relu_\(|softplus\(|\.abs_\(")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each mean of signed errors that is the whole loss, and each penalty that sums weights with their signs."""
    yield from _summed_weights(source)
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
        case ast.Call(func=ast.Name(id="abs"), args=[inner]):
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
    sides = [is_label(each) and not _SCORE.search(ast.unparse(each)) for each in (found[0].left, found[0].right)]
    is_labelled = sides.count(True) == 1 and not _is_trained(source, found[0].left if sides[0] else found[0].right)
    return found[0] if is_labelled else None


def _is_trained(source: SourceFile, label: ast.expr) -> bool:
    """Return True for a tensor that gets a gradient itself: ``y = torch.randn(5, requires_grad=True)``."""
    calls = (each for each in origins(source, label, 3) if isinstance(each, ast.Call))
    options = [option for call in calls for option in call.keywords]
    return any(each.arg == "requires_grad" and getattr(each.value, "value", False) is True for each in options)


def _summed_weights(source: SourceFile) -> Iterator[Hit]:
    """Yield each sum of weights that is a penalty in a loss with other terms."""
    if not re.search(r"parameters\(|\.weight\b", source.text.source) or _POSITIVE.search(source.text.source):
        return
    seen, zeroed = set[int](), _times_zero(source)
    for terms in minimised_terms(source):
        found = [(each.node, call) for each in terms if (call := _weights(source, each.node)) is not None]
        others = [each.node for each in terms if _is_other_loss(source, each.node)]
        for node, call in found if others else ():
            if id(call) not in seen and id(call) not in zeroed:
                yield Hit(
                    message=f"`{ast.unparse(node)}` sums weights with their signs, so the penalty pushes them below 0 "
                    "instead of towards 0. Take the absolute value or the square of each one.",
                    node=node,
                )
            seen.add(id(call))


def _weights(source: SourceFile, node: ast.expr) -> ast.Call | None:
    """Return the sum or mean of a parameter that an expression is, perhaps made positive afterwards."""
    call = _reduced(node)
    found = reduction(call, _SUMS) if call is not None else None
    return call if found is not None and _is_weight(source, found.operand) else None


def _is_weight(source: SourceFile, node: ast.expr, depth: int = 3) -> bool:
    """Return True for a parameter from a loop over those of a model, and for the weight of a layer."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name, value=inner)) if name in _VIEWS and depth:
            return _is_weight(source, inner, depth - 1)
        case ast.Call(args=[ast.Call(func=func), *_]) if last_name(node.func) == "parameters_to_vector":
            return last_name(func) == "parameters"
        case ast.Call(args=[ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner), *_]) if (
            last_name(node.func) in ("cat", "concat") and depth
        ):
            return _is_weight(source, inner, depth - 1)
        case ast.Name(id=name):
            values = possible_values(source, node)
            return _is_iterated(source, node, name) or (
                bool(values) and depth > 0 and all(_is_weight(source, each, depth - 1) for each in values)
            )
        case ast.Attribute(attr="weight", value=owner):
            known = any(
                last_name(each.target) == last_name(owner) and bool(_LAYER.search(last_name(each.call.func)))
                for each in instances(source)
            )
            return known or (isinstance(owner, ast.Name) and _is_iterated(source, owner, owner.id))
        case _:
            return False


def _is_iterated(source: SourceFile, node: ast.expr, name: str) -> bool:
    """Return True for the last variable of a loop over the parameters or modules of a model."""
    for loop in loops_around(source, node):
        names = nodes_in(loop.target, ast.Name)
        calls = [e for v in origins(source, loop.iter, 2) for e in nodes_in(v, ast.Call)]
        if names and names[-1].id == name and any(last_name(each.func) in _PARAMETERS for each in calls):
            return True
    return False


def _is_other_loss(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a call that computes a loss, or a mean or sum of something else than weights."""
    found = reduction(node, _SUMS)
    if found is not None:
        return not _is_weight(source, found.operand)
    return is_loss_call(source, node)


def _times_zero(source: SourceFile) -> set[int]:
    """Return the ids of all nodes from which a product with 0 is computed."""
    seen: set[int] = set()
    queue: list[ast.expr] = []
    for each in source.nodes_of(ast.BinOp):
        if isinstance(each.op, ast.Mult):
            for first, second in ((each.left, each.right), (each.right, each.left)):
                queue += [second] if any(getattr(e, "value", None) == 0 for e in origins(source, first, 2)) else []
    while queue:
        for each in walk(queue.pop()):
            if id(each) not in seen:
                seen.add(id(each))
                if isinstance(each, ast.Name | ast.Attribute | ast.Call):
                    queue += [*possible_values(source, each), *added_values(source, each)]
    return seen


RULE: Final = Rule(
    required_words=("mean|sum", "backward", " - |-y|-target|-label|parameters(|parameters_to|.weight."), find=find
)

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
    title="Values of opposite sign cancel in the loss",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(predicted - targets).mean() ** 2": "((predicted - targets) ** 2).mean()"}),
    fix="Square each error or take its absolute value first, then average.",
    rule=RULE,
)
