"""The critic learns from scaled actions of the replay buffer, and judges unscaled ones of the policy.

What you see
    The critic's loss falls, but the policy does not improve, or only a little. In an environment whose actions lie
    between -1 and 1 the same code works.

Why it happens
    The policy ends in ``tanh``, and the function that chooses an action multiplies it by the bound of the environment.
    The replay buffer gets this action. In the update, ``critic(states, actor(states))`` gets actions between -1 and 1:
    others than those for which the critic knows the rewards. All shapes agree.

Fix
    Scale in one place: at the end of the policy, or where the environment makes its step.

        action = agent.act(state)  # between -1 and 1
        next_state, reward, done, info = env.step(bound * action)
        memory.push(state, action, reward, next_state, done)

When this is fine
    - The network of the policy itself multiplies by the bound.
    - The stored action is the one before it was scaled, or is divided by the bound when it is read.
    - The update multiplies the actions of the policy by the bound, too.

How it is detected
    Only the linter finds it: a function returns the output of a policy times a bound, the program stores what it
    returns together with a reward, and a critic that gets stored actions also gets actions of the same policy that
    nothing has multiplied by a bound. Nothing in the program divides by it.

References
    Lillicrap et al., "Continuous control with deep reinforcement learning", 2016, arXiv:1509.02971
    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018, appendix C, arXiv:1812.05905
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import computed_from, unpacked_call
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SCALE: Final = re.compile(
    r"bound|max_?a|a_?max|max_?act|scale|limit|high|act(ion)?s?_?range|r_act|amplitude", re.IGNORECASE
)
_STORING: Final = re.compile(
    r"append|push|^add|store|remember|^put|insert|memor|transition|replay|record", re.IGNORECASE
)
_DRAWING: Final = re.compile(r"sample|get_batch|draw|torch|tensor|from_numpy", re.IGNORECASE)
_POLICY: Final = re.compile(r"actor|policy|(^|_)(pi|mu)(_|$)", re.IGNORECASE)
_CRITIC: Final = re.compile(r"critic|(^|_)q(f|_?\d|_?net|_|$)|soft_q|q_?net|value", re.IGNORECASE)
_MIN_NUMBER: Final = 1.5
_DEPTH: Final = 5


class _Scaled(NamedTuple):
    """An action of a policy that is multiplied by a bound."""

    product: ast.BinOp
    scale: ast.expr
    function: ast.FunctionDef


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each action without a bound that a critic gets, if the stored actions have been multiplied by one."""
    for function in source.nodes_of(ast.FunctionDef):
        scaled = _scaled(source, function)
        if scaled is None or not _is_stored(source, function.name) or _is_divided(source, scaled.scale):
            continue
        call = next(_unscaled_calls(source, scaled), None)
        if call is not None:
            yield Hit(
                message=f"`{ast.unparse(call)}` gets actions that are not multiplied by `{ast.unparse(scaled.scale)}`, "
                "but those in the replay buffer are: the critic judges other actions than it has learned.",
                node=call,
                related=((scaled.product, "the stored action is scaled here"),),
            )


def _scaled(source: SourceFile, function: ast.FunctionDef) -> _Scaled | None:
    """Return the product with a bound that a function returns, of what a policy computes; None for other functions."""
    returned = [each.value for each in nodes_in(function, ast.Return) if each.value is not None]
    if any(last_name(call.func) == "backward" for call in nodes_in(function, ast.Call)) or function.name == "forward":
        return None
    for node in (part for value in returned for part in computed_from(source, value, _DEPTH)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and function_of(source, node) is function:
            for scale, action in ((node.left, node.right), (node.right, node.left)):
                if _is_scale(scale) and _policies(source, action):
                    return _Scaled(node, scale, function)
    return None


def _is_scale(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and node.value >= _MIN_NUMBER
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and any(
        _SCALE.search(last_name(each)) for each in nodes_in(node, ast.Name, ast.Attribute)
    )


def _policies(source: SourceFile, node: ast.expr) -> set[str]:
    """Return the policies, by name, whose output an expression is computed from."""
    nodes = list(computed_from(source, node, _DEPTH))
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    calls += [call for e in nodes if isinstance(e, ast.Name) and (call := unpacked_call(source, e)) is not None]
    return {last_name(each.func) for each in calls if _POLICY.search(last_name(each.func))}


def _is_stored(source: SourceFile, name: str) -> bool:
    """Return True if the program stores what a function returns, unchanged; also if another program calls it."""
    if name not in definitions(source).calls:
        return True
    actions = {
        (id(function_of(source, each)), each.targets[0].id)
        for each in source.nodes_of(ast.Assign)
        if isinstance(each.targets[0], ast.Name) and isinstance(each.value, ast.Call)
        if last_name(each.value.func) == name
    }
    for call in source.all_calls if actions else ():
        values = [inner for each in call.args for inner in getattr(each, "elts", [each])]
        own = [
            each
            for each in values
            if isinstance(each, ast.Name) and (id(function_of(source, each)), each.id) in actions
        ]
        if own and len(values) > 3 and _STORING.search(last_name(call.func)):
            return True
    return False


def _is_divided(source: SourceFile, scale: ast.expr) -> bool:
    """Return True if anything is divided by a bound, or the program rescales actions in a wrapper."""
    quotients = [each for each in source.nodes_of(ast.BinOp) if isinstance(each.op, ast.Div)]
    return any(last_name(each.right) == last_name(scale) or _is_scale(each.right) for each in quotients) or any(
        "wrapper" in ast.unparse(base).lower() for each in definitions(source).classes.values() for base in each.bases
    )


def _unscaled_calls(source: SourceFile, scaled: _Scaled) -> Iterator[ast.Call]:
    """Yield the calls of a critic with an action of the policy, if the same critic also gets stored actions."""
    policies = _policies(source, scaled.product)
    calls = [
        call
        for call in source.all_calls
        if len(call.args) == 2 and _CRITIC.search(last_name(call.func)) and not isinstance(call.args[1], ast.Starred)
    ]
    stored = {last_name(call.func) for call in calls if _is_drawn(source, call.args[1])}
    for call in calls:
        used = _policies(source, call.args[1])
        is_own = any(policy in each or each in policy for each in used for policy in policies)
        is_learned = any(last_name(call.func) in name or name in last_name(call.func) for name in stored)
        if is_own and is_learned and not _is_multiplied(source, call.args[1]):
            yield call


def _is_drawn(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a variable that is unpacked from a sample of the replay buffer, or made of one."""
    call: Any = unpacked_call(source, node) or next(
        (each for each in computed_from(source, node, 1) if isinstance(each, ast.Call)), None
    )
    return call is not None and bool(_DRAWING.search(ast.unparse(call))) and not _policies(source, node)


def _is_multiplied(source: SourceFile, node: ast.expr) -> bool:
    products = [each for each in computed_from(source, node, _DEPTH) if isinstance(each, ast.BinOp)]
    return any(isinstance(e.op, ast.Mult) and (_is_scale(e.left) or _is_scale(e.right)) for e in products)


RULE = Rule(
    required_words=("critic|q_net|Q_net|q1|qf|Critic", "actor|policy|Actor|Policy", ".backward(", ".step(", "* |*"),
    find=find,
)

BAD = """
import random
import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
bound, memory, state = 2.0, [], torch.zeros(2)
actor = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1), nn.Tanh())
critic_net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
critic_optimizer = torch.optim.Adam(critic_net.parameters(), lr=1e-3)


def critic(states, actions):
    return critic_net(torch.cat([states, actions], dim=1))


def act(state):
    with torch.no_grad():
        return bound * actor(state) + 0.2 * torch.randn(1)


for step in range(40):
    action = act(state)
    reward, next_state = -(action - 1).pow(2), torch.randn(2)
    memory.append((state, action, reward, next_state))
    state = next_state
    s, a, r, s2 = map(torch.stack, zip(*random.choices(memory, k=16)))
    with torch.no_grad():
        target = r + 0.9 * critic(s2, bound * actor(s2))
    critic_optimizer.zero_grad()
    nn.functional.mse_loss(critic(s, a), target).backward()
    critic_optimizer.step()
    actor_optimizer.zero_grad()
    (-critic(s, actor(s)).mean()).backward()
    actor_optimizer.step()
"""

FAILURE = Failure(
    code="LOS073",
    title="The critic gets actions on two scales",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"critic(s, actor(s))": "critic(s, bound * actor(s))"}),
    fix="Scale the actions in one place: in the policy, or where the environment makes its step.",
    rule=RULE,
)
