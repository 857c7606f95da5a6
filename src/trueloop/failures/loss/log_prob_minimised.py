"""The loss lacks a minus: training makes good actions, or the observed data, less likely.

What you see
    The mean return falls to its minimum, or a density model gives the data less and less probability. The loss falls as
    it should.

Why it happens
    Policy gradients and maximum likelihood raise a log-probability, while an optimizer lowers the loss. So the loss is
    the negative log-probability. Without the minus the actions with the best returns become rare.

Fix
    Put a minus before it, or create the optimizer with ``maximize=True``.

        loss = -(log_probs * advantages).mean()
        loss = -flow.log_prob(x).mean()

When this is fine
    - ``maximize=True``, or the program adds the gradient to the weights itself.
    - The factor is a cost, which shall fall, or a returned value with a minus of its own.
    - The log-probability is one part of a difference, as in a KL divergence or in soft actor-critic.

How it is detected
    Only the linter finds it, from the source code. It follows the value of ``backward()`` through sums, means,
    products, stacked lists and variables of the same function. It reports a log-probability (a call of ``log_prob``, or
    a name such as ``log_probs`` or ``logp``) that is the whole loss or is multiplied by a return, reward or advantage,
    if it is reached without a minus, and no log-probability with one. It also reports a cross-entropy by hand,
    ``y * log(p) + (1 - y) * log(1 - p)``, without a minus.

References
    Williams, 1992, "Simple statistical gradient-following algorithms", https://doi.org/10.1007/BF00992696
    torch.distributions, score function, https://docs.pytorch.org/docs/stable/distributions.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.best_values import initial_number
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LOG_PROB: Final = re.compile(r"(^|_)(log_?probs?|logps?|log_?pi|log_?prob_?actions?|log_?likelihoods?)(_|$)")
_REWARD: Final = re.compile(
    r"(^|_)(returns?|rets?|rewards?|rews?|adv|advs|advantages?|gae|R|G|Gt|G_t|rtg|discounted(_\w+)?)(_|$|\d)"
)
_NOT_REWARD: Final = re.compile(r"(^|_)(neg|negative|cost|costs|loss|losses|penalty|penalties|regret|minus)(_|$)")
_REDUCTIONS: Final = frozenset(
    ("mean", "sum", "squeeze", "view", "reshape", "flatten", "float", "to", "double", "stack")
)
_OF_ARGUMENT: Final = frozenset(("mean", "sum", "stack", "cat", "squeeze", "fmean"))
MAX_DEPTH: Final = 12


class _Term(NamedTuple):
    """A part of a loss."""

    sign: int
    kind: str
    """"log" = a log-probability, "policy" = one that is multiplied by a return, "target" = one of a cross-entropy, by a
    target; "" = anything else."""
    node: ast.expr


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss that is a log-probability without a minus."""
    if re.search(r"maximize\s*=|\+=.*grad|\.neg_?\(\)|add_\(.*grad|gradient.?ascent", source.text.source):
        return
    for call in source.all_calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
            continue
        if _is_for_an_input(function_of(source, call)):
            continue
        terms = list(_terms(function_of(source, call), call.func.value, 1, 0))
        logs = [each for each in terms if each.kind]
        is_judged = len(terms) == 1 or any(each.kind in ("policy", "target") for each in logs)
        if not logs or any(each.sign < 0 for each in logs) or not is_judged:
            continue
        found = next((each for each in logs if each.kind == "policy"), logs[0])
        what = {"policy": "the return", "target": "the probability of the right answers"}.get(
            found.kind, "the probability of the data"
        )
        yield Hit(
            message=f"The loss contains `{ast.unparse(found.node)}` without a minus: a lower loss lowers {what}.",
            node=found.node,
            related=((call, "this value is minimised"),),
            fix=_minus(source, found.node) if found.kind != "target" else None,
        )


def _is_for_an_input(function: Any) -> bool:
    """Return True for a function that reads the gradient of an input, as for a saliency map, and makes no update."""
    called = [each.func for each in nodes_in(function, ast.Call)]
    inputs = {dotted_name(getattr(each, "value", each)) for each in called if last_name(each) == "requires_grad_"}
    read = {dotted_name(each.value) for each in nodes_in(function, ast.Attribute) if each.attr == "grad"}
    return not inputs.isdisjoint(read) and not any(last_name(each) == "step" for each in called)


def _minus(source: SourceFile, node: ast.expr) -> Fix:
    edit = source.text.replace(node, f"-({source.text.segment(node)})")
    return Fix((edit,), safe=False, description="Put a minus before it")


def _terms(function: Any, node: ast.expr, sign: int, depth: int) -> Iterator[_Term]:
    """Yield the parts of a loss, with the sign in front of each."""
    node = _summed(node)
    match node:
        case _ if depth > MAX_DEPTH:
            yield _Term(sign, "", node)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            yield from _terms(function, inner, -sign, depth + 1)
        case ast.BinOp(op=ast.Add() | ast.Sub() as op, left=left, right=right):
            yield from _terms(function, left, sign, depth + 1)
            yield from _terms(function, right, sign if isinstance(op, ast.Add) else -sign, depth + 1)
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            yield from _product(function, node, (left, right), sign, depth)
        case ast.Call(func=ast.Attribute(attr="log_prob")):
            yield _Term(sign, "log", node)
        case ast.Name(id=name):
            yield from _variable(function, node, name, sign, depth)
        case _:
            yield _Term(sign, "", node)


def _summed(node: ast.expr) -> ast.expr:
    """Return what an expression sums, averages, stacks or divides."""
    while True:
        match node:
            case (
                ast.Call(func=ast.Attribute(attr=attr, value=ast.Name(id="torch" | "np")), args=[inner, *_])
                | ast.Call(func=ast.Name(id=attr), args=[inner, *_])
            ) if attr in _OF_ARGUMENT:
                pass
            case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _REDUCTIONS:
                pass
            case ast.BinOp(op=ast.Div(), left=inner) | ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner):
                pass
            case _:
                return node
        node = inner


def _variable(function: Any, node: ast.Name, name: str, sign: int, depth: int) -> Iterator[_Term]:
    """Yield the parts of what a function stores in a variable, also by ``+=`` and ``append``."""
    assigned = assigned_in(function, name)
    values = [each for each in assigned if not isinstance(each, ast.Constant) and ast.unparse(each) != "[]"]
    if len(values) > 1:
        yield _Term(sign, "", node)
        return
    parts = [(each, sign) for each in values]
    for each in walk(function):
        match each:
            case ast.AugAssign(target=ast.Name(id=changed_name), op=ast.Add() | ast.Sub() as op, value=value):
                parts += [(value, sign if isinstance(op, ast.Add) else -sign)] if changed_name == name else []
            case ast.AugAssign(target=ast.Name(id=changed_name)) if changed_name == name:
                parts += [(ast.Constant(0), sign)]
            case ast.Call(func=ast.Attribute(attr="append", value=ast.Name(id=owner)), args=[value]) if owner == name:
                parts += [(value, sign)]
            case _:
                pass
    for value, value_sign in parts:
        yield from _terms(function, value, value_sign, depth + 1)
    if not parts:
        is_log = _LOG_PROB.search(name) and not re.search(r"neg|loss|nll", name)
        yield _Term(sign, "log" if is_log else "", node)


def _product(function: Any, node: ast.expr, sides: tuple[ast.expr, ast.expr], sign: int, depth: int) -> Iterator[_Term]:
    """Yield a log-probability times a return as one part, and the signed other side of a product with a number."""
    for first, second in (sides, sides[::-1]):
        number = initial_number(first)
        if number is not None:
            yield from _terms(function, second, sign if number >= 0 else -sign, depth + 1)
            return
    if any(_is_log_of_the_rest(log, rest) for log, rest in (sides, sides[::-1])):
        yield _Term(sign, "target", node)
        return
    for log_prob, factor in (sides, sides[::-1]):
        terms = list(_terms(function, log_prob, sign, depth + 1))
        if len(terms) == 1 and terms[0].kind == "log":
            factor_sign = _reward_sign(function, factor)
            yield _Term(terms[0].sign * (factor_sign or 1), "policy" if factor_sign else "", node)
            return
    yield _Term(sign, "", node)


def _is_log_of_the_rest(log: ast.expr, rest: ast.expr) -> bool:
    """Return True for ``torch.log(1 - p)`` and ``1 - y``, the second term of a binary cross-entropy."""
    inner = log.func.value if isinstance(log, ast.Call) and isinstance(log.func, ast.Attribute) else None
    if not isinstance(log, ast.Call) or last_name(log.func) not in ("log", "log1p"):
        return False
    inner = log.args[0] if log.args else inner
    is_log1p = last_name(log.func) == "log1p" and isinstance(inner, ast.UnaryOp)
    return (is_log1p or "1 -" in ast.unparse(inner or log)) and ast.unparse(rest).startswith(("1 - ", "1.0 - "))


def _reward_sign(function: Any, node: ast.expr) -> int:
    """Return 1 for a return or advantage, -1 for one with a minus; 0 for anything else, such as a cost."""
    sign = 1
    for _ in range(MAX_DEPTH):
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                node, sign = inner, -sign
            case ast.Call(func=ast.Attribute(value=inner)) if last_name(inner) not in ("torch", "np"):
                node = inner
            case ast.Subscript(value=inner):
                node = inner
            case ast.BinOp(op=ast.Sub(), left=left):
                node = left
            case _:
                break
    name = last_name(node)
    if not _REWARD.search(name) or _NOT_REWARD.search(name):
        return 0
    values = assigned_in(function, name)
    text = " ".join(ast.unparse(each) for each in values)
    is_unclear = bool(re.search(r"cost|loss|error|penalt|dist", text)) or any(_has_minus(each) for each in values)
    return 0 if is_unclear else sign


def _has_minus(value: ast.expr) -> bool:
    """Return True for a value with a minus in front of a part, as in ``-(r - b)`` or ``value - r``."""
    if any(isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.USub) for each in walk(value)):
        return True
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub) and not _REWARD.search(last_name(value.left))


RULE = Rule(required_words=("backward", "log_prob|logp|log_pi|logprob|likelihood|log("), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Linear(4, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
for step in range(60):
    states = torch.randn(32, 4)
    choice = torch.distributions.Categorical(logits=policy(states))
    actions = choice.sample()
    rewards = (actions == (states[:, 0] > 0)).float()
    advantages = rewards - rewards.mean()
    loss = (choice.log_prob(actions) * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"mean reward {rewards.mean():.2f}")
"""

FAILURE = Failure(
    code="LOS026",
    title="A log-probability is minimised",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"loss = (choice": "loss = -(choice"}),
    fix="Put a minus before the log-probability: an optimizer lowers the loss.",
    rule=RULE,
)
