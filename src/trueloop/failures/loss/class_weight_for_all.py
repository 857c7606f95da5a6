"""A binary cross-entropy gets one number as ``weight``, which scales the whole loss, instead of as ``pos_weight``.

What you see
    Adding the weight against imbalance changes nothing: the model still predicts the frequent class. With SGD the
    updates are larger.

Why it happens
    ``BCEWithLogitsLoss`` has two weights. ``pos_weight`` multiplies the loss of positive labels. ``weight`` multiplies
    the loss of every element, so a single number is a factor of the whole loss: both classes keep their proportion.

Fix
    Pass it as ``pos_weight``:

        criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([negatives / positives]))

When this is fine
    - ``weight`` has one value for each element or label.
    - The number is the weight of this loss among others; then multiply the loss, which says so.

How it is detected
    Only the linter finds it: a binary cross-entropy whose ``weight`` is a tensor of one number, is called pos_weight,
    or is the quotient of a number of negative and one of positive samples.

References
    torch.nn.BCEWithLogitsLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.method_chains import without_methods
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LOSSES: Final = {
    "BCEWithLogitsLoss": 0,
    "BCELoss": 0,
    "binary_cross_entropy_with_logits": 2,
    "binary_cross_entropy": 2,
}
"""Losses, and the position of their argument ``weight``."""
_POSITIVE: Final = re.compile(r"^pos(itive)?_?(class_?)?(weights?|w|wt)$", re.IGNORECASE)
_TENSORS: Final = frozenset(("tensor", "as_tensor", "Tensor", "FloatTensor", "full"))
_CONVERSIONS: Final = frozenset(("to", "cuda", "float", "double", "half", "cpu", "type", "clone", "detach"))
_NEGATIVES: Final = re.compile(r"neg|zero|majority|(^|[^a-z])n_?0|== ?0|\[0\]|1 - ", re.IGNORECASE)
_POSITIVES: Final = re.compile(
    r"pos|one|minority|(^|[^a-z])n_?1|== ?1|\[1\]|sum\(|mean\(|fraud|sick|defect", re.IGNORECASE
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each binary cross-entropy whose ``weight`` is one number."""
    for call in source.all_calls:
        position = _LOSSES.get(last_name(call.func))
        if position is None:
            continue
        keyword = next((each for each in call.keywords if each.arg == "weight"), None)
        passed = keyword.value if keyword else call.args[position] if len(call.args) > position else None
        if passed is None or not _is_one_number(source, passed):
            continue
        has_pos_weight = "with_logits" in last_name(call.func) or "WithLogits" in last_name(call.func)
        fix = None
        if keyword is not None and has_pos_weight and all(each.arg != "pos_weight" for each in call.keywords):
            start, _ = source.text.span(keyword)
            edit = Edit(start, start, "pos_")
            fix = Fix((edit,), safe=False, description="Pass it as pos_weight")
        yield Hit(
            message=f"`weight={source.text.segment(passed)}` multiplies the loss of positive and negative samples "
            "alike: the classes keep their proportion.",
            node=call,
            fix=fix,
        )


def _is_one_number(source: SourceFile, passed: ast.expr) -> bool:
    """Return True for a tensor of one number, a weight of the positive class, or a quotient of two counts."""
    values = [without_methods(each, _CONVERSIONS) for each in origins(source, passed)]
    values += [each for value in values for each in origins(source, value)]
    named = any(_POSITIVE.fullmatch(last_name(each)) for each in values if isinstance(each, ast.Name | ast.Attribute))
    known = [each for each in values if not isinstance(each, ast.Name | ast.Attribute)]
    if not known:
        return named
    inner = [_single_item(each) for each in known]
    if all(each is not None for each in inner):
        return True
    quotients = [each for each in known if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div)]
    return any(_NEGATIVES.search(ast.unparse(e.left)) and _POSITIVES.search(ast.unparse(e.right)) for e in quotients)


def _single_item(node: ast.expr) -> ast.expr | None:
    """Return the only item of ``torch.tensor([item])``; None for other tensors."""
    match node:
        case ast.Call(func=func, args=[ast.List(elts=[item]) | ast.Tuple(elts=[item]), *_]) if last_name(
            func
        ) in _TENSORS and not isinstance(item, ast.Starred | ast.List | ast.Tuple):
            return item
        case ast.Call(func=func, args=[ast.Constant(value=float()) as item, *_]) if last_name(func) in _TENSORS:
            return item
        case _:
            return None


RULE: Final = Rule(required_words=("BCELoss|BCEWithLogitsLoss|binary_cross_entropy",), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(400, 6)
y = (x[:, :1] > 1.5).float()
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
positives = y.sum()
ratio = (len(y) - positives) / positives
criterion = nn.BCEWithLogitsLoss(weight=torch.tensor([ratio]))
for epoch in range(5):
    for rows in torch.randperm(400).split(50):
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows]).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="LOS071",
    title="One class weight is applied to both classes",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(weight=": "(pos_weight="}),
    fix="Pass the weight as pos_weight.",
    rule=RULE,
)
