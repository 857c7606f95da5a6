"""The target entropy of Soft Actor-Critic has the wrong sign.

What you see
    The temperature alpha grows without limit, and the policy stays random: the entropy that it shall reach is higher
    than that of a useful policy. The critic's values grow with alpha.

Why it happens
    For continuous actions the target is minus the number of actions: the entropy of a density may be negative. The loss
    of the temperature raises alpha while the entropy is below the target, so a positive target keeps raising it.

Fix
    Put the minus in front of the number of actions:

        target_entropy = -float(action_dim)
        alpha_loss = -(log_alpha * (log_prob + target_entropy).detach()).mean()

When this is fine
    - Discrete actions, whose target is a share of the largest entropy: ``0.98 * log(number_of_actions)``.
    - The number of actions is subtracted: ``log_prob - action_dim``.

How it is detected
    Only the linter finds it: a log-probability plus a value called target entropy that is the number or the shape of
    the actions without a minus, or a log-probability minus one with a minus. Logarithms and constants do not count.

References
    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018, arXiv:1812.05905
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.possible_values import origins, possible_values, without_cycles
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TARGET: Final = re.compile(r"target_?ent|ent(ropy)?_?target|h_?bar", re.IGNORECASE)
_LOG_PROB: Final = re.compile(r"log_?p|(^|_)lp($|_)|logp|log_?prob", re.IGNORECASE)
_ENTROPY: Final = re.compile(r"^entrop(y|ies)$", re.IGNORECASE)
_ACTIONS: Final = re.compile(r"act|dim|shape", re.IGNORECASE)
_KEEPS_SIGN: Final = frozenset(
    ("float", "int", "tensor", "Tensor", "item", "prod", "to", "astype", "len", "FloatTensor")
)
_MAX_DEPTH: Final = 8


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each difference between the entropy and a target with the wrong sign."""
    reported: set[int] = set()
    for node in source.nodes_of(ast.BinOp):
        if not isinstance(node.op, ast.Add | ast.Sub):
            continue
        right_sign = 1 if isinstance(node.op, ast.Add) else -1
        for (log_prob, first), (target, second) in (
            ((node.left, 1), (node.right, right_sign)),
            ((node.right, right_sign), (node.left, 1)),
        ):
            value = _value(source, target) if _TARGET.search(last_name(target)) else None
            sign = 0 if value is None else _sign(source, value, _MAX_DEPTH)
            if value is None or id(value) in reported or first * second * sign * _log_prob_sign(log_prob) <= 0:
                continue
            reported.add(id(value))
            is_plain = isinstance(value, ast.Call | ast.Name | ast.Attribute) and first * second > 0
            edit = source.text.replace(value, f"-{source.text.segment(value)}") if is_plain else None
            yield Hit(
                message=f"`{ast.unparse(node)}` has the target entropy `{ast.unparse(value)}` with the wrong sign: it "
                "should be minus the number of actions.",
                node=value,
                related=((node, "used here"),) if not encloses(node, value) else (),
                fix=Fix((edit,), safe=False, description="Negate the target entropy") if edit else None,
            )


@without_cycles(None)
def _value(source: SourceFile, target: ast.expr) -> ast.expr | None:
    """Return the expression that a target entropy is assigned; None if there are several."""
    values = [each for each in possible_values(source, target) if not isinstance(each, ast.Constant)]
    if len(values) == 1 and isinstance(values[0], ast.Name | ast.Attribute) and _TARGET.search(last_name(values[0])):
        return _value(source, values[0])
    return values[0] if len(values) == 1 else None


def _log_prob_sign(node: ast.expr) -> int:
    """Return 1 for a log-probability, -1 for a negated one or an entropy, 0 for others."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_log_prob_sign(node.operand)
    names = [last_name(each) for each in nodes_in(node, ast.Name, ast.Attribute)]
    if any(map(_ENTROPY.search, names)):
        return -1
    return int(any(map(_LOG_PROB.search, names)))


def _sign(source: SourceFile, node: ast.expr, depth: int) -> int:
    """Return the sign of a multiple of the number of actions; 0 if it is unknown."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_sign(source, inner, depth)
        case ast.Constant(value=int() | float() as number):
            return 1 if number > 0 else -1
        case ast.BinOp(op=ast.Mult() | ast.Div(), left=left, right=right):
            return _sign(source, left, depth) * _sign(source, right, depth)
        case ast.Call() if last_name(node.func) in _KEEPS_SIGN:
            owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            return _sign(source, [*node.args, *owner][0], depth) if node.args or owner else 0
        case ast.Name() | ast.Attribute() | ast.Subscript():
            known = [each for each in origins(source, node) if isinstance(each, ast.UnaryOp | ast.BinOp)]
            is_number_of_actions = bool(_ACTIONS.search(ast.unparse(node)))
            return _sign(source, known[0], depth - 1) if known and depth else int(is_number_of_actions)
        case _:
            return 0


RULE = Rule(required_words=("arget", "ent", "alpha", "log"), find=find)

BAD = """
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
action_dim = 2
target_entropy = float(action_dim)
actor, critic = nn.Linear(4, 2 * action_dim), nn.Linear(4 + action_dim, 1)
log_alpha = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.Adam(actor.parameters(), lr=0.001)
alpha_optimizer = torch.optim.Adam([log_alpha], lr=0.01)
for step in range(20):
    states = torch.randn(32, 4)
    mean, log_std = actor(states).chunk(2, dim=-1)
    policy = Normal(mean, log_std.clamp(-5, 2).exp())
    actions = policy.rsample()
    log_prob = policy.log_prob(actions).sum(-1, keepdim=True)
    loss = (log_alpha.exp().detach() * log_prob - critic(torch.cat([states, actions], -1))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    alpha_loss = -(log_alpha * (log_prob + target_entropy).detach()).mean()
    alpha_optimizer.zero_grad()
    alpha_loss.backward()
    alpha_optimizer.step()
"""

FAILURE = Failure(
    code="LOS043",
    title="The target entropy has the wrong sign",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"= float(action_dim)": "= -float(action_dim)"}),
    fix="Use minus the number of actions as the target entropy.",
    rule=RULE,
)
