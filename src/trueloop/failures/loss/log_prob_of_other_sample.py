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
    - The sample is used nowhere else, as for the mean log-probability that estimates an entropy.

How it is detected
    Only the linter finds it: ``dist.log_prob(dist.sample())`` in a function that samples from the same distribution
    again. Also where the result of ``rsample()`` is drawn twice.

References
    torch.distributions, score function, https://docs.pytorch.org/docs/stable/distributions.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each log-probability of a sample that is drawn only for it, if the function draws another one."""
    for call in source.all_calls:
        match call:
            case ast.Call(
                func=ast.Attribute(attr="log_prob", value=distribution),
                args=[ast.Call(func=ast.Attribute(attr="sample" | "rsample", value=sampled)) as drawn],
            ) if ast.unparse(distribution) == ast.unparse(sampled):
                pass
            case _:
                continue
        others = [
            each
            for each in nodes_in(function_of(source, call), ast.Call)
            if last_name(each.func) in ("sample", "rsample") and each is not drawn and _owner(each) == _owner(drawn)
        ]
        if others:
            yield Hit(
                message=f"`{ast.unparse(drawn)}` draws another sample than the one that is used: its log-probability "
                "does not belong to the action.",
                node=drawn,
                related=((others[0], "the action is drawn here"),),
            )


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
