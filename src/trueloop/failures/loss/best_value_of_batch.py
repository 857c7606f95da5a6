"""The target of Q-learning contains the largest value of the whole batch instead of each next state's.

What you see
    The Q-values are too large and rise with the batch size, all states get nearly the same ones, and the return does
    not improve.

Why it happens
    ``target(next_states).max()`` without ``dim`` is one number: the best value of any action in any state of the batch.
    It broadcasts over the rewards, so no error is raised, and each state gets the value of the best one.

Fix
    Take the maximum over the actions of each state:

        best = target(next_states).max(dim=1).values
        y = rewards + gamma * best * (1 - dones)

When this is fine
    - Online Q-learning with one transition per update: the values of one state have the shape [actions].
    - A loop over the transitions of a batch, one state at a time.
    - A maximum that is only printed.

How it is detected
    Only the linter finds it, from the source code: a reward plus a product of a discount and a maximum without ``dim``.
    There has to be a sign of a batch: ``gather(1, actions)`` in the same function, or rewards that come from a sample
    of a replay memory, a loader, stacked values or an index of several rows.

References
    Mnih et al., 2015, "Human-level control through deep reinforcement learning", algorithm 1,
    https://doi.org/10.1038/nature14236
    torch.max, https://docs.pytorch.org/docs/stable/generated/torch.max.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of, is_loader
from trueloop.analysis.queries.possible_values import computed_from, loops_around, origins, unpacked_call
from trueloop.analysis.queries.reductions import reduction
from trueloop.analysis.queries.td_targets import discounted_values, stored_rows, without_views
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_MAXIMA: Final = frozenset(("max", "amax"))
_SAMPLED: Final = re.compile(
    r"batch|sample\w*\(|zip\(\*|stack\(|cat\(|randint\(|randperm\(|split\(|loader", re.IGNORECASE
)
_MAX_DEPTH: Final = 4


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each maximum over a batch that is a part of a TD target."""
    reported: set[int] = set()
    for reward, value in discounted_values(source):
        found = _maximum(source, value, _MAX_DEPTH)
        if found is None or id(found) in reported or not _is_batch(source, reward, found):
            continue
        reported.add(id(found))
        yield Hit(
            message=f"`{ast.unparse(found)}` is the largest value of the whole batch: all samples get the same next "
            "value. Take the maximum over the actions of each state, dim=1.",
            node=found,
            related=((value, "a part of the target here"),),
        )


def _maximum(source: SourceFile, node: ast.expr, depth: int) -> ast.expr | None:
    """Return the call that takes the maximum over all dimensions of which an expression has its value."""
    for value in origins(source, node, _MAX_DEPTH):
        inner = without_views(value)
        if inner is not value and depth:
            return _maximum(source, inner, depth - 1)
        found = reduction(inner, _MAXIMA)
        if found is not None:
            return inner if found.dim is None and not _is_single(source, found.operand) else None
        rows = stored_rows(source, inner) if isinstance(inner, ast.Name) else []
        for each in rows if depth else ():
            if (maximum := _maximum(source, each, depth - 1)) is not None:
                return maximum
    return None


def _is_single(source: SourceFile, node: ast.expr) -> bool:
    """Return True for values of one state: a row of a batch, or a batch of one by ``unsqueeze(0)``."""
    for each in computed_from(source, node, 2):
        match each:
            case ast.Call(func=ast.Attribute(attr="unsqueeze"), args=[*_, dim]) if integer(dim) == 0:
                return True
            case ast.Subscript(slice=ast.Constant(value=int() | None)) | ast.Subscript(slice=ast.Name(id="None")):
                return True
            case _:
                pass
    return isinstance(node, ast.Subscript)


def _is_batch(source: SourceFile, reward: ast.expr, found: ast.expr) -> bool:
    """Return True if the reward is certainly one for each sample of a batch."""
    if _is_one_of_a_loop(source, reward) or _is_one_of_a_loop(source, found):
        return False
    function = function_of(source, reward)
    if any(_gathers(each) for each in nodes_in(function, ast.Call, ast.Subscript)):
        return True
    read = [each for each in computed_from(source, reward, _MAX_DEPTH) if isinstance(each, ast.Name | ast.Attribute)]
    values = [value for each in read for value in origins(source, each, 1)]
    unpacked = [call for each in read if (call := unpacked_call(source, each)) is not None]
    return any(_SAMPLED.search(ast.unparse(each)) for each in (*values, *unpacked))


def _gathers(node: ast.Call | ast.Subscript) -> bool:
    """Return True for ``q.gather(1, actions)`` and ``q[torch.arange(n), actions]``."""
    if isinstance(node, ast.Subscript):
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else None
        return isinstance(first, ast.Call) and last_name(first.func) in ("arange", "range")
    if last_name(node.func) != "gather":
        return False
    given = [*node.args, *(each.value for each in node.keywords if each.arg == "dim")]
    return any(integer(each) in (1, -1) for each in given)


def _is_one_of_a_loop(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a variable of a loop over transitions, which is no loop over the batches of a loader."""
    names = {each.id for value in origins(source, node, 2) for each in nodes_in(value, ast.Name)}
    for loop in loops_around(source, node):
        targets = {each.id for each in nodes_in(loop.target, ast.Name)}
        is_range = isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) in ("range", "trange")
        if targets & names and not is_range and not is_loader(source, loop.iter):
            return True
    return False


RULE = Rule(required_words=("max(", "backward|grad(|loss", "gamma|discount|0.9|GAMMA", "torch"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
states, actions = torch.randn(1000, 4), torch.randint(2, (1000, 1))
next_states = states + 0.3 * (2 * actions - 1)
rewards, dones = -next_states.abs().sum(1), (torch.rand(1000) < 0.1).float()
q_net, target = (nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)) for _ in range(2))
optimizer = torch.optim.Adam(q_net.parameters(), lr=0.003)
for step in range(60):
    if step % 20 == 0:
        target.load_state_dict(q_net.state_dict())
    i = torch.randint(1000, (64,))
    with torch.no_grad():
        y = rewards[i] + 0.95 * (1 - dones[i]) * target(next_states[i]).max()
    loss = nn.functional.mse_loss(q_net(states[i]).gather(1, actions[i]).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS054",
    title="The TD target contains the best value of the batch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {".max()": ".max(dim=1).values"}),
    fix="Take the maximum over the actions: `target(next_states).max(dim=1).values`.",
    rule=RULE,
)
