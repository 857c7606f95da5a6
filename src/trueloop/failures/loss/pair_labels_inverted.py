"""The labels of a contrastive loss mean the opposite of what its formula expects.

What you see
    The loss falls, but embeddings of one class are far from each other and those of different classes are close: the
    accuracy by the nearest neighbour is worse than with an untrained model.

Why it happens
    There are two conventions. In one, the label is 1 for pairs of the same class, in the other it is 1 for different
    ones. A formula of one with labels of the other moves the wrong pairs together. Both have the same shapes.

Fix
    Multiply the squared distance with what is 1 for pairs of the same class.

        same = (y1 == y2).float()
        loss = (same * d**2 + (1 - same) * torch.clamp(margin - d, min=0) ** 2).mean()

When this is fine
    - The labels are 1 for pairs of different classes, and the squared distance is multiplied with ``1 - label``.
    - The score is a similarity, and not a distance.

How it is detected
    Only the linter finds it: a sum of two products, one with a label and the other with ``1 - label``, of which one
    contains ``clamp(margin - d)`` or ``relu(margin - d)``. It follows the label to the comparison of two classes that
    made it, through variables, arguments, ``1 - label`` and what the only fitting ``__getitem__`` of the program
    returns. A label that is called ``same`` counts as 1 for pairs of the same class.

References
    Hadsell et al., "Dimensionality Reduction by Learning an Invariant Mapping", 2006,
    https://doi.org/10.1109/CVPR.2006.100
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.method_chains import without_methods
from trueloop.analysis.queries.possible_values import origins, possible_values
from trueloop.analysis.queries.signed_terms import factors
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SAME: Final = re.compile(
    r"(is_|are_)?(same|positives?|pos|matching)(_(class|pair|label|person|identity))?s?", re.IGNORECASE
)
_REDUCTIONS: Final = ("mean", "sum")
_CONVERSIONS: Final = frozenset((
    "float", "to", "long", "int", "view", "reshape", "squeeze", "unsqueeze", "type", "double", "cuda", "astype",
))  # fmt: skip
_CONSTRUCTORS: Final = frozenset((
    "tensor", "as_tensor", "from_numpy", "array", "FloatTensor", "Tensor", "float", "int", "asarray", "float32",
))  # fmt: skip
_SIMILARITY: Final = re.compile(r"sim|cos|(^|_)dot", re.IGNORECASE)
_MAX_DEPTH: Final = 10


class _Weighted(NamedTuple):
    """One term of a contrastive loss."""

    label: ast.expr
    is_complement: bool
    """Whether the weight is ``1 - label``."""
    is_push: bool
    """Whether the term moves the pair apart."""
    node: ast.expr


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each contrastive loss whose labels have the other meaning."""
    for total in source.nodes_of(ast.BinOp):
        if not isinstance(total.op, ast.Add):
            continue
        terms = [each for side in (total.left, total.right) if (each := _weighted(source, side))]
        if len(terms) != 2 or terms[0].is_push == terms[1].is_push or terms[0].is_complement == terms[1].is_complement:
            continue
        if ast.unparse(terms[0].label) != ast.unparse(terms[1].label):
            continue
        pull = next(each for each in terms if not each.is_push)
        meaning, made = _meaning(source, pull.label, _MAX_DEPTH)
        if meaning == (1 if pull.is_complement else -1):
            what = "the same class" if meaning > 0 else "different classes"
            yield Hit(
                message=f"`{ast.unparse(pull.node)}` moves pairs together whose `{ast.unparse(pull.label)}` is "
                f"{0 if pull.is_complement else 1}, but it is 1 for pairs of {what} (`{ast.unparse(made)}`).",
                node=total,
                related=((made, f"1 for pairs of {what}"),),
            )


def _weighted(source: SourceFile, node: ast.expr) -> _Weighted | None:
    """Return what is known of a product of a label, or ``1 - label``, with a distance; None for anything else."""
    for value in origins(source, node, 2):
        _, parts = factors(without_methods(value, _REDUCTIONS, _REDUCTIONS))
        labels = [(part, label) for part in parts if (label := _label(part))]
        rest = [each for each in parts if all(each is not part for part, _ in labels)]
        if len(labels) > 1:  # (1 - label) * d: the distance may be a plain variable
            complements = [each for each in labels if isinstance(without_methods(each[0], _CONVERSIONS), ast.BinOp)]
            named = [
                each for each in labels if re.search(r"label|same|(^|_)y|target|pos|sim|match", last_name(each[1]))
            ]
            labels = complements or named
            rest = [each for each in parts if all(each is not part for part, _ in labels)]
        if len(labels) != 1 or len(rest) != 1:
            continue
        names, is_push = _distance(source, rest[0])
        if any(map(_SIMILARITY.search, names)):
            return None
        part, label = labels[0]
        return _Weighted(label, isinstance(without_methods(part, _CONVERSIONS), ast.BinOp), is_push, value)
    return None


def _distance(source: SourceFile, node: ast.expr) -> tuple[list[str], bool]:
    """Return the names in a distance, and whether it is limited, as in ``relu(margin - d)``."""
    values = [
        inner
        for each in nodes_in(node, ast.expr)
        for inner in ([each, *possible_values(source, each)] if isinstance(each, ast.Name) else [each])
    ]
    names = [last_name(each) for value in values for each in nodes_in(value, ast.Name, ast.Attribute)]
    calls = [each for value in values for each in nodes_in(value, ast.Call)]
    differences = [
        each
        for call in calls
        if last_name(call.func) in ("clamp", "relu", "max", "maximum", "clamp_min", "ReLU", "softplus")
        for each in nodes_in(call, ast.BinOp)
        if isinstance(each.op, ast.Sub)
    ]
    return names, bool(differences)


def _label(node: ast.expr) -> ast.expr | None:
    """Return the label of ``label`` and ``1 - label``."""
    match without_methods(node, _CONVERSIONS):
        case ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1 | 1.0), right=inner):
            inner = without_methods(inner, _CONVERSIONS)
        case inner:
            pass
    return inner if isinstance(inner, ast.Name | ast.Attribute) else None


def _meaning(source: SourceFile, node: ast.expr, depth: int) -> tuple[int, ast.expr]:
    """Return 1 for a label that is 1 for pairs of one class, -1 for different classes, 0 if unknown; and its origin."""
    node = without_methods(node, _CONVERSIONS)
    meaning = _of_comparison(node)
    if meaning or not depth:
        return meaning, node
    sign, inner = _wrapped(node)
    if inner is not None:
        meaning, made = _meaning(source, inner, depth - 1)
        return sign * meaning, made
    return _of_variable(source, node, depth) if isinstance(node, ast.Name | ast.Attribute | ast.Call) else (0, node)


def _of_comparison(node: ast.expr) -> int:
    """Return 1 for ``a == b`` and -1 for ``a != b``, in the ways to write them; 0 if one side is a number."""
    match node:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as op], comparators=[right]):
            is_equal = isinstance(op, ast.Eq)
        case ast.Call(func=ast.Attribute(attr="eq" | "ne" as name), args=[left, right]):
            is_equal = name == "eq"
        case ast.Call(func=ast.Attribute(attr="eq" | "ne" as name, value=left), args=[right]):
            is_equal = name == "eq"
        case _:
            return 0
    has_number = isinstance(left, ast.Constant) or isinstance(right, ast.Constant)
    return 0 if has_number else 1 if is_equal else -1


def _wrapped(node: ast.expr) -> tuple[int, ast.expr | None]:
    """Return the label inside ``1 - label``, ``torch.tensor([label])`` and the like; -1 if its meaning is turned."""
    match node:
        case (
            ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1 | 1.0), right=inner)
            | ast.UnaryOp(op=ast.Invert() | ast.Not(), operand=inner)
        ):
            return -1, inner
        case ast.IfExp(test=test, body=ast.Constant(value=first), orelse=ast.Constant(value=second)) if {
            first,
            second,
        } == {0, 1}:
            return (1 if first == 1 else -1), test
        case ast.Call(func=func, args=[inner, *_]) if last_name(func) in _CONSTRUCTORS:
            return 1, inner
        case ast.List(elts=[inner]):
            return 1, inner
        case _:
            return 1, None


def _of_variable(source: SourceFile, node: ast.expr, depth: int) -> tuple[int, ast.expr]:
    values = possible_values(source, node)
    if not values and isinstance(node, ast.Name):
        values = _from_dataset(source, node)
    found = [_meaning(source, each, depth - 1) for each in values]
    meanings = {meaning for meaning, _ in found}
    if meanings in ({1}, {-1}):
        return found[0]
    is_named = _SAME.fullmatch(last_name(node)) and meanings <= {0}
    return (1, node) if is_named else (0, node)


def _from_dataset(source: SourceFile, node: ast.Name) -> list[ast.expr]:
    """Return what the ``__getitem__`` of the program returns for a variable that a loop unpacks from batches."""
    found: list[ast.expr] = []
    for target in _unpacked(function_of(source, node)):
        position = next((n for n, e in enumerate(target) if isinstance(e, ast.Name) and e.id == node.id), None)
        if position is None:
            continue
        methods = [each for each in source.nodes_of(ast.FunctionDef) if each.name == "__getitem__"]
        returned = [each.value for method in methods for each in nodes_in(method, ast.Return)]
        found += [
            each.elts[position] for each in returned if isinstance(each, ast.Tuple) and len(each.elts) == len(target)
        ]
    return found


def _unpacked(function: Any) -> Iterator[Sequence[ast.expr]]:
    """Yield the items into which a function unpacks batches: ``for a, b, label in loader``."""
    for each in nodes_in(function, ast.For, ast.Assign):
        targets = [each.target] if isinstance(each, ast.For) else each.targets
        if isinstance(each, ast.For) or isinstance(each.value, ast.Name | ast.Call):
            yield from (inner.elts for target in targets for inner in nodes_in(target, ast.Tuple))


RULE = Rule(required_words=("clamp|relu|max", "1 -|1-|1.0 -|1.0-|1. -|1.-", "margin|m -|m-"), find=find)

BAD = """
import torch
from torch import nn


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin

    def forward(self, first, second, label):
        distance = nn.functional.pairwise_distance(first, second)
        apart = torch.clamp(self.margin - distance, min=0)
        return ((1 - label) * distance.pow(2) + label * apart.pow(2)).mean()


torch.manual_seed(0)
inputs = torch.randn(300, 8)
classes = inputs[:, :3].argmax(1)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
criterion = ContrastiveLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    i, j = torch.randint(0, 300, (2, 64))
    same = (classes[i] == classes[j]).float()
    loss = criterion(model(inputs[i]), model(inputs[j]), same)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS034",
    title="The labels of a contrastive loss are inverted",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(1 - label) * distance.pow(2) + label *": "label * distance.pow(2) + (1 - label) *"}),
    fix="Multiply the squared distance with what is 1 for pairs of the same class.",
    rule=RULE,
)
