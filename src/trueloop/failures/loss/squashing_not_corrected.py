"""The log-probability of an action that tanh has squashed is that of the value before tanh.

What you see
    The entropy in the loss of SAC has the wrong size: the policy saturates at the borders -1 and 1, or the temperature
    alpha drifts to 0 or without end.

Why it happens
    ``tanh`` changes the density: where it is flat, many values become nearly the same action. The density of the action
    is that of the sample divided by the slope ``1 - tanh(z) ** 2``, so the logarithm of the slope has to be subtracted.
    The uncorrected number has the right shape, and it rewards large values, which the correction would punish.

Fix
    Subtract the logarithm of the slope, summed over the dimensions of the action.

        z = distribution.rsample()
        action = torch.tanh(z)
        log_prob = distribution.log_prob(z) - torch.log(1 - action.pow(2) + 1e-6)
        log_prob = log_prob.sum(-1)

    Or use ``TransformedDistribution`` with a ``TanhTransform``.

When this is fine
    - The sample has no gradient (``sample()``), as in PPO: the correction does not depend on the parameters then.
    - The log-probability is corrected in another function.

How it is detected
    Only the linter finds it: a function draws ``z`` by ``rsample()``, computes ``tanh(z)``, and ``log_prob(z)`` of the
    same distribution, returns both or uses them in a loss, and contains no logarithm besides it.

References
    Haarnoja et al., 2018, "Soft Actor-Critic", appendix C, arXiv:1801.01290
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.loop_variables import stored_names
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_CORRECTION: Final = re.compile(
    r"\blog\(|log1p|softplus|logsigmoid|tanhtransform|correct|jacobian|squash", re.IGNORECASE
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each log-probability of a squashed sample without the correction."""
    for statement in source.nodes_of(ast.Assign):
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=sample)], value=ast.Call(func=ast.Attribute(attr="rsample", value=drawn))
            ):
                pass
            case _:
                continue
        function = function_of(source, statement)
        log_prob = next((each for each in nodes_in(function, ast.Call) if _is_log_prob(each, sample, drawn)), None)
        squashed = next((each for each in nodes_in(function, ast.Call) if _is_tanh(each, sample)), None)
        rest = ast.unparse(function).replace("nn.Tanh()", "")
        if log_prob is None or squashed is None or _CORRECTION.search(rest):
            continue
        if _is_passed_on(source, log_prob, function):
            yield Hit(
                message=f"`{ast.unparse(log_prob)}` is the log-probability before tanh, but the action is "
                f"`{ast.unparse(squashed)}`: subtract torch.log(1 - action ** 2).",
                node=log_prob,
                related=((squashed, "squashed here"),),
            )


def _is_log_prob(call: ast.Call, sample: str, distribution: ast.expr) -> bool:
    match call:
        case ast.Call(func=ast.Attribute(attr="log_prob", value=owner), args=[ast.Name(id=name)]):
            return name == sample and ast.unparse(owner) == ast.unparse(distribution)
        case _:
            return False


def _is_tanh(call: ast.Call, sample: str) -> bool:
    """Return True for ``torch.tanh(z)`` and ``z.tanh()``."""
    owner = getattr(call.func, "value", None)
    value = call.args[0] if call.args else owner
    return last_name(call.func) == "tanh" and dotted_name(value) == sample


def _is_passed_on(source: SourceFile, log_prob: ast.expr, function: Any) -> bool:
    """Return True if a function returns the log-probability, or computes a loss with it."""
    statement = source.statement_of(log_prob)
    if isinstance(statement, ast.Return):
        return True
    names = stored_names(statement)
    later = [each for each in nodes_in(function, ast.Return, ast.Assign) if each.lineno > statement.lineno]
    return any(
        part.id in names for each in later for part in nodes_in(each, ast.Name) if isinstance(part.ctx, ast.Load)
    )


RULE: Final = Rule(required_words=("rsample(", "tanh(", "log_prob("), find=find)

BAD = """
import torch
from torch import nn
from torch.distributions import Normal


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, states):
        mean, log_std = self.body(states).chunk(2, dim=1)
        distribution = Normal(mean, log_std.clamp(-5, 2).exp())
        z = distribution.rsample()
        action = torch.tanh(z)
        log_prob = distribution.log_prob(z)
        return action, log_prob


torch.manual_seed(0)
actor = Actor()
optimizer = torch.optim.Adam(actor.parameters(), lr=0.003)
for step in range(40):
    states = torch.randn(64, 3)
    action, log_prob = actor(states)
    value = -((action - torch.tanh(states[:, :1])) ** 2)
    loss = (0.2 * log_prob - value).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS062",
    title="Log-probability ignores that tanh squashes the action",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD, {"distribution.log_prob(z)\n": "distribution.log_prob(z) - torch.log(1 - action.pow(2) + 1e-6)\n"}
    ),
    fix="Subtract torch.log(1 - action ** 2 + 1e-6) from the log-probability.",
    rule=RULE,
)
