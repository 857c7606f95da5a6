"""The target of Q-learning contains the number of the best action instead of its value.

What you see
    The loss is finite and falls to a plateau, the Q-values end up around the discounted numbers of the actions, and the
    policy learns to prefer states whose best action has a high number.

Why it happens
    ``q.max(dim=1)`` returns two tensors of the same shape: the values, and their indices. The second one, like that of
    ``argmax``, is 0, 1 or 2. Multiplied by the discount it becomes a float and broadcasts like a value, so no error is
    raised.

Fix
    Take the first of the two:

        best, _ = target(next_states).max(dim=1)  # or .max(dim=1).values
        y = rewards + gamma * best * (1 - dones)

When this is fine
    - Double Q-learning: the indices select the values, ``target(s).gather(1, q(s).argmax(1, keepdim=True))``.

How it is detected
    Only the linter finds it, from the source code: a reward plus a product of a discount and ``argmax(...)``,
    ``max(dim=1)[1]``, ``.indices``, or the second of two variables that get the results of ``max``. Values are followed
    through variables, conversions and functions of the program.

References
    torch.max, https://docs.pytorch.org/docs/stable/generated/torch.max.html
    Mnih et al., 2015, "Human-level control through deep reinforcement learning", algorithm 1,
    https://doi.org/10.1038/nature14236
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import origins, unpacked_call
from trueloop.analysis.queries.td_targets import discounted_values, stored_rows, without_views
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_WITH_INDICES: Final = frozenset(("max", "min", "topk", "sort"))
_MAX_DEPTH: Final = 4


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each index of a maximum that is a part of a TD target."""
    reported: set[int] = set()
    for _, value in discounted_values(source):
        found = _index(source, value, _MAX_DEPTH)
        if found is not None and id(found) not in reported:
            reported.add(id(found))
            yield Hit(
                message=f"`{ast.unparse(found)}` gives the number of the best action, not its value: the target "
                "contains 0, 1, 2 ... in place of what the action is worth.",
                node=found,
                related=((value, "a part of the target here"),) if value is not found else (),
            )


def _index(source: SourceFile, node: ast.expr, depth: int) -> ast.expr | None:
    """Return the expression that computes the indices which an expression has as its value; None if it has others."""
    for value in origins(source, node, _MAX_DEPTH):
        inner = without_views(value)
        if inner is not value and depth:
            return _index(source, inner, depth - 1)
        if (found := _computed_index(source, inner)) is not None:
            return found
        rows = stored_rows(source, inner) if isinstance(inner, ast.Name) and depth else []
        for each in rows:
            if (found := _index(source, each, depth - 1)) is not None:
                return found
    return None


def _computed_index(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return what computes the indices that a node is: ``argmax``, or the second result of ``max``."""
    match node:
        case ast.Call(func=func) if last_name(func) == "argmax":
            return node
        case ast.Subscript(value=ast.Call() as call, slice=index) if integer(index) in (1, -1):
            return node if _returns_indices(call) else None
        case ast.Attribute(value=ast.Call() as call, attr="indices"):
            return node if _returns_indices(call) else None
        case ast.Name():
            call = unpacked_call(source, node)
            is_index = call is not None and _returns_indices(call) and _is_second(source, node, call)
            return call if is_index else None
        case _:
            return None


def _returns_indices(call: ast.Call) -> bool:
    """Return True for a call such as ``q.max(1)`` or ``torch.max(q, dim=1)``."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _WITH_INDICES:
        return False
    is_function = last_name(call.func.value) == "torch"
    return len(call.args) > is_function or any(each.arg == "dim" for each in call.keywords)


def _is_second(source: SourceFile, name: ast.Name, call: ast.Call) -> bool:
    """Return True if a variable gets the second result of a call."""
    for each in nodes_in(function_of(source, name), ast.Assign):
        if each.value is call and isinstance(target := each.targets[0], ast.Tuple) and len(target.elts) == 2:
            return last_name(target.elts[1]) == name.id != last_name(target.elts[0])
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
        y = rewards[i] + 0.95 * (1 - dones[i]) * target(next_states[i]).max(1)[1]
    loss = nn.functional.mse_loss(q_net(states[i]).gather(1, actions[i]).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS070",
    title="The TD target contains the index of the best action",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {".max(1)[1]": ".max(1)[0]"}),
    fix="Take the value instead of the index: `target(next_states).max(1).values`.",
    rule=RULE,
)
