"""The log-probability is that of a new sample, not of the action that was taken.

What you see
    The policy does not improve: its gradient is noise, since each return belongs to another action.

Why it happens
    Every call of ``sample()`` draws a new one. ``dist.log_prob(dist.sample())`` is the log-probability of an action
    that the environment never got.

Fix
    Keep the action, and use it in both places.

        action = dist.sample()
        log_prob = dist.log_prob(action)

When this is fine
    - The log-probability of a new sample estimates an entropy: its mean, also times a temperature.
    - The return is that of the new sample: the environment or the critic gets it.

How it is detected
    Only the linter finds it: ``dist.log_prob(dist.sample())`` in a function that samples from the same distribution
    again, or that multiplies it with an advantage, a return or a reward. In the second case the new sample may have a
    name, if nothing else reads it. Also where the result of ``rsample()`` is drawn twice.

References
    torch.distributions, score function, https://docs.pytorch.org/docs/stable/distributions.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.possible_values import computed_from, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_RETURN: Final = re.compile(
    r"adv|return|reward|gain|(^|_)(rets?|rews?|gae|G|R|delta|td_?err\w*|discounted)(_|$|\d)", re.IGNORECASE
)
_COEFFICIENT: Final = re.compile(r"scale|coef|weight|log_?prob", re.IGNORECASE)
_MAX_DEPTH: Final = 4


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each log-probability of a sample that is drawn only for it, if another action was taken."""
    for call in source.all_calls:
        drawn = _sample_of_its_own(source, call)
        if drawn is None:
            continue
        other = next(
            (
                each
                for each in nodes_in(function_of(source, call), ast.Call)
                if last_name(each.func) in ("sample", "rsample") and each is not drawn and _owner(each) == _owner(drawn)
            ),
            None,
        )
        if other is not None and drawn in call.args:
            yield Hit(
                message=f"`{ast.unparse(drawn)}` draws another sample than the one that is used: its log-probability "
                "does not belong to the action.",
                node=drawn,
                related=((other, "the action is drawn here"),),
            )
            continue
        factor = _return_factor(source, call)
        if factor is not None:
            yield Hit(
                message=f"`{ast.unparse(drawn)}` draws a new action for the log-probability, but "
                f"`{ast.unparse(factor)}` is the result of the actions that were taken before.",
                node=drawn,
                related=((factor, "multiplied with it here"),),
            )


def _sample_of_its_own(source: SourceFile, call: ast.Call) -> ast.Call | None:
    """Return the call that draws the sample of ``dist.log_prob(...)``, if nothing else reads the sample."""
    match call:
        case ast.Call(func=ast.Attribute(attr="log_prob", value=distribution), args=[given]):
            pass
        case _:
            return None
    values = [given]
    if isinstance(given, ast.Name):
        function = function_of(source, call)
        values = assigned_in(function, given.id)
        names = [each for each in nodes_in(function, ast.Name) if each.id == given.id]
        reads = [each for each in names if isinstance(each.ctx, ast.Load)]
        is_known = len(names) == len(reads) + len(values) == 2
        values = values if is_known else []
    match values:
        case [ast.Call(func=ast.Attribute(attr="sample" | "rsample", value=sampled)) as drawn] if ast.unparse(
            distribution
        ) == ast.unparse(sampled):
            return drawn
        case _:
            return None


def _return_factor(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return the advantage, return or reward with which a log-probability is multiplied, also as a ratio."""
    for product in nodes_in(function_of(source, call), ast.BinOp):
        if not isinstance(product.op, ast.Mult):
            continue
        for policy, other in ((product.left, product.right), (product.right, product.left)):
            if _is_return(source, other) and call in computed_from(source, policy, _MAX_DEPTH):
                return other
    return None


def _is_return(source: SourceFile, node: ast.expr) -> bool:
    names = {last_name(e) for value in origins(source, node, 2) for e in nodes_in(value, ast.Name, ast.Attribute)}
    return any(_RETURN.search(each) for each in names) and not any(_COEFFICIENT.search(each) for each in names)


def _owner(call: ast.Call) -> str:
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


RULE = Rule(required_words=("log_prob(", "sample(", "torch"), find=find)

BAD = """
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Linear(4, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for step in range(50):
    states = torch.randn(32, 4)
    dist = Categorical(logits=policy(states))
    actions = dist.sample()
    rewards = (actions == (states[:, 0] > 0)).float()
    log_probs = dist.log_prob(dist.sample())
    loss = -(log_probs * (rewards - rewards.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(rewards.mean().item())
"""

FAILURE = Failure(
    code="LOS045",
    title="The log-probability is that of another sample",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"dist.log_prob(dist.sample())": "dist.log_prob(actions)"}),
    fix="Keep the action, and pass it to log_prob.",
    rule=RULE,
)
