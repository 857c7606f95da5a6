"""Q-learning trains the value of the best action instead of the action that was taken.

What you see
    The loss falls, but the return does not improve: all actions of a state get nearly the same value, or one action is
    chosen everywhere.

Why it happens
    Reward and next state are those of the action taken, so they say nothing about the other actions.
    ``q(states).max(1)`` has the shape of ``q(states).gather(1, actions)``, so no error is raised, and the target goes
    to whichever action already has the largest value. Exploration has no effect.

Fix
    Select the value of the action that the replay memory stores:

        values = q(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = smooth_l1_loss(values, rewards + gamma * next_values * (1 - dones))

When this is fine
    - The maximum is a part of the target: the value of the next state.
    - The policy always takes the best action, so the best action is the action taken.
    - A network that gets the action as an input, and the maximum over several sampled actions.

How it is detected
    Only the linter finds it, from the source code: a loss, or a difference, between a maximum over the actions, with
    gradients, and a reward plus a discounted value, in a function that gets the actions and does not read them.

References
    Mnih et al., 2015, "Human-level control through deep reinforcement learning", algorithm 1,
    https://doi.org/10.1038/nature14236
    PyTorch tutorial "Reinforcement Learning (DQN)",
    https://docs.pytorch.org/tutorials/intermediate/reinforcement_q_learning.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import function_of, is_loss_call
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import computed_from, is_without_gradients, origins, unpacked_call
from trueloop.analysis.queries.reductions import reduction
from trueloop.analysis.queries.td_targets import discounted_values, without_views
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ACTION: Final = frozenset(("action", "actions", "act", "acts", "a"))

_VALUE: Final = frozenset(("value", "values", "q"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each maximum over the actions that is compared with a TD target."""
    targets = {id(source.parents[id(reward)]) for reward, _ in discounted_values(source)}
    reported: set[int] = set()
    for node, one, other in _compared(source) if targets else ():
        for prediction, target in ((one, other), (other, one)):
            best = _best_value(source, prediction)
            if best is None or id(best) in reported or not _leaves_action_unread(function_of(source, best)):
                continue
            is_target = any(id(each) in targets for each in computed_from(source, target))
            if is_target and not is_without_gradients(source, best):
                reported.add(id(best))
                yield Hit(
                    message=f"`{ast.unparse(best)}` is the value of the best action, but the target is that of the "
                    "action taken, which nothing here reads. Select its value: `.gather(1, actions)`.",
                    node=best,
                    related=((node, "compared with the target here"),),
                )


def _compared(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """Yield each loss and each difference with its two sides."""
    losses = {id(each.node) for each in source.ops(OpKind.LOSS)}
    for each in source.nodes_of(ast.Call, ast.BinOp):
        match each:
            case ast.Call(args=[one, other, *_]) if id(each) in losses or is_loss_call(source, each):
                yield each, one, other
            case ast.BinOp(op=ast.Sub(), left=one, right=other):
                yield each, one, other
            case _:
                pass


def _best_value(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the maximum over the actions that an expression has as its value: ``q(s).max(1)[0]``."""
    for value in origins(source, node):
        inner = without_views(value)
        match inner:
            case ast.Subscript(value=call, slice=ast.Constant(value=0)) | ast.Attribute(value=call, attr="values"):
                inner = call
            case ast.Name():
                inner = unpacked_call(source, inner) or inner
            case _:
                pass
        found = reduction(inner, ("max", "amax"))
        if found is not None and found.dim is not None and integer(found.dim) in (1, -1):
            return inner
    return None


def _leaves_action_unread(function: ast.AST) -> bool:
    """Return True if a function assigns an action, and reads none, other than to convert it."""
    assigned = [each for each in nodes_in(function, ast.Name) if _is_action(each.id)]
    converted = {
        id(name)
        for each in nodes_in(function, ast.Assign)
        if all(isinstance(target, ast.Name) and _is_action(target.id) for target in each.targets)
        for name in nodes_in(each, ast.Name)
    }
    return bool(assigned) and all(isinstance(each.ctx, ast.Store) or id(each) in converted for each in assigned)


def _is_action(name: str) -> bool:
    """Return True for "action", "a" and "batch_actions", but not for "state_action_values"."""
    words = name_words(name)
    return bool(words & _ACTION) and not words & _VALUE


RULE = Rule(required_words=("max(", "backward(", "gamma|discount|0.9|GAMMA", "torch"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
states, actions = torch.randn(1000, 4), torch.randint(2, (1000, 1))
next_states = states + 0.3 * (2 * actions - 1)
memory = states, actions, -next_states.abs().sum(1), next_states, (torch.rand(1000) < 0.1).float()
q_net, target = (nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)) for _ in range(2))
optimizer = torch.optim.Adam(q_net.parameters(), lr=0.003)


def update(rows, gamma=0.95):
    state, action, reward, next_state, done = (each[rows] for each in memory)
    with torch.no_grad():
        y = reward + gamma * (1 - done) * target(next_state).max(1)[0]
    loss = nn.functional.mse_loss(q_net(state).max(1)[0], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for step in range(60):
    if step % 20 == 0:
        target.load_state_dict(q_net.state_dict())
    update(torch.randint(1000, (64,)))
"""

FAILURE = Failure(
    code="LOS077",
    title="The best action is trained instead of the action taken",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"q_net(state).max(1)[0]": "q_net(state).gather(1, action).squeeze(1)"}),
    fix="Select the value of the action taken: `q(states).gather(1, actions)`.",
    rule=RULE,
)
