"""The targets of the critic are computed from advantages that have been normalised.

What you see
    The policy may improve, but the value function stays poor: its explained variance is near zero or negative. The
    value loss falls, because the targets are close to the critic's own predictions.

Why it happens
    The return is the advantage plus the value: ``returns = advantages + values``. After
    ``(advantages - advantages.mean()) / advantages.std()`` the advantages no longer have the scale of the rewards, and
    the sum is the critic's prediction plus noise of size one. The shapes are right, so PyTorch raises no error.

Fix
    Compute the returns first, then normalise the advantages.

        returns = advantages + values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

When this is fine
    - The returns are computed before the advantages are normalised.
    - The normalised advantages are another variable than the advantages from which the returns are computed.
    - The mean is subtracted without a division, as in a duelling network: ``value + advantage - advantage.mean()``.
    - The normalised advantage is scaled back before the sum.

How it is detected
    Only the linter finds it: a sum of a value and an advantage, where the advantage was divided by its standard
    deviation before, or passed through a function called like ``normalize``. Values and advantages are recognised by
    their names. The linter follows variables, attributes, parameters and results of functions, also in other files.

References
    Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2016,
    arXiv:1506.02438
    Andrychowicz et al., "What Matters in On-Policy Reinforcement Learning?", 2021, arXiv:2006.05990
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of, without_conversions
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ADVANTAGE: Final = re.compile(r"adv|(^|_)gaes?($|_)", re.IGNORECASE)
_VALUE: Final = re.compile(r"(^|_)(v|vs|vals?|values?|baselines?|critic|v_?preds?)(_|$|\d)", re.IGNORECASE)
_NORMALISES: Final = re.compile(r"normali[sz]|standardi[sz]|whiten|z_?score", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sum of a value and a normalised advantage."""
    for total, pair in _sums(source):
        for advantage, value in (pair, pair[::-1]):
            names = last_name(without_conversions(advantage)), last_name(without_conversions(value))
            if not _ADVANTAGE.search(names[0]) or not _VALUE.search(names[1]) or _ADVANTAGE.search(names[1]):
                continue
            normalised = _normalised(source, advantage)
            if normalised is not None:
                yield Hit(
                    message=f"`{ast.unparse(total)}` adds the values to normalised advantages, so these returns do not "
                    "have the scale of the rewards: compute them before the advantages are normalised.",
                    node=total,
                    related=((normalised, "normalised here"),),
                )


def _sums(source: SourceFile) -> Iterator[tuple[ast.expr, tuple[ast.expr, ast.expr]]]:
    """Yield each sum with its two terms; ``[a + v for a, v in zip(advantages, values)]`` is a sum, too."""
    for node in source.nodes:
        match node:
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                yield node, (left, right)
            case ast.Call(func=ast.Attribute(attr="add", value=ast.Name(id="torch" | "np")), args=[left, right]):
                yield node, (left, right)
            case (
                ast.ListComp(
                    elt=ast.BinOp(op=ast.Add()),
                    generators=[ast.comprehension(iter=ast.Call(func=ast.Name(id="zip"), args=[left, right]))],
                ) as comprehension
            ):
                yield comprehension, (left, right)
            case _:
                pass


def _normalised(source: SourceFile, advantage: ast.expr) -> Any:
    """Return the expression or statement that normalised an advantage; None if there is none."""
    advantage = without_conversions(advantage)
    while isinstance(advantage, ast.Subscript):
        advantage = advantage.value
    for each in origins(source, advantage):
        if _is_normalisation(each):
            return each
    name = ast.unparse(advantage)
    divisions = [  # advantages /= advantages.std()
        each
        for each in walk(function_of(source, advantage))
        if isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Div) and ast.unparse(each.target) == name
    ]
    return next((each for each in divisions if each.lineno < advantage.lineno and _calls(each.value, "std")), None)


def _is_normalisation(node: ast.expr) -> bool:
    """Return True for ``(x - x.mean()) / (x.std() + 1e-8)``, or a function called normalize."""
    match node:
        case ast.BinOp(op=ast.Div(), left=ast.BinOp(op=ast.Sub(), right=mean), right=deviation):
            return _calls(mean, "mean") and _calls(deviation, "std")
        case ast.Call(args=[*arguments]):
            named = bool(_NORMALISES.search(last_name(node.func)))
            return named and any(_ADVANTAGE.search(last_name(each)) for each in arguments)
        case _:
            return False


def _calls(node: ast.expr, name: str) -> bool:
    """Return True if an expression calls a function with this name, such as "mean", or reads such a variable."""
    return any(name in last_name(each) for each in walk(node) if isinstance(each, ast.Name | ast.Attribute))


RULE = Rule(required_words=("adv|gae|Adv|ADV", "std|normali|standardi|whiten", "val|Val|critic|baseline| v"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
states, actions, rewards = torch.randn(64, 4), torch.randint(2, (64,)), torch.rand(64) * 5
critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam([*critic.parameters(), *policy.parameters()], lr=0.01)
for step in range(8):
    distribution = torch.distributions.Categorical(logits=policy(states))
    with torch.no_grad():
        values = critic(states)[:, 0]
        advantages = rewards - values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        returns = advantages + values
    policy_loss = -(distribution.log_prob(actions) * advantages).mean()
    loss = policy_loss + nn.functional.mse_loss(critic(states)[:, 0], returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_NORMALISE = "        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)\n"
_RETURNS = "        returns = advantages + values\n"

FAILURE = Failure(
    code="LOS024",
    title="Returns are computed from normalised advantages",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {_NORMALISE + _RETURNS: _RETURNS + _NORMALISE}),
    fix="Compute the returns before the advantages are normalised.",
    rule=RULE,
)
