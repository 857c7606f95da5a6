"""A decayed value is limited by its floor with ``min``, so it falls to the floor in the first step.

What you see
    The agent hardly explores, the temperature is cold or the learning rate tiny from the first step on, although a slow
    decay is configured. Other rates of decay change nothing.

Why it happens
    A floor is a lower limit, and the smallest value that is allowed is the larger one of two: ``max(value, floor)``.
    ``min(value, floor)`` returns the floor as long as the value is above it. The same is true of a value that grows and
    of its upper limit, with ``max``.

Fix
    Exchange the functions:

        epsilon = min(epsilon * 0.995, epsilon_min)  # wrong: epsilon_min in the first step
        epsilon = max(epsilon * 0.995, epsilon_min)  # right

When this is fine
    - The value grows: ``min(beta + step, beta_end)``.
    - The limit is an upper one: ``min(lr, lr_max)``.

How it is detected
    Only the linter finds it, from the source code: ``min`` of a value that is multiplied by a decay, or from which a
    step is subtracted, and of a limit that is called a minimum, an end, a floor or final. Or ``max`` of a value that
    grows and of a limit that is called a maximum or a ceiling.

References
    Python, "min", https://docs.python.org/3/library/functions.html#min
    PyTorch tutorial "Reinforcement Learning (DQN)",
    https://docs.pytorch.org/tutorials/intermediate/reinforcement_q_learning.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LOWER: Final = re.compile(r"(^|_)(min|minimum|end|final|floor|lowest|lower)(_|$)", re.IGNORECASE)
_UPPER: Final = re.compile(r"(^|_)(max|maximum|ceil|ceiling|highest|upper|cap)(_|$)", re.IGNORECASE)
_DECAY: Final = re.compile(r"decay|anneal|discount|shrink|cool", re.IGNORECASE)
_GROWTH: Final = re.compile(r"grow|incr|warm|anneal|rise", re.IGNORECASE)
_EXCHANGED: Final = {"min": "max", "minimum": "maximum", "max": "min", "maximum": "minimum"}


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``min`` of a decayed value and its floor, and each ``max`` of a growing value and its ceiling."""
    for call in source.all_calls:
        name = last_name(call.func)
        if name not in _EXCHANGED or len(call.args) != 2 or call.keywords:
            continue
        is_floor = name in ("min", "minimum")
        for value, limit in (call.args, call.args[::-1]):
            if (
                _is_limit(limit, is_floor=is_floor)
                and _are_related(value, limit)
                and _moves_to(source, call, value, is_floor=is_floor)
            ):
                way = "falls" if is_floor else "rises"
                yield Hit(
                    message=f"`{ast.unparse(call)}` {way} to `{ast.unparse(limit)}` in the first step: the limit of a "
                    f"value that {way} step by step is taken with `{_EXCHANGED[name]}`.",
                    node=call,
                    fix=_exchange(source, call, name),
                )
                break


def _exchange(source: SourceFile, call: ast.Call, name: str) -> Fix:
    text = source.text.segment(call.func).removesuffix(name) + _EXCHANGED[name]
    return Fix((source.text.replace(call.func, text),), safe=False, description=f"Call {_EXCHANGED[name]}")


def _is_limit(node: ast.expr, *, is_floor: bool) -> bool:
    """Return True for a variable that is named after a lower, or an upper limit only."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return False
    name, own, other = last_name(node), *((_LOWER, _UPPER) if is_floor else (_UPPER, _LOWER))
    return bool(own.search(name)) and not other.search(name)


def _are_related(value: ast.expr, limit: ast.expr) -> bool:
    """Return True if the names of a value and its limit share a word, or the value is a product."""
    words = [
        {word for each in nodes_in(node, ast.Name, ast.Attribute) for word in last_name(each).lower().split("_")}
        for node in (value, limit)
    ]
    is_product = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult)
    return is_product or any(len(word) > 1 for word in words[0] & words[1] - {"self"})


def _moves_to(source: SourceFile, call: ast.Call, value: ast.expr, *, is_floor: bool) -> bool:
    """Return True if a value falls, or rises, by itself: in the call, or in the statement before it."""
    statement: Any = source.statement_of(call)
    targets = {ast.unparse(each) for each in getattr(statement, "targets", ())}
    block = source.block(statement)
    before = block[block.index(statement) - 1] if statement in block[1:] else None
    if isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value) in targets:
        match before:
            case ast.AugAssign(target=target, op=op, value=by) if ast.unparse(target) in targets:
                return _is_step(op, by, is_floor=is_floor)
            case ast.Assign(targets=[target], value=ast.BinOp() as changed_value) if ast.unparse(target) in targets:
                return _is_changed(changed_value, targets, is_floor=is_floor)
            case _:
                return False
    return isinstance(value, ast.BinOp) and _is_changed(value, targets, is_floor=is_floor)


def _is_changed(value: ast.BinOp, targets: set[str], *, is_floor: bool) -> bool:
    """Return True for ``x * decay`` and ``x - step`` of the variable, and for ``start * decay ** step``."""
    sides = [(value.left, value.right)]
    sides += [(value.right, value.left)] if isinstance(value.op, ast.Mult | ast.Add) else []
    if any(ast.unparse(own) in targets and _is_step(value.op, by, is_floor=is_floor) for own, by in sides):
        return True
    powers = [each for each in nodes_in(value, ast.BinOp) if isinstance(each.op, ast.Pow)]
    return is_floor and isinstance(value.op, ast.Mult) and any(_is_decay(each.left) for each in powers)


def _is_step(op: ast.operator, by: ast.expr, *, is_floor: bool) -> bool:
    """Return True for a factor that is a decay, or a difference; for a rising value, a sum or a factor above 1."""
    number = by.value if isinstance(by, ast.Constant) and isinstance(by.value, int | float) else None
    if is_floor:
        is_smaller = isinstance(op, ast.Mult) and (_is_decay(by) or (number is not None and 0 < number < 1))
        return is_smaller or isinstance(op, ast.Sub)
    is_larger = isinstance(op, ast.Mult) and ((number or 0) > 1 or bool(_GROWTH.search(last_name(by))))
    return is_larger or isinstance(op, ast.Add)


def _is_decay(node: ast.expr) -> bool:
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value < 1
    return is_number or bool(_DECAY.search(last_name(node)))


RULE = Rule(
    required_words=(
        "min(|max(|minimum(|maximum(",
        re.compile(r"(min|max)(imum)?\(.*(min|end|final|floor|low|max|ceil|high|up|cap)", re.IGNORECASE),
        "torch|gym",
    ),
    find=find,
)

BAD = """
import random
import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
q_net = nn.Linear(2, 2)
optimizer = torch.optim.Adam(q_net.parameters(), lr=0.05)
epsilon, epsilon_min, total = 1.0, 0.05, 0.0
for step in range(60):
    state = torch.randn(2)
    action = random.randrange(2) if random.random() < epsilon else q_net(state).argmax().item()
    reward = state[action].item()
    total += reward
    optimizer.zero_grad()
    (q_net(state)[action] - reward).pow(2).backward()
    optimizer.step()
    epsilon = min(epsilon * 0.95, epsilon_min)
print(f"reward {total:.1f}")
"""

FAILURE = Failure(
    code="SCH019",
    title="A decayed value falls to its floor at once",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"min(epsilon * 0.95": "max(epsilon * 0.95"}),
    fix="Limit a falling value with `max(value, floor)`, and a rising one with `min(value, ceiling)`.",
    rule=RULE,
)
