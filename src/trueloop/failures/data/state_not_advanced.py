"""The loop over an episode never takes over the next state, so that every action is chosen for the first one.

What you see
    The agent does not learn, or only what to do first. All log-probabilities of an episode are nearly equal.

Why it happens
    ``env.step(action)`` returns the next state under a name of its own. Without ``state = next_state`` the variable
    that the policy reads keeps the result of ``env.reset()``.

Fix
    Take over the next state at the end of each step.

        next_state, reward, done, info = env.step(action)
        memory.append((state, action, reward, next_state))
        state = next_state

When this is fine
    - ``env.step`` assigns to the variable that the policy reads.
    - The policy reads the state from the environment itself.

How it is detected
    Only the linter finds it: a loop calls ``env.step``, reads a variable that was assigned from ``env.reset()`` before
    the loop, and never changes it.

References
    Gymnasium, "Basic Usage", https://gymnasium.farama.org/introduction/basic_usage/
"""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Edit, Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each step of an environment in a loop that reads only the state of the reset."""
    for step in source.nodes_of(ast.Assign):
        match step:
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id=following), _, *_])],
                value=ast.Call(func=ast.Attribute(attr="step", value=env), args=[_, *_]),
            ):
                pass
            case _:
                continue
        loop = _innermost_loop(source, step)
        if loop is None:
            continue
        for state in _reset_states(function_of(source, step), dotted_name(env)):
            if state != following and _is_only_read(loop, state):
                yield Hit(
                    message=f"`{state}` is never set to `{following}` in this loop, so every action is chosen for the "
                    "first state of the episode.",
                    node=step,
                    fix=_fix(source, loop, state, following),
                )


def _innermost_loop(source: SourceFile, node: ast.AST) -> ast.For | ast.While | None:
    parent = source.parents.get(id(node))
    while parent is not None and not isinstance(parent, ast.For | ast.While | ast.FunctionDef):
        parent = source.parents.get(id(parent))
    return parent if isinstance(parent, ast.For | ast.While) else None


def _reset_states(function: Any, env: str) -> Iterator[str]:
    """Yield the variables that get the result of ``env.reset()``."""
    for each in nodes_in(function, ast.Assign):
        match each:
            case ast.Assign(
                targets=[ast.Name(id=name) | ast.Tuple(elts=[ast.Name(id=name), *_])],
                value=ast.Call(func=ast.Attribute(attr="reset", value=owner)),
            ) if dotted_name(owner) == env:
                yield name
            case _:
                pass


def _is_only_read(loop: ast.For | ast.While, name: str) -> bool:
    """Return True if a loop reads a variable, but does not assign it, an item of it or its attribute."""
    uses = [each for each in nodes_in(loop, ast.Name) if each.id == name]
    changed_parts = [
        each.value
        for each in nodes_in(loop, ast.Subscript, ast.Attribute)
        if isinstance(each.ctx, ast.Store) or (isinstance(each, ast.Attribute) and each.attr.endswith("_"))
    ]
    is_changed = any(isinstance(each, ast.Name) and each.id == name for each in changed_parts)
    return bool(uses) and not is_changed and all(isinstance(each.ctx, ast.Load) for each in uses)


def _fix(source: SourceFile, loop: ast.For | ast.While, state: str, following: str) -> Fix | None:
    edit: Edit | None = source.text.insert_after(loop.body[-1], f"{state} = {following}")
    return Fix((edit,), safe=False, description="Take over the next state") if edit else None


RULE = Rule(required_words=(".step(", ".reset(", "torch", "for |while "), find=find)

BAD = """
import torch
from torch import nn
from torch.distributions import Categorical


class Corridor:
    def reset(self):
        self.place = torch.zeros(2)
        return self.place

    def step(self, action):
        self.place = self.place + torch.tensor([0.1, 0.2 * action - 0.1])
        return self.place, -abs(self.place[1].item()), self.place[0] > 1, {}


torch.manual_seed(0)
env = Corridor()
policy = nn.Linear(2, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for episode in range(20):
    state = env.reset()
    done = False
    log_probs, rewards = [], []
    while not done:
        dist = Categorical(logits=policy(state))
        action = dist.sample()
        next_state, reward, done, info = env.step(action)
        log_probs.append(dist.log_prob(action))
        rewards.append(reward)
    loss = -torch.stack(log_probs).sum() * sum(rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sum(rewards))
"""

FAILURE = Failure(
    code="DAT041",
    title="The next state is never taken over",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD, {"        rewards.append(reward)\n": "        rewards.append(reward)\n        state = next_state\n"}
    ),
    fix="Set the state to the next one at the end of each step.",
    rule=RULE,
)
