"""Discounted returns are added up from the first reward, or are stored in the opposite order of the actions.

What you see
    The policy hardly improves, or learns to end episodes early. The loss and the gradients look normal.

Why it happens
    The return of a step is the discounted sum of the rewards that follow it, so it is computed from the last reward to
    the first: ``total = reward + gamma * total``. From the first to the last, the same line sums up the past. After a
    loop over ``reversed(rewards)``, ``append`` stores the return of the last step first.

Fix
    Loop over the rewards backwards, and insert each return at the front.

        total, returns = 0.0, []
        for reward in reversed(rewards):
            total = reward + gamma * total
            returns.insert(0, total)

When this is fine
    - The list is reversed after the loop.
    - The log-probabilities are collected in the same order.
    - A running discounted sum of past rewards normalises them, and is not stored for each step.

How it is detected
    The sanitizer reads the weights of the log-probabilities in a loss, in the order in which these were computed. It
    searches the program's variables for a list of as many numbers, from which the weights follow exactly: as its
    discounted sums from the first number on, or as its returns in reversed order. They may be normalised.

    The linter finds it in the source code: a loop over rewards contains ``total = reward + gamma * total`` and stores
    ``total`` in a list. It is reported if it runs forwards, or if it runs backwards and appends, unless the file
    reverses anything else. The same sum in ``itertools.accumulate`` is judged in the same way.

References
    Sutton and Barto, "Reinforcement Learning: An Introduction", 2nd edition, 2018, section 13.3,
    http://incompleteideas.net/book/the-book-2nd.html
    PyTorch examples, REINFORCE,
    https://github.com/pytorch/examples/blob/main/reinforcement_learning/reinforce.py
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.td_targets import product_factors
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import Event

_REWARDS: Final = re.compile(r"reward|(^|_)(rs?|rews?)($|_)", re.IGNORECASE)
_DISCOUNT: Final = re.compile(r"gamma|discount", re.IGNORECASE)
_REVERSALS: Final = frozenset(("appendleft", "flip", "flipud", "reverse", "reversed", "inverse"))
_MIN_DISCOUNT: Final = 0.8
MIN_TIMES: Final = 2


@dataclass(slots=True, kw_only=True, eq=False)
class DiscountedSumsRead(Event):
    """The weights of log-probabilities in a loss are discounted sums of rewards in the wrong order."""

    order: str
    """"past" for the sums from the first reward on, "reversed" for the returns in the opposite order."""
    steps: int


class Detector(BaseDetector):
    """Counts the losses with discounted sums in the wrong order."""

    def __init__(self) -> None:
        self._times = 0

    def on_discounted_sums_read(self, event: DiscountedSumsRead) -> Evidence | None:
        """Return evidence for the second such loss."""
        self._times += 1
        if self._times != MIN_TIMES:
            return None
        sums = {
            "past": "the discounted sum of the rewards up to its own step instead of those from its step on",
            "reversed": "the return of the step that is as far from the last one as its own is from the first",
        }
        return Evidence(
            message=f"Each of the {event.steps} log-probabilities in the loss is multiplied with {sums[event.order]}.",
            location=event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if there was no such loss."""
        return "" if self._times else "no loss had one term for each step of an episode"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loop that stores discounted returns in the wrong order."""
    loops = list(source.nodes_of(ast.For))
    for loop in loops:
        total = _accumulated(loop)
        stored = _stores(loop, total) if total else []
        if len(stored) != 1 or not _is_reward_loop(loop):
            continue
        reversals = [each for each in source.nodes_of(ast.Call, ast.Slice) if _is_reversal(each)]
        within = set(map(id, walk(loop.iter)))
        if any(id(each) not in within for each in reversals):
            continue
        store = stored[0]
        if not reversals:
            if _is_forward(loop):
                yield Hit(
                    message=f"`{ast.unparse(_assignment(loop, total))}` adds up the rewards from the first to the "
                    f"last, so `{total}` is a discounted sum of the past instead of the return.",
                    node=loop,
                    related=((store, "stored here"),),
                )
        elif isinstance(store, ast.Call) and last_name(store.func) == "append" and _is_used(source, loop, store):
            yield Hit(
                message=f"`{ast.unparse(store)}` in a loop over the reversed rewards stores the return of the last "
                "step first, in the opposite order of the actions.",
                node=store,
                related=((loop, "the rewards are reversed here"),),
            )
    yield from _accumulate_calls(source)


def _accumulate_calls(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``accumulate(reversed(rewards), lambda total, r: r + gamma * total)`` that is not reversed back."""
    for call in source.all_calls:
        match call:
            case ast.Call(
                func=func,
                args=[rewards, ast.Lambda(args=ast.arguments(args=[total, _]), body=ast.BinOp(op=ast.Add()) as body)],
            ) if last_name(func) == "accumulate":
                pass
            case _:
                continue
        is_return = _discounts(body.left, total.arg) or _discounts(body.right, total.arg)
        names = [last_name(each) for each in nodes_in(rewards, ast.Name, ast.Attribute)]
        within = set(map(id, walk(rewards)))
        reversals = [each for each in source.nodes_of(ast.Call, ast.Slice) if _is_reversal(each)]
        if not is_return or not any(map(_REWARDS.search, names)) or any(id(each) not in within for each in reversals):
            continue
        text = ast.unparse(call)
        yield Hit(
            message=f"`{text}` starts at the last reward, and nothing reverses the result: the return of the last step "
            "comes first, in the opposite order of the actions."
            if reversals
            else f"`{text}` adds up the rewards from the first to the last: a discounted sum of the past instead of "
            "the return.",
            node=call,
        )


def _assignment(loop: ast.For, total: str) -> ast.Assign:
    """Return the assignment of the discounted sum."""
    return next(each for each in loop.body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == total)


def _accumulated(loop: ast.For) -> str:
    """Return the variable that a loop sets to ``reward + gamma * variable``; "" if there is none."""
    inner = {each.id for each in nodes_in(loop.target, ast.Name)}
    for each in loop.body:
        if not isinstance(each, ast.Assign) or len(each.targets) != 1 or not isinstance(each.targets[0], ast.Name):
            continue
        name, value = each.targets[0].id, each.value
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
            continue
        for term, reward in ((value.left, value.right), (value.right, value.left)):
            names = {part.id for part in nodes_in(reward, ast.Name)}
            if (
                name not in names
                and names & inner
                and _discounts(term, name)
                and isinstance(reward, ast.Name | ast.Subscript)
            ):
                return name
    return ""


def _discounts(node: ast.expr, name: str) -> bool:
    """Return True for a product of a variable and a discount."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    factors = product_factors(node)
    return any(isinstance(each, ast.Name) and each.id == name for each in factors) and any(map(_is_discount, factors))


def _is_discount(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and _MIN_DISCOUNT <= node.value < 1
    return _DISCOUNT.search(last_name(node)) is not None


def _stores(loop: ast.For, total: str) -> list[Any]:
    """Return the statements' calls and subscripts that store the sum in a list, and all others that append."""
    calls = [each for each in nodes_in(loop, ast.Call) if last_name(each.func) in ("append", "insert") and each.args]
    found: list[Any] = [each for each in calls if total in ast.unparse(each.args[-1])]
    if len(found) < len(calls):
        return []
    assigned = [each for each in loop.body if isinstance(each, ast.Assign) and _is_name(each.value, total)]
    found += [each.targets[0] for each in assigned if isinstance(each.targets[0], ast.Subscript)]
    return found


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_reward_loop(loop: ast.For) -> bool:
    """Return True if a loop is over something called rewards, by value or by index."""
    names = [last_name(each) for each in nodes_in(loop.iter, ast.Name, ast.Attribute)]
    names += [last_name(each.value) for each in nodes_in(loop, ast.Subscript) if isinstance(each.ctx, ast.Load)]
    return any(map(_REWARDS.search, names))


def _is_forward(loop: ast.For) -> bool:
    """Return True for a loop over a list, or over ``range(n)`` with subscripts of the same index."""
    node = loop.iter
    if isinstance(node, ast.Call) and last_name(node.func) == "range":
        return len(node.args) == 1
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("enumerate", "zip", "list")
    return isinstance(node, ast.Name | ast.Attribute)


def _is_reversal(node: ast.AST) -> bool:
    """Return True for an expression that reverses a sequence, or counts down."""
    if isinstance(node, ast.Call):
        steps = node.args[2:] if last_name(node.func) == "range" else []
        return last_name(node.func) in _REVERSALS or any(map(_is_negative, steps))
    return isinstance(node, ast.Slice) and node.step is not None and _is_negative(node.step)


def _is_negative(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _is_used(source: SourceFile, loop: ast.For, store: ast.Call) -> bool:
    """Return True if the list is used after the loop, as a whole."""
    assert isinstance(store.func, ast.Attribute)
    name = ast.unparse(store.func.value)
    after = [
        each
        for each in nodes_in(function_of(source, loop), ast.Call, ast.Return)
        if each.lineno > (loop.end_lineno or loop.lineno)
    ]
    values = [arg for each in after for arg in (each.args if isinstance(each, ast.Call) else [each.value])]
    return any(each is not None and ast.unparse(each) == name for each in values)


RULE = Rule(
    required_words=("log_prob|policy|actor|accumulate(", "reward", "append(|insert(|returns|accumulate("), find=find
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
gamma = 0.99
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.003)
for episode in range(10):
    states, log_probs, rewards = torch.randn(20, 4), [], []
    for state in states:
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        log_probs.append(choice.log_prob(action))
        rewards.append(float(action == (state[0] > 0)))
    total, returns = 0.0, []
    for reward in rewards:
        total = reward + gamma * total
        returns.append(total)
    loss = -(torch.stack(log_probs) * torch.tensor(returns)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS018",
    title="Discounted returns are computed in the wrong order",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD, {"for reward in rewards:": "for reward in reversed(rewards):", "returns.append(": "returns.insert(0, "}
    ),
    fix="Loop over reversed(rewards), and store each return with insert(0, ...).",
    rule=RULE,
    detector=Detector,
)
