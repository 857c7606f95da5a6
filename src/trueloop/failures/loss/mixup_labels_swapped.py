"""Mixup or CutMix pairs the mixed inputs with the wrong labels.

What you see
    The training loss stays high, and the model is worse with mixup than without it, although a longer training should
    make it better.

Why it happens
    The labels must be mixed as the inputs were: with the same partners and the same shares. If the share ``lam`` of the
    first input goes to the label of the second one, or if the labels are permuted again, most labels belong to another
    image. Both are valid targets, so no error is raised.

Fix
    Draw the permutation and ``lam`` once per batch, and use both for the inputs and the labels:

        perm = torch.randperm(len(x))
        mixed = lam * x + (1 - lam) * x[perm]
        loss = lam * criterion(out, y) + (1 - lam) * criterion(out, y[perm])

When this is fine
    - The permutation is the same variable for both.
    - ``lam`` is replaced by its complement in between.
    - Two inputs with labels of their own are mixed independently of each other.

How it is detected
    Only the linter finds it, from the source code: a sum ``lam * x + (1 - lam) * x[perm]`` of the inputs, and the same
    kind of sum of two losses, or of labels, with ``y`` and ``y[perm]``, also in different functions. It is reported if
    the permuted part has the share ``lam`` in one sum and ``1 - lam`` in the other, or if both permutations, or both
    values of ``lam``, are drawn by different calls. For CutMix it looks for a box of ``x[perm]`` that is copied into
    ``x``, where ``lam`` is then set to one minus the share of the box. It also reports inputs that are mixed with a
    share from a beta distribution, if nothing else reads the permutation, although the loss is one of labels.

References
    Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018, arXiv:1710.09412
    Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features", 2019,
    arXiv:1905.04899
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of, is_label, is_loss_call
from trueloop.analysis.queries.method_chains import without_methods
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import is_none, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_PERMUTING: Final = frozenset(("randperm", "permutation", "sample", "argsort"))
_DRAWS: Final = frozenset(("beta", "betavariate", "sample", "rand", "uniform", "random", "rsample", "Beta"))
_SHAPING: Final = frozenset(("view", "reshape", "to", "float", "unsqueeze", "long", "cuda", "item"))
MAX_DEPTH: Final = 6


class _Mix(NamedTuple):
    """A weighted sum of a value and the same value in another order."""

    node: ast.AST
    share: ast.expr
    """The variable ``lam``."""
    inverted: bool
    """Whether the permuted part has the share ``1 - lam``."""
    permutation: ast.expr
    calls: tuple[int, ...]
    """Ids of the calls of functions of the program that permute the value."""
    of_labels: bool
    functions: frozenset[int]
    """Ids of the functions in which the parts are computed."""


class _Weighted(NamedTuple):
    """A value and its weight in a sum."""

    share: ast.expr
    inverted: bool
    """Whether the weight is one minus the share."""
    value: ast.expr


class _Value(NamedTuple):
    """An expression from which a value comes, and the calls that returned it."""

    node: ast.expr
    calls: tuple[int, ...]


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each mix of labels or losses that does not fit to that of the inputs."""
    mixes = [mix for each in source.nodes_of(ast.BinOp) if (mix := _mix(source, each)) is not None]
    inputs = [each for each in mixes if not each.of_labels] + list(_boxes(source))
    for labels in [each for each in mixes if each.of_labels] if inputs else ():
        near = [each for each in inputs if each.functions & labels.functions]
        found = [_mismatch(source, each, labels) for each in near]
        if found and all(found):
            yield Hit(
                message=f"{found[0]}: the labels belong to other inputs than those that were mixed.",
                node=labels.node,
                related=((near[0].node, "the inputs are mixed here"),),
            )
    if inputs and not any(each.of_labels for each in mixes):
        yield from _labels_left_out(source, inputs)


def _labels_left_out(source: SourceFile, inputs: list[_Mix]) -> Iterator[Hit]:
    """Yield each mix of inputs whose permutation nothing else reads, in a program with a loss of labels."""
    labels = [each for each in source.all_calls if _is_loss(source, each) and _is_of_labels(source, each)]
    for mix in inputs if labels else ():
        index, function = mix.permutation, function_of(source, mix.node)
        draw = _draw(source, mix.share, _DRAWS)
        if not isinstance(index, ast.Name) or draw is None or "beta" not in ast.unparse(draw).lower():
            continue
        reads = [e for e in nodes_in(function, ast.Name) if e.id == index.id and isinstance(e.ctx, ast.Load)]
        if len(reads) == 1:
            yield Hit(
                message=f"`{ast.unparse(mix.node)}` mixes the inputs, but nothing mixes their labels: `{index.id}` is "
                "read here only.",
                node=mix.node,
                related=((labels[0], "the loss of the labels"),),
            )


def _is_of_labels(source: SourceFile, loss: ast.Call) -> bool:
    target = _loss_target(source, loss)
    return target is not None and any(is_label(each.node) for each in _values(source, target))


def _mix(source: SourceFile, node: ast.BinOp) -> _Mix | None:
    """Return the mix that a sum computes; None for other sums."""
    if not isinstance(node.op, ast.Add):
        return None
    for first in _weighted(source, node.left):
        for second in _weighted(source, node.right):
            if first.inverted != second.inverted and ast.unparse(first.share) == ast.unparse(second.share):
                return _mix_of(source, node, first, second)
    return None


def _mix_of(source: SourceFile, node: ast.BinOp, first: _Weighted, second: _Weighted) -> _Mix | None:
    targets = [_loss_target(source, each.value) for each in (first, second)]
    if (targets[0] is None) != (targets[1] is None):
        return None
    parts = [target or each.value for target, each in zip(targets, (first, second), strict=True)]
    for plain, moved, weighted in ((parts[0], parts[1], second), (parts[1], parts[0], first)):
        found = _permutation(source, plain, moved)
        if found is not None:
            functions = {id(function_of(source, each.node)) for part in parts for each in _values(source, part)}
            of_labels = targets[0] is not None or any(is_label(each.node) for each in _values(source, plain))
            functions.add(id(function_of(source, node)))
            return _Mix(node, weighted.share, weighted.inverted, *found, of_labels, frozenset(functions))
    return None


def _weighted(source: SourceFile, node: ast.expr) -> Iterator[_Weighted]:
    """Yield the ways to read a product as ``lam * x`` or ``(1 - lam) * x``."""
    node = without_methods(node, ("mean", "sum"))
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return
    for factor, value in ((node.left, node.right), (node.right, node.left)):
        share = _share(factor)
        if share is not None and not share[1]:
            complements = [_share(each) for each in possible_values(source, factor)]
            if len(complements) == 1 and complements[0] is not None and complements[0][1]:
                share = complements[0]  # rest = 1 - lam
        if share is not None:
            yield _Weighted(share[0], share[1], value)


def _share(node: ast.expr) -> tuple[ast.expr, bool] | None:
    """Return a variable and False, or for ``1 - variable`` True; None for other expressions."""
    node = _base(node)
    match node:
        case ast.Name() | ast.Attribute():
            return node, False
        case ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1 | 1.0), right=inner):
            inner = _base(inner)
            return (inner, True) if isinstance(inner, ast.Name | ast.Attribute) else None
        case _:
            return None


def _base(node: ast.expr) -> ast.expr:
    """Return the variable that an expression reshapes or converts."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _SHAPING:
                node = inner
            case ast.Subscript(value=inner, slice=ast.Tuple(elts=elts)) if any(is_none(each) for each in elts):
                node = inner
            case ast.Call(func=func, args=[inner, *_]) if last_name(func) == "one_hot":
                node = inner
            case _:
                return node


def _loss_target(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the target of a loss, also of one in a variable; None for other values."""
    calls = [each.node for each in _values(source, node) if isinstance(each.node, ast.Call)]
    found = next((each for each in calls if _is_loss(source, each)), None)
    if found is None:
        return None
    named = next((each.value for each in found.keywords if each.arg in ("target", "labels")), None)
    return named or (found.args[1] if len(found.args) > 1 else None)


def _is_loss(source: SourceFile, call: ast.Call) -> bool:
    made = [last_name(getattr(each, "func", None)) for each in possible_values(source, call.func)]
    return is_loss_call(source, call) or any(each.endswith("Loss") for each in made)


def _values(source: SourceFile, node: ast.expr, calls: tuple[int, ...] = (), depth: int = 0) -> Iterator[_Value]:
    """Yield a value and the expressions from which it comes, with the calls that returned them."""
    node = _base(node)
    yield _Value(node, calls)
    if depth < MAX_DEPTH:
        function = function_of(source, node)
        for each in possible_values(source, node):
            inner = calls
            if function_of(source, each) is not function and isinstance(node, ast.Call):
                inner = (*calls, id(node))
            elif function_of(source, each) is not function and isinstance(node, ast.Name):
                inner = (*calls, *_assigning_calls(source, node))
            yield from _values(source, each, inner, depth + 1)


def _assigning_calls(source: SourceFile, node: ast.Name) -> tuple[int, ...]:
    """Return the id of the call whose result, or an item of it, was last assigned to a variable."""
    found: tuple[int, ...] = ()
    for each in nodes_in(function_of(source, node), ast.Assign):
        names = {name.id for target in each.targets for name in nodes_in(target, ast.Name)}
        if node.id in names and isinstance(each.value, ast.Call) and each.lineno <= node.lineno:
            found = (id(each.value),)
    return found


def _permutation(source: SourceFile, plain: ast.expr, moved: ast.expr) -> tuple[ast.expr, tuple[int, ...]] | None:
    """Return the index by which a value is a permutation of another one, with the calls that permute it."""
    texts = {ast.unparse(each.node) for each in _values(source, plain)}
    for each in _values(source, moved):
        match each.node:
            case ast.Subscript(value=owner, slice=index):
                index = index.elts[0] if isinstance(index, ast.Tuple) else index
            case ast.Call(func=ast.Attribute(attr="index_select", value=owner), args=[ast.Constant(value=0), index]):
                pass
            case ast.Call(func=ast.Attribute(attr="flip" | "roll", value=owner)):
                index = each.node
            case _:
                continue
        owners = {ast.unparse(value.node) for value in _values(source, owner)}
        if not isinstance(index, ast.Slice | ast.Constant) and texts & owners:
            return index, each.calls
    return None


def _boxes(source: SourceFile) -> Iterator[_Mix]:
    """Yield each copy of a box of ``x[perm]`` into ``x`` after which ``lam`` is one minus the share of the box."""
    for each in source.nodes_of(ast.Assign):
        match each:
            case ast.Assign(
                targets=[ast.Subscript(slice=ast.Tuple(elts=[ast.Slice(lower=None), *box]))],
                value=(
                    ast.Subscript(
                        value=ast.Subscript(slice=index), slice=ast.Tuple(elts=[ast.Slice(lower=None), *other])
                    )
                    | ast.Subscript(slice=ast.Tuple(elts=[index, *other]))
                ),
            ) if not isinstance(index, ast.Slice | ast.Constant) and [*map(ast.dump, box)] == [*map(ast.dump, other)]:
                pass
            case _:
                continue
        function = function_of(source, each)
        for later in nodes_in(function, ast.Assign):
            share = later.targets[0]
            is_rest = isinstance(later.value, ast.BinOp) and isinstance(later.value.op, ast.Sub)
            text = ast.unparse(later.value).replace(" ", "")
            if is_rest and re.match(r"1(\.0)?-", text) and "/" in text and isinstance(share, ast.Name | ast.Attribute):
                yield _Mix(each, share, True, index, (), False, frozenset((id(function),)))


def _mismatch(source: SourceFile, inputs: _Mix, labels: _Mix) -> str:
    """Return how a mix of labels differs from that of the inputs; "" if it fits or is unknown."""
    first, second = (_draw(source, each.permutation, _PERMUTING) for each in (inputs, labels))
    calls = (inputs.calls, labels.calls)
    drawn_inside = first is not None and function_of(source, first) is not source.tree
    is_repeated = first is second and drawn_inside and all(calls) and calls[0] != calls[1]
    if first is not None and second is not None and (first is not second or is_repeated):
        return "The inputs and the labels are permuted by two different random permutations"
    first, second = (_draw(source, each.share, _DRAWS) for each in (inputs, labels))
    if first is not None and second is not None and first is not second:
        return f"The inputs and the labels are mixed with two different random `{ast.unparse(labels.share)}`"
    if inputs.inverted != labels.inverted and _is_same_share(source, inputs, labels):
        name = ast.unparse(labels.share)
        given = [f"1 - {name}" if each.inverted else name for each in (inputs, labels)]
        return f"The permuted inputs have the share `{given[0]}`, but their labels have `{given[1]}`"
    return ""


def _draw(source: SourceFile, node: ast.expr, names: frozenset[str]) -> ast.Call | None:
    """Return the call that draws a random value; None if it is not exactly one."""
    for each in _values(source, node):
        found = [call for call in nodes_in(each.node, ast.Call) if last_name(call.func) in names]
        if found:
            return found[0]
    return None


def _is_same_share(source: SourceFile, inputs: _Mix, labels: _Mix) -> bool:
    """Return True if both mixes use the same variable, which is not changed in between."""
    functions = [function_of(source, each.share) for each in (inputs, labels)]
    values = [[e.node for e in _values(source, each.share)] for each in (inputs, labels)]
    if functions[0] is not functions[1]:
        texts = [{ast.unparse(each) for each in of_one} for of_one in values]
        is_complement = any((share := _share(each)) is not None and share[1] for of_one in values for each in of_one)
        return bool(texts[0] & texts[1]) and not is_complement
    name = ast.unparse(labels.share)
    lines = sorted((inputs.share.lineno, labels.share.lineno))
    between = [
        each
        for each in nodes_in(functions[0], ast.Assign)
        if name in map(ast.unparse, each.targets) and lines[0] < each.lineno <= lines[1]
    ]
    return ast.unparse(inputs.share) == name and not between


RULE = Rule(required_words=("perm|shuffle|argsort|flip|roll", "1 -|1.0 -|1-|1.-", "lam|mix|Mix|beta|Beta"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 12)
y = x[:, :4].argmax(1)
model = nn.Linear(12, 4)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for rows in torch.randperm(320).split(32):
    inputs, labels = x[rows], y[rows]
    lam = torch.distributions.Beta(0.4, 0.4).sample()
    perm = torch.randperm(32)
    outputs = model(lam * inputs + (1 - lam) * inputs[perm])
    loss = (1 - lam) * criterion(outputs, labels) + lam * criterion(outputs, labels[perm])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""

FAILURE = Failure(
    code="LOS038",
    title="Mixup pairs inputs with the wrong labels",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "(1 - lam) * criterion(outputs, labels) + lam * criterion(outputs, labels[perm])": (
                "lam * criterion(outputs, labels) + (1 - lam) * criterion(outputs, labels[perm])"
            )
        },
    ),
    fix="Mix the labels with the permutation and the share of the inputs, each drawn once.",
    rule=RULE,
)
