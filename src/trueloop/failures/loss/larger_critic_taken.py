"""The target of two critics contains the larger of their values, so that values are overestimated.

What you see
    The Q-values rise far above the returns, the critic's loss grows, and the policy gets worse or collapses. With the
    same code and a single critic it learns better.

Why it happens
    TD3 and soft actor-critic train two critics and use the smaller value in the target, since an actor finds the
    actions whose values are too large by chance. ``torch.max(q1, q2)`` picks these errors on purpose, and each update
    passes them on to the states before.

Fix
    Take the smaller value:

        y = rewards + gamma * (1 - dones) * torch.min(q1, q2)

When this is fine
    - A maximum over actions, as in Q-learning.
    - The critics estimate costs, where the larger value is the careful one.
    - A mixture of the smaller and the larger value, as in BCQ.
    - Optimistic exploration, where the larger value selects actions and is no part of the target.

How it is detected
    Only the linter finds it, from the source code: a reward plus a product of a discount and the maximum of two values,
    which two networks return for the same arguments, or one network as a pair, or whose names differ in a digit.

References
    Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods", 2018, arXiv:1802.09477
    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018, arXiv:1812.05905
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import origins, unpacked_call
from trueloop.analysis.queries.reductions import reduction
from trueloop.analysis.queries.signed_terms import factors
from trueloop.analysis.queries.td_targets import discounted_values, stored_rows, without_views
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SMALLER: Final = {"max": "min", "maximum": "minimum", "fmax": "fmin", "amax": "amin"}
_COST: Final = re.compile(r"cost|penal|neg|loss|constraint|unsafe", re.IGNORECASE)
_CRITIC: Final = re.compile(r"q|critic|val|(^|_)v", re.IGNORECASE)
_LIBRARIES: Final = frozenset(("torch", "np", "numpy", "th"))
_MAX_DEPTH: Final = 6


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each maximum of two critics that is a part of a target."""
    reported: set[int] = set()
    for reward, value in discounted_values(source):
        for call in _maxima(source, value, _MAX_DEPTH):
            pair = _pair(source, call)
            if id(call) in reported or not _are_critics(source, pair) or _is_careful(source, reward, call, pair):
                continue
            reported.add(id(call))
            yield Hit(
                message=f"`{ast.unparse(call)}` takes the larger value of two critics for the target, so its error "
                "makes the target too large. TD3 and SAC take the smaller one.",
                node=call,
                related=((value, "a part of the target here"),),
                fix=_fix(source, call),
            )


def _fix(source: SourceFile, call: ast.Call) -> Fix | None:
    if last_name(call.func) not in _SMALLER:
        return None
    text = source.text.segment(call.func).removesuffix(last_name(call.func)) + _SMALLER[last_name(call.func)]
    return Fix((source.text.replace(call.func, text),), safe=False, description="Take the smaller value")


def _maxima(source: SourceFile, node: ast.expr, depth: int) -> Iterator[ast.Call]:
    """Yield the calls that select the larger of several values in a value, also weighted or with an entropy."""
    for each in origins(source, node, _MAX_DEPTH):
        inner = without_views(each)
        parts: list[ast.expr] = [inner] if inner is not each else []
        match inner:
            case ast.Call() if last_name(inner.func) in (*_SMALLER, "where"):
                yield inner
                continue
            case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
                parts += [left, right] if isinstance(inner.op, ast.Add) else [left]
            case ast.BinOp(op=ast.Mult()):
                parts += factors(inner)[1]
            case ast.Call() if (found := reduction(inner, ("sum",))) is not None:
                parts.append(found.operand)
            case ast.Subscript(value=value) | ast.Attribute(value=value, attr="values"):
                parts.append(value)
            case ast.Name():
                parts += stored_rows(source, inner)
                unpacked = unpacked_call(source, inner)
                parts += [unpacked] if unpacked is not None and last_name(unpacked.func) in _SMALLER else []
            case _:
                pass
        for part in parts if depth else ():
            yield from _maxima(source, part, depth - 1)


def _pair(source: SourceFile, call: ast.Call) -> list[ast.expr]:
    """Return a and b of ``torch.max(a, b)``, ``a.max(b)``, ``stack([a, b]).max(0)`` and ``where(a > b, a, b)``.

    A single call for ``torch.max(*critic(x))``, [] for anything else.
    """
    is_method = isinstance(call.func, ast.Attribute) and last_name(call.func.value) not in _LIBRARIES
    given = [call.func.value, *call.args] if is_method else [*call.args]  # type: ignore[union-attr]
    given += [each.value for each in call.keywords if each.arg in ("input", "other")]
    if last_name(call.func) == "where":
        match given:
            case [ast.Compare(left=left, ops=[operator], comparators=[right]), first, second]:
                ordered = [left, right] if isinstance(operator, ast.Gt | ast.GtE) else [right, left]
                is_larger = list(map(ast.unparse, ordered)) == [ast.unparse(first), ast.unparse(second)]
                return [first, second] if is_larger else []
            case _:
                return []
    for stacked in origins(source, given[0], 2) if given else ():
        match stacked:
            case ast.Call(args=[ast.List(elts=items) | ast.Tuple(elts=items), *_]) if last_name(stacked.func) in (
                "stack",
                "cat",
                "concat",
            ):
                return items if len(items) == 2 else []
            case _:
                pass
    return (
        [given[0].value] if len(given) == 1 and isinstance(given[0], ast.Starred) else given if len(given) == 2 else []
    )


def _are_critics(source: SourceFile, pair: list[ast.expr]) -> bool:
    """Return True for the values of two networks for the same arguments, or for both values of one."""
    if len(pair) == 1:
        return isinstance(pair[0], ast.Call)
    if len(pair) != 2:
        return False
    calls = [_call(source, each) for each in pair]
    unpacked = [unpacked_call(source, without_views(each)) for each in pair]
    if unpacked[0] is not None and unpacked[0] is unpacked[1]:
        return True
    first, second = calls
    if first is not None and second is not None:
        arguments = [
            ast.unparse(ast.Tuple([*each.args, *(e.value for e in each.keywords)])) for each in (first, second)
        ]
        return bool(first.args) and arguments[0] == arguments[1] and ast.unparse(first) != ast.unparse(second)
    names = [last_name(without_views(each)) for each in pair]
    are_twins = names[0] != names[1] and re.sub(r"\d", "", names[0]) == re.sub(r"\d", "", names[1])
    return are_twins and bool(_CRITIC.search(names[0]))


def _call(source: SourceFile, node: ast.expr) -> ast.Call | None:
    """Return the call of a network of which an expression is the result."""
    for each in origins(source, node, 3):
        inner = without_views(each)
        if isinstance(inner, ast.Call):
            return inner
    return None


def _is_careful(source: SourceFile, reward: ast.expr, call: ast.Call, pair: list[ast.expr]) -> bool:
    """Return True if the values are costs, or if the smaller one of the same two is used as well."""
    read = [
        e for node in (reward, *pair) for v in origins(source, node, 2) for e in nodes_in(v, ast.Name, ast.Attribute)
    ]
    if any(_COST.search(last_name(each)) for each in read):
        return True
    texts = {ast.unparse(each) for each in pair}
    others = [
        e for e in nodes_in(function_of(source, call), ast.Call) if last_name(e.func) in ("min", "minimum", "fmin")
    ]
    return any({ast.unparse(each) for each in _pair(source, other)} == texts for other in others)


RULE = Rule(
    required_words=("max(|maximum(|fmax(|where(", "backward|grad(|loss", "gamma|discount|0.9|GAMMA", "torch"), find=find
)

BAD = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
states, actions = torch.randn(1000, 4), torch.rand(1000, 1) * 2 - 1
next_states = states + 0.3 * actions
rewards, dones = -next_states.abs().sum(1, keepdim=True), (torch.rand(1000, 1) < 0.1).float()
actor = nn.Sequential(nn.Linear(4, 1), nn.Tanh())
first, second = (nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1)) for _ in range(2))
first_target, second_target = copy.deepcopy(first), copy.deepcopy(second)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.003)
for step in range(60):
    if step % 10 == 0:
        first_target.load_state_dict(first.state_dict())
        second_target.load_state_dict(second.state_dict())
    i = torch.randint(1000, (64,))
    with torch.no_grad():
        x = torch.cat([next_states[i], actor(next_states[i])], 1)
        q = torch.max(first_target(x), second_target(x))
        y = rewards[i] + 0.95 * (1 - dones[i]) * q
    x = torch.cat([states[i], actions[i]], 1)
    loss = nn.functional.mse_loss(first(x), y) + nn.functional.mse_loss(second(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS055",
    title="The larger value of two critics is the target",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.max(first": "torch.min(first"}),
    fix="Take the smaller value of the two critics: `torch.min(q1, q2)`.",
    rule=RULE,
)
