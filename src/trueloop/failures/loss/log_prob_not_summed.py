"""The log-probability of an action with several dimensions is not summed over its dimensions.

What you see
    A continuous policy learns worse than expected, or the clipping of PPO has hardly an effect; the entropy term of SAC
    has the wrong size. With as many dimensions as samples, the loss even mixes samples.

Why it happens
    ``Normal(mu, std)`` with a ``mu`` of shape (B, A) is A independent distributions per sample: ``log_prob(action)``
    has the shape (B, A). The probability of the whole action is the product, so its logarithm is the sum. Advantages of
    shape (B, 1) are broadcast, and a mean hides the rest.

Fix
    Sum over the last dimension, or make one distribution of all dimensions.

        log_prob = distribution.log_prob(action).sum(-1)
        distribution = Independent(Normal(mu, std), 1)

When this is fine
    - The action has one dimension.
    - Everything is summed afterwards: ``-(log_prob * advantage).sum()``.

How it is detected
    Only the linter finds it: the ``log_prob`` of a ``Normal`` without ``Independent`` reaches a ratio
    ``exp(new - old)``, a product with advantages or returns that is averaged, or a product with an entropy coefficient,
    and no ``sum`` is on the way, or a ``mean(-1)`` is. The layers or the parameter of the deviation say that the action
    has several dimensions, or the program sums the entropy or another log-probability over the last dimension.

References
    torch.distributions.Independent, https://docs.pytorch.org/docs/stable/distributions.html
    Schulman et al., 2017, "Proximal Policy Optimization Algorithms", arXiv:1707.06347
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import known_integer, origins, unpacked_call
from trueloop.analysis.queries.reductions import reduction
from trueloop.analysis.queries.signed_terms import factors, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_WEIGHT: Final = re.compile(r"adv|return|gae|rtg|(^|_)(td|delta|G|R|reward|rewards)($|_)", re.IGNORECASE)
_ENTROPY_WEIGHT: Final = re.compile(r"alpha|temperature|ent_?coef|entropy_?coef", re.IGNORECASE)
_SAME_SHAPE: Final = frozenset(("clamp", "clip", "detach", "to", "float", "exp", "double", "cpu"))
_ACTIVATIONS: Final = frozenset(("tanh", "sigmoid", "relu", "softsign", "clamp", "clip"))
_FILLED: Final = frozenset(("zeros", "ones", "full", "randn", "empty", "rand"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each log-probability of several dimensions that is used without a sum over them."""
    reported = set[int]()
    sums: bool | None = None
    for use, value, averages in _uses(source):
        for call in _log_probs(source, value, averages=averages):
            width = None if id(call) in reported else _width_of_action(source, call)
            if id(call) in reported or width in (0, 1):
                continue
            sums = _sums_elsewhere(source) if sums is None else sums
            if width is not None or sums:
                reported.add(id(call))
                yield Hit(
                    message=f"`{ast.unparse(call)}` has one value for each dimension of the action, and is not summed "
                    f"over them before `{ast.unparse(use)}`.",
                    node=call,
                    related=((use, "used here"),) if not encloses(use, call) else (),
                )


def _uses(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield each expression that needs the log-probability of whole actions, with what it gets.

    The last item says whether a mean over the dimensions is wrong there as well.
    """
    for call in source.all_calls:
        owner = getattr(call.func, "value", None)
        of = call.args[0] if call.args else owner
        if last_name(call.func) == "exp" and owner is not None and of is not None:
            differences = [each for each in origins(source, of, 2) if isinstance(each, ast.BinOp)]
            yield from ((call, each.left, True) for each in differences if isinstance(each.op, ast.Sub))
    for terms in minimised_terms(source):
        means = [found.operand for term in terms if (found := reduction(term.node, ("mean",))) and found.is_over_batch]
        for term in terms:
            if isinstance(term.node, ast.BinOp) and isinstance(term.node.op, ast.Mult):
                yield from _weighted(source, term.node, means)


def _weighted(
    source: SourceFile, product: ast.BinOp, means: list[ast.expr]
) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield what a product weighs by an entropy coefficient, or by advantages if it is averaged."""
    _, parts = factors(product)
    for part in parts:
        others = [each for each in parts if each is not part]
        if any(_is_called(each, _ENTROPY_WEIGHT) for each in others):
            yield product, part, True
        elif any(_is_called(each, _WEIGHT) for each in others) and _is_within(source, means, product):
            yield product, part, False


def _is_called(node: ast.expr, pattern: re.Pattern[str]) -> bool:
    names = [last_name(each) for each in nodes_in(node, ast.Name, ast.Attribute)]
    return any(map(pattern.search, names)) and not any("log_p" in each or "logp" in each for each in names)


def _is_within(source: SourceFile, operands: list[ast.expr], node: ast.expr) -> bool:
    """Return True if a node is part of what one of some operands has as its value."""
    return any(encloses(value, node) for each in operands for value in origins(source, each, 3))


def _log_probs(source: SourceFile, node: ast.expr, *, averages: bool, depth: int = 3) -> Iterator[ast.Call]:
    """Yield the ``log_prob`` calls of a ``Normal`` from which a value comes without a sum."""
    for each in origins(source, node):
        match each:
            case ast.Call(func=ast.Attribute(attr="log_prob", value=distribution)):
                if any(_is_normal(made) for made in origins(source, distribution)):
                    yield each
            case ast.Call(func=ast.Attribute(attr=name, value=inner)) if depth and (
                name in _SAME_SHAPE or (averages and name == "mean" and _is_last(each))
            ):
                yield from _log_probs(source, inner, averages=averages, depth=depth - 1)
            case ast.UnaryOp(op=ast.USub(), operand=inner) if depth:
                yield from _log_probs(source, inner, averages=averages, depth=depth - 1)
            case _:
                pass


def _is_last(call: ast.Call) -> bool:
    dims = [*call.args[:1], *(each.value for each in call.keywords if each.arg in ("dim", "axis"))]
    return bool(dims) and integer(dims[0]) in (-1, 1)


def _is_normal(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "Normal"


def _sums_elsewhere(source: SourceFile) -> bool:
    """Return True if the program sums the entropy or another log-probability over the last dimension."""
    for call in source.all_calls:
        match call:
            case ast.Call(func=ast.Attribute(attr="sum", value=of)) if _is_last(call):
                for each in origins(source, of, 2):
                    if isinstance(each, ast.Call) and last_name(each.func) in ("log_prob", "entropy"):
                        return True
            case _:
                pass
    return False


def _width_of_action(source: SourceFile, call: ast.Call) -> int | None:
    """Return the number of dimensions of an action; 0 if the location has no dimension for them, None if unknown."""
    distribution = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    for made in origins(source, distribution):
        if not isinstance(made, ast.Call) or not _is_normal(made):
            continue
        location, scale = argument_node(made, "loc", 0), argument_node(made, "scale", 1)
        width = _width(source, location) if location is not None else None
        return width if width is not None else _width_of_scale(source, scale)
    return None


def _width(source: SourceFile, node: ast.expr, depth: int = 5) -> int | None:
    """Return the size of the last dimension of a value; 0 if the value has lost this dimension, None if unknown."""
    found: int | None = None
    for each in origins(source, node, 3) if depth else ():
        layer = _last_layer(source, each.func) if isinstance(each, ast.Call) else None
        inner = _same_width(each)
        call = unpacked_call(source, each) if isinstance(each, ast.Name) else None
        if _loses_dimension(each):
            return 0
        if layer is not None and len(layer.args) > 1:
            found = _number(source, layer.args[1])
        elif inner:
            widths = [_width(source, part, depth - 1) for part in inner]
            found = next((width for width in widths if width is not None), None)
        elif call is not None and last_name(call.func) == "chunk" and isinstance(call.func, ast.Attribute):
            whole = _width(source, call.func.value, depth - 1)
            found = whole // 2 if whole is not None else None
        if found is not None:
            return found
    return None


def _loses_dimension(node: ast.expr) -> bool:
    """Return True for a call or index that may remove the last dimension."""
    match node:
        case ast.Call(func=ast.Attribute(attr="squeeze" | "flatten" | "view" | "reshape")):
            return True
        case ast.Subscript(slice=ast.Tuple(elts=[*_, last]) | last):
            return not isinstance(last, ast.Slice)
        case _:
            return False


def _same_width(node: ast.expr) -> list[ast.expr]:
    """Return the values of which an activation, clamp, sum or product has the last dimension."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name, value=owner)) if name in _ACTIVATIONS:
            is_function = last_name(owner) in ("torch", "F", "functional")
            return node.args[:1] if is_function else [owner]
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case _:
            return []


def _last_layer(source: SourceFile, function: ast.expr) -> ast.Call | None:
    """Return the ``Linear`` that computes the result of a layer or a ``Sequential``; None if it is unknown."""
    for each in origins(source, function, 3):
        if isinstance(each, ast.Call) and last_name(each.func) == "Linear":
            return each
        if isinstance(each, ast.Call) and last_name(each.func) == "Sequential":
            layers = [part for part in each.args if isinstance(part, ast.Call) and last_name(part.func) == "Linear"]
            return layers[-1] if layers else None
    return None


def _width_of_scale(source: SourceFile, scale: ast.expr | None) -> int | None:
    """Return the number of values in the parameter from which a deviation is computed; None if it is unknown."""
    inner = scale
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
        is_function = last_name(inner.func.value) in ("torch", "F")
        inner = inner.args[0] if is_function and inner.args else inner.func.value
    for each in origins(source, inner, 4) if inner is not None else ():
        for call in nodes_in(each, ast.Call):
            if last_name(call.func) in _FILLED and call.args:
                size = call.args[0 if last_name(call.func) == "full" else -1]
                return _number(source, size.elts[-1] if isinstance(size, ast.Tuple) and size.elts else size)
    return None


def _number(source: SourceFile, node: ast.expr) -> int | None:
    """Return the number that a size has; None if it is unknown or has several values."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _number(source, left), _number(source, right)
            return first * second if first is not None and second is not None else None
        case _:
            return known_integer(source, node, 4)


RULE: Final = Rule(required_words=("Normal(", ".log_prob(", "exp(|adv|return|alpha|ent", "torch"), find=find)

BAD = """
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2))
log_std = nn.Parameter(torch.zeros(2))
optimizer = torch.optim.Adam([*policy.parameters(), log_std], lr=0.003)
for iteration in range(20):
    states = torch.randn(64, 3)
    with torch.no_grad():
        old = Normal(policy(states), log_std.exp())
        actions = old.sample()
        old_log_prob = old.log_prob(actions)
    rewards = -(actions - states[:, :2]).pow(2).sum(1, keepdim=True)
    advantages = (rewards - rewards.mean()) / rewards.std()
    for epoch in range(4):
        log_prob = Normal(policy(states), log_std.exp()).log_prob(actions)
        ratio = (log_prob - old_log_prob).exp()
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(rewards.mean().item())
"""

FAILURE = Failure(
    code="LOS065",
    title="Log-probability is not summed over the dimensions of the action",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "old_log_prob = old.log_prob(actions)": "old_log_prob = old.log_prob(actions).sum(-1, keepdim=True)",
            "log_std.exp()).log_prob(actions)": "log_std.exp()).log_prob(actions).sum(-1, keepdim=True)",
        },
    ),
    fix="Sum the log-probability over the last dimension, or wrap the distribution in Independent(..., 1).",
    rule=RULE,
)
