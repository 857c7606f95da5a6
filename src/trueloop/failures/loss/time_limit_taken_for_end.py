"""The TD target leaves the value of the next state out where only a time limit has stopped the episode.

What you see
    The agent learns, but the values of good states stay too low and jump: a state is sometimes worth nothing, because
    the limit was reached there, which the agent cannot see.

Why it happens
    An episode ends in a terminal state, after which nothing follows, or because the environment stops it after a number
    of steps. Then the state has a future that was only not played. ``terminated or truncated`` mixes both.

Fix
    Store ``terminated``, and use ``done`` only to begin the next episode.

        next_state, reward, terminated, truncated, _ = env.step(action)
        memory.push(state, action, reward, next_state, terminated or truncated)  # wrong
        memory.push(state, action, reward, next_state, terminated)  # right

When this is fine
    - The state contains the time that is left, and the task is to do as much as possible within it.
    - The environment has no time limit, so ``truncated`` is never true.
    - Rollouts of PPO and A2C, which are cut there in any case and get the value of the last state added.

How it is detected
    Only the linter finds it, in a program with a replay buffer whose target is multiplied by ``1 - done`` or a mask: a
    transition that is stored with ``terminated or truncated`` and not with ``terminated``, also through a variable, or
    with the only flag of an environment that has no terminal states, such as Pendulum, or of one in the program whose
    ``step`` compares a count with a limit for it.

References
    Pardo et al., "Time Limits in Reinforcement Learning", 2018, https://arxiv.org/abs/1712.00378
    Gymnasium, "Handling time limits", https://gymnasium.farama.org/tutorials/gymnasium_basics/handling_time_limits/
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import origins, possible_values, unpacked_call
from trueloop.analysis.queries.td_targets import discounted_values, without_views
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed
from trueloop.failures.loss.end_of_episode_ignored import ENDLESS
from trueloop.failures.loss.end_of_episode_ignored.stored_flags import FLAG, MASK, REWARDS, STORING, words_of

_REPLAY: Final = re.compile(r"random\.(sample|choices)\(|(?i:mem\w*|buffer|replay\w*|rb|pool)\.sample(_?\w*)\(")
_LIMIT: Final = re.compile(
    r"(max|limit)_?\w*(step|time|len|iter|turn)|time_?limit|horizon|\b(time|elapsed\w*|\w*steps?) >=? \d", re.IGNORECASE
)
_TERMINATED: Final = re.compile(r"termin|^term$", re.IGNORECASE)
_TRUNCATED: Final = re.compile(r"trunc|time_?(limit|out)", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each stored transition whose flag is true at a time limit, if a target uses such a flag."""
    if not source.mentions(_REPLAY) or not any(_is_mask(factor) for _, factor in discounted_values(source)):
        return
    found: dict[int, Hit] = {}
    for call in source.all_calls:
        if not STORING.search(last_name(call.func)) or last_name(call.func) in ("print", "add_scalar"):
            continue
        parts = _parts(call)
        is_terminal_stored = any(_TERMINATED.search(last_name(each)) for each in parts)
        flags = (_limited_flag(source, each, may_be_either=not is_terminal_stored) for each in parts)
        flag = next((each for each in flags if each is not None), None)
        if flag is not None and words_of(call) & REWARDS and (id(flag) not in found or encloses(call, flag)):
            found[id(flag)] = Hit(
                message=f"`{ast.unparse(flag)}` is also true where only the time limit stopped the episode, and the "
                "target then leaves the value of the next state out. Store whether the state is terminal.",
                node=call,
                related=((flag, "the flag"),),
            )
    yield from found.values()


def _parts(call: ast.Call) -> list[ast.expr]:
    """Return what a call stores, and the parts of a tuple, without conversions."""
    values = [*call.args, *(each.value for each in call.keywords)]
    return [without_views(inner) for each in values for inner in getattr(each, "elts", [each])]


def _limited_flag(source: SourceFile, value: ast.expr, *, may_be_either: bool) -> ast.expr | None:
    """Return ``terminated or truncated`` from which a stored value comes, or the flag of an endless environment."""
    if len(possible_values(source, value)) > 1:  # a setting decides
        return None
    for each in origins(source, value, 3):
        names = [last_name(name) for name in nodes_in(each, ast.Name, ast.Attribute)]
        is_either = isinstance(each, ast.BoolOp | ast.BinOp) and isinstance(each.op, ast.Or | ast.BitOr | ast.Add)
        is_either |= isinstance(each, ast.Call) and last_name(each.func) in ("logical_or", "bool", "max")
        if may_be_either and is_either and any(map(_TRUNCATED.search, names)) and len(names) < 5:
            return each
        call = unpacked_call(source, each) if isinstance(each, ast.Name) and FLAG.match(each.id) else None
        if call is not None and last_name(call.func) == "step" and (_is_endless(source, call) or _own_limit(source)):
            return each
    return None


def _is_endless(source: SourceFile, step: ast.Call) -> bool:
    """Return True for a step with four results in an environment that has no terminal states."""
    statement = source.statement_of(step)
    results = statement.targets[0] if isinstance(statement, ast.Assign) else None
    made = [each.args[0] for each in definitions(source).calls.get("make", ()) if each.args]
    names = [value for each in made for value in origins(source, each) if isinstance(value, ast.Constant)]
    is_old = isinstance(results, ast.Tuple) and len(results.elts) == 4
    return is_old and bool(names) and all(ENDLESS.search(str(each.value)) for each in names)


def _own_limit(source: SourceFile) -> bool:
    """Return True if the ``step`` of an environment in the program counts a limit among the terminal states."""
    method = definitions(source).functions.get("step")
    results = [each.value for each in nodes_in(method, ast.Return)] if method is not None else []
    for flag in [each.elts[2] for each in results if isinstance(each, ast.Tuple) and len(each.elts) in (4, 5)]:
        for value in origins(source, flag, 3):
            around = source.parents.get(id(source.statement_of(value))) if isinstance(value, ast.Constant) else None
            tested = around.test if isinstance(around, ast.If) else value  # if self.steps >= limit: done = True
            if any(_LIMIT.search(ast.unparse(each)) for each in nodes_in(tested, ast.Compare)):
                return True
    return False


def _is_mask(factor: ast.expr) -> bool:
    """Return True for ``1 - done``, ``~done`` and a variable that is called a mask."""
    match without_views(factor):
        case (
            ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1), right=flag)
            | ast.UnaryOp(op=ast.Invert() | ast.Not(), operand=flag)
        ):
            names = [last_name(each) for each in nodes_in(flag, ast.Name, ast.Attribute)]
            return any(FLAG.match(each) or each in ("d", "D") for each in names)
        case ast.Name() | ast.Attribute() | ast.Subscript() as name:
            return bool(MASK.search(last_name(name)))
        case _:
            return False


RULE = Rule(
    required_words=(
        "step(",
        "sample|choices",
        "gamma|GAMMA|discount|0.9",
        "trunc|Pendulum|Cheetah|Swimmer|Reacher|def step(",
    ),
    find=find,
)

BAD = """
import copy
import random

import torch
from torch import nn


class Walk:
    def reset(self):
        self.position, self.steps = random.uniform(-1, 1), 0
        return [self.position]

    def step(self, action):
        self.position, self.steps = self.position + 0.2 * (2 * action - 1), self.steps + 1
        return [self.position], 1.0, abs(self.position) > 1, self.steps >= 20, {}


torch.manual_seed(0)
env, memory = Walk(), []
q_net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 2))
target_net = copy.deepcopy(q_net)
optimizer = torch.optim.Adam(q_net.parameters(), lr=0.005)
state = env.reset()
for step in range(200):
    action = random.randrange(2)
    next_state, reward, terminated, truncated, _ = env.step(action)
    done = terminated or truncated
    memory.append((state, action, reward, next_state, done))
    state = env.reset() if done else next_state
    s, a, r, s2, d = map(torch.tensor, zip(*random.choices(memory, k=32)))
    with torch.no_grad():
        target = r + 0.95 * target_net(s2).max(1).values * (1 - d.float())
    loss = nn.functional.smooth_l1_loss(q_net(s).gather(1, a[:, None])[:, 0], target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        target_net.load_state_dict(q_net.state_dict())
"""

FAILURE = Failure(
    code="LOS078",
    title="A time limit is treated as a terminal state",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"next_state, done))": "next_state, terminated))"}),
    fix="Store `terminated` with the transition; use `terminated or truncated` only to begin the next episode.",
    rule=RULE,
)
