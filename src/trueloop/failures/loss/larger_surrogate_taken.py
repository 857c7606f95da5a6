"""PPO takes the larger of its two surrogate objectives, so that clipping does not limit the update.

What you see
    The policy changes much in each update, the KL divergence to the old policy is large, and the return goes up and
    down or collapses. A smaller clip range does not help.

Why it happens
    PPO maximises the smaller one of ``ratio * advantage`` and ``clipped_ratio * advantage``: it is a pessimistic bound,
    so there is no gain from moving the ratio beyond the range. Of the larger one, the part without a limit remains.
    With the minus inside, the same bound is the larger one of two losses; mixing both forms takes the wrong one.

Fix
    Take the smaller objective, or the larger loss.

        loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        loss = torch.max(-ratio * advantages, -clipped * advantages).mean()

When this is fine
    - The value loss takes the larger of its clipped and unclipped error.
    - Dual-clip PPO takes the larger of the usual bound and ``c * advantages`` where the advantage is negative.
    - The advantage is one of a cost, which shall fall.

How it is detected
    Only the linter finds it. It follows the loss to a maximum or minimum of two products, both with an advantage, one
    with a ratio and one with the clipped ratio, and counts the minuses outside and inside.

References
    Schulman et al., "Proximal Policy Optimization Algorithms", 2017, arXiv:1707.06347, equation 7
    Ye et al., "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning", 2020, arXiv:1912.09729
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.signed_terms import EXTREMA, factors, may_ascend, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ADVANTAGE: Final = re.compile(r"adv|(^|_)(gaes?|A|td_?errors?|td_?deltas?|deltas?)(_|$|\d)", re.IGNORECASE)
_COST: Final = re.compile(r"cost|(^|_)neg|minus|regret|loss|penal|constraint", re.IGNORECASE)
_CLIPPING: Final = frozenset(("clamp", "clip"))
_REDUCTIONS: Final = frozenset(("mean", "sum", "squeeze", "unsqueeze", "view", "reshape", "float"))


class _Surrogate(NamedTuple):
    sign: int
    is_clipped: bool


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each maximum or minimum of two surrogates that takes the wrong one."""
    if may_ascend(source):
        return
    reported: set[int] = set()
    for terms in minimised_terms(source):
        for term in terms:
            pair = _pair(term.node)
            if pair is None or id(term.node) in reported:
                continue
            found = [_surrogate(source, each) for each in pair]
            if len({each.is_clipped for each in found if each}) != 2 or len({each.sign for each in found if each}) != 1:
                continue
            inner = next(each.sign for each in found if each)
            takes_larger = "max" in last_name(term.node.func)  # type: ignore[attr-defined]
            if term.sign * inner < 0 and takes_larger == (inner > 0):
                reported.add(id(term.node))
                yield _hit(term.node, takes_larger=takes_larger)


def _hit(node: ast.expr, *, takes_larger: bool) -> Hit:
    taken = "larger of the two objectives" if takes_larger else "smaller of the two losses"
    right = "minimum" if takes_larger else "maximum"
    return Hit(
        message=f"`{ast.unparse(node)}` takes the {taken}: clipping does not limit the update of the policy. PPO takes "
        f"the {right} here.",
        node=node,
    )


def _pair(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Return the two arguments of ``torch.max(a, b)`` or ``a.max(b)``."""
    if not isinstance(node, ast.Call) or last_name(node.func) not in EXTREMA:
        return None
    arguments = list(node.args) + [each.value for each in node.keywords if each.arg in ("input", "other")]
    if len(arguments) == 2:
        return arguments[0], arguments[1]
    if len(arguments) == 1 and isinstance(node.func, ast.Attribute):
        return node.func.value, arguments[0]
    return None


def _surrogate(source: SourceFile, node: ast.expr) -> _Surrogate | None:
    """Return what is known about a product of a ratio and an advantage; None for other expressions."""
    total = 1
    for value in origins(source, node):
        sign, parts = factors(_without_reductions(value))
        if len(parts) == 1:
            total = sign if value is node else total * sign if parts[0] is not value else total
            continue
        return _of_factors(source, total * sign, parts)
    return None


def _of_factors(source: SourceFile, sign: int, parts: list[ast.expr]) -> _Surrogate | None:
    advantages = [each for each in parts if _ADVANTAGE.search(_name(each))]
    ratios = [each for each in parts if all(each is not other for other in advantages)]
    names = [_name(each) for each in advantages]
    if len(advantages) != 1 or len(ratios) != 1 or any(map(_COST.search, names)):
        return None
    values = list(origins(source, _without_reductions(advantages[0])))
    if any(_is_negative(each) for each in values):
        return None
    called = [last_name(e.func) for value in origins(source, ratios[0]) for e in nodes_in(value, ast.Call)]
    is_ratio = bool(re.search(r"ratio|(^|_)(r|rho|clipped)", _name(ratios[0]))) or "exp" in called
    is_clipped = bool(_CLIPPING & set(called))
    return _Surrogate(sign, is_clipped) if is_ratio or is_clipped else None


def _is_negative(value: ast.expr) -> bool:
    """Return True for a value that may be an advantage with the other sign."""
    sign, _ = factors(value)
    names = [last_name(each) for each in nodes_in(value, ast.Name, ast.Attribute)]
    return sign < 0 or any(map(_COST.search, names))


def _name(node: ast.expr) -> str:
    """Return the name of a factor; for ``batch["adv"]`` the key."""
    node = _without_reductions(node)
    return _key(node) or last_name(node)


def _key(node: ast.expr) -> str:
    match node:
        case ast.Subscript(slice=ast.Constant(value=str() as key)):
            return key
        case _:
            return ""


def _without_reductions(node: ast.expr) -> ast.expr:
    """Return what is averaged, reshaped or indexed."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in _REDUCTIONS:
                node = inner
            case ast.Subscript(value=inner) if not _key(node):
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr="detach" | "to")):
                node = inner
            case _:
                return node


RULE = Rule(required_words=("max(|min(|maximum(|minimum(", "clamp(|clip(", "adv|gae|Adv|A |delta|td_err"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Linear(4, 3)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for step in range(20):
    states = torch.randn(64, 4)
    with torch.no_grad():
        dist = torch.distributions.Categorical(logits=policy(states))
        actions = dist.sample()
        old_log_probs = dist.log_prob(actions)
    rewards = (actions == states[:, :3].argmax(1)).float()
    advantages = rewards - rewards.mean()
    for epoch in range(4):
        dist = torch.distributions.Categorical(logits=policy(states))
        ratio = torch.exp(dist.log_prob(actions) - old_log_probs)
        clipped = torch.clamp(ratio, 0.8, 1.2)
        loss = -torch.max(ratio * advantages, clipped * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="LOS030",
    title="PPO takes the larger of its two surrogates",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.max(ratio": "torch.min(ratio"}),
    fix="Take the smaller objective: `-torch.min(ratio * advantages, clipped * advantages)`.",
    rule=RULE,
)
