"""PPO compares the policy with itself: the old log-probabilities are computed in the same step as the new ones.

What you see
    The ratio is exactly 1, the clip fraction and the approximate KL divergence are 0 in every epoch. The policy changes
    much between two rollouts, and the return goes up and down or collapses with more epochs.

Why it happens
    The ratio divides the probability of an action by that under the policy that chose it. If both come from the current
    policy, also with ``detach()``, it is 1 after any number of updates. The gradient is still that of a policy
    gradient, so the program learns at first, but nothing is clipped, and from the second update on the data are from
    another policy.

Fix
    Compute the old log-probabilities once, before the epochs, and store them with the rollout.

        with torch.no_grad():
            old_log_probs = policy(states).log_prob(actions)
        for epoch in range(4):
            ratio = torch.exp(policy(states).log_prob(actions) - old_log_probs)

When this is fine
    - There is one update for each rollout: ``exp(logp - logp.detach())`` is then right.
    - The old log-probabilities are stored in the first epoch only.
    - The old policy is another network.

How it is detected
    Only the linter finds it, in loops that step an optimizer and repeat over states and actions from outside the loop.
    It reports the exponential of a difference if both sides are the same expression, one of them detached, with all
    variables replaced by what they were assigned in the loop, and if a clipped ratio is used. It also reports a clipped
    ratio whose new log-probability comes from a network called old, which gets the weights of another one.

References
    Schulman et al., "Proximal Policy Optimization Algorithms", 2017, arXiv:1707.06347
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.loops import assigned_names
from trueloop.analysis.queries.possible_values import computed_from, enclosing_nodes, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_FRESH: Final = re.compile(
    r"r?sample|generate|rollout|collect|play|act|get_action|select|choose|interact|reset|run_episode"
)
_BUFFER: Final = re.compile(r"buffer|memory|rollout|storage|batch|traj|(^|_)mem|data")
_SAME: Final = frozenset(("detach", "clone", "data", "contiguous", "float", "squeeze"))
_OLD: Final = re.compile(r"(^|_)(old|prev|previous|behaviou?r)(_|$)", re.IGNORECASE)
_MAX_DEPTH: Final = 8


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ratio of the current policy and itself that is clipped in a loop of several updates."""
    for ratio in source.all_calls:
        difference = _exponent(source, ratio)
        if difference is None or not _is_clipped(source, ratio):
            continue
        old_network = _old_network(source, difference.left)
        if old_network is not None and _old_network(source, difference.right) is None:
            yield Hit(
                message=f"`{ast.unparse(difference.left)}` comes from `{ast.unparse(old_network)}`, which does not "
                f"change during the updates: `{ast.unparse(ratio)}` is always 1, and the policy gets no gradient.",
                node=ratio,
                related=((old_network, "the old policy"),),
            )
            continue
        for new, old in _pairs(source, difference):
            loop = _update_loop(source, new)
            if loop is None:
                continue
            texts = [_expanded(source, each, loop, _MAX_DEPTH) for each in (new, old)]
            if texts[0] == texts[1] and "Call:" in texts[0] and _has_older_data(source, loop, new):
                yield Hit(
                    message=f"`{ast.unparse(ratio)}` is always 1: `{ast.unparse(old)}` comes from the current policy, "
                    "in each of the updates. Compute the old log-probabilities once, before this loop.",
                    node=ratio,
                    related=((loop, "this loop updates the policy several times for the same data"),),
                )
                break


def _old_network(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the network called old, as ``self.policy_old``, if it alone computes a value; None for other values."""
    called: list[ast.Attribute | ast.Name] = []
    for each in computed_from(source, node):
        network = each.func if isinstance(each, ast.Call) else None
        while isinstance(network, ast.Attribute) and network.attr not in _networks(source):
            network = network.value
        if isinstance(network, ast.Attribute | ast.Name) and last_name(network) in _networks(source):
            called.append(network)
    names = {last_name(each) for each in called}
    return called[0] if names and names <= {each for each in _networks(source) if _OLD.search(each)} else None


@lru_cache(maxsize=1)
def _networks(source: SourceFile) -> frozenset[str]:
    """Return the names of the networks that get the weights of another one, and of those others."""
    found: set[str] = set()
    for call in definitions(source).calls.get("load_state_dict", []):
        match call:
            case ast.Call(
                func=ast.Attribute(value=copy),
                args=[ast.Call(func=ast.Attribute(attr="state_dict", value=network)), *_],
            ):
                found |= {last_name(copy), last_name(network)}
            case _:
                pass
    return frozenset(found - {""})


def _exponent(source: SourceFile, call: ast.Call) -> ast.BinOp | None:
    """Return the difference of ``torch.exp(a - b)`` or ``(a - b).exp()``, also through variables and sums."""
    inner: Any = None
    match call:
        case ast.Call(func=ast.Attribute(attr="exp"), args=[argument]):
            inner = argument
        case ast.Call(func=ast.Attribute(attr="exp", value=owner), args=[]):
            inner = owner
        case _:
            return None
    for _ in range(_MAX_DEPTH):
        match inner:
            case ast.BinOp(op=ast.Sub()):
                return inner
            case ast.Call(func=ast.Attribute(attr="sum" | "clamp" | "squeeze" | "mean", value=owner)) if (
                last_name(owner) != "torch"
            ):
                inner = owner
            case ast.Name():
                values = possible_values(source, inner)
                inner = values[0] if len(values) == 1 else None
            case _:
                return None
    return None


def _is_clipped(source: SourceFile, ratio: ast.Call) -> bool:
    """Return True if the function also uses the ratio clipped."""
    statement = source.statement_of(ratio)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    texts = {ast.unparse(each) for each in targets} | {ast.unparse(ratio)}
    for call in nodes_in(function_of(source, ratio), ast.Call):
        if last_name(call.func) in ("clamp", "clip"):
            operands = [*call.args[:1], *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
            if any(ast.unparse(each) in texts for each in operands):
                return True
    return False


def _pairs(source: SourceFile, difference: ast.BinOp) -> list[tuple[ast.expr, ast.expr]]:
    """Return the two sides of a difference; for two parameters, what each call passes."""
    new, old = difference.left, difference.right
    function = function_of(source, difference)
    arguments = getattr(function, "args", None)
    parameters = {each.arg for each in nodes_in(arguments, ast.arg)} if arguments else set[str]()
    if isinstance(new, ast.Name) and isinstance(old, ast.Name) and {new.id, old.id} <= parameters:
        return list(zip(possible_values(source, new), possible_values(source, old), strict=False))
    return [(new, old)]


def _update_loop(source: SourceFile, node: ast.expr) -> Any:
    """Return the innermost loop around a node, if it steps an optimizer in each iteration, and gets no new data."""
    loop = next((each for each in enclosing_nodes(source, node) if isinstance(each, ast.For | ast.While)), None)
    if loop is None or _runs_once(source, loop):
        return None
    calls = list(nodes_in(loop, ast.Call))
    steps = [each for each in calls if last_name(each.func) == "step" and not each.args]
    is_fresh = any(_FRESH.fullmatch(last_name(each.func).removeprefix("_")) for each in calls)
    return loop if not is_fresh and any(_is_unconditional(source, each, loop) for each in steps) else None


def _runs_once(source: SourceFile, loop: Any) -> bool:
    """Return True for a loop over ``range(1)``."""
    match loop:
        case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[count])):
            return any(getattr(each, "value", None) == 1 for each in (count, *possible_values(source, count)))
        case _:
            return False


def _is_unconditional(source: SourceFile, node: ast.AST, loop: ast.AST) -> bool:
    inside = takewhile(lambda each: each is not loop, enclosing_nodes(source, node))
    return not any(isinstance(each, ast.If) for each in inside)


def _expanded(source: SourceFile, node: ast.expr, loop: ast.AST, depth: int) -> str:
    """Return the text of an expression in which variables are replaced by what the loop assigned to them."""
    match node:
        case ast.Call(func=ast.Attribute(attr=attr, value=inner), args=[]) if attr in _SAME:
            return _expanded(source, inner, loop, depth)
        case ast.Attribute(attr="data", value=inner):
            return _expanded(source, inner, loop, depth)
        case ast.Name(id=name) if depth:
            assigned = _assigned(source, node, loop)
            if assigned is None:
                return name
            value, item = assigned
            return _expanded(source, value, loop, depth - 1) + item
        case _:
            inner = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr | ast.keyword)]
            text = ast.unparse(node)
            parts = [(e.value if isinstance(e, ast.keyword) else e) for e in inner] if depth else []
            own = text if not parts else f"{type(node).__name__}:{getattr(node, 'attr', '')}"
            return f"{own}({', '.join(_expanded(source, each, loop, depth - 1) for each in parts)})" if parts else own


def _assigned(source: SourceFile, node: ast.Name, loop: Any) -> tuple[ast.expr, str] | None:
    """Return what a loop assigned last to a variable before a node, always; with the item of a tuple that it is."""
    found: tuple[ast.expr, str] | None = None
    for each in nodes_in(loop, ast.Assign):
        if (each.lineno, each.col_offset) >= (node.lineno, node.col_offset) or encloses(each, node):
            continue
        for target in each.targets:
            items = target.elts if isinstance(target, ast.Tuple) else [target]
            for number, item in enumerate(items):
                if isinstance(item, ast.Name) and item.id == node.id:
                    if not _is_unconditional(source, each, loop):
                        return ast.Constant(f"{node.id}, sometimes"), ""
                    found = each.value, f"[{number}]" if item is not target else ""
    return found


def _has_older_data(source: SourceFile, loop: Any, node: ast.expr) -> bool:
    """Return True if an expression is computed from data of a loop around this one, or of a parameter."""
    assigned = {
        target.id: each.value
        for each in nodes_in(loop, ast.Assign)
        for part in each.targets
        for target in nodes_in(part, ast.Name)
    }
    queue, names = [node, *([loop.iter] if isinstance(loop, ast.For) else [])], set[str]()
    for each in queue:
        for inner in nodes_in(each, ast.Name, ast.Attribute):
            if isinstance(inner, ast.Attribute):
                if last_name(inner.value) == "self" and _BUFFER.search(inner.attr):
                    return True
            elif inner.id not in names:
                names.add(inner.id)
                queue += [assigned[inner.id]] if inner.id in assigned else []
    function = function_of(source, loop)
    arguments = getattr(function, "args", None)
    outside = {each.arg for each in nodes_in(arguments, ast.arg)} - {"self"} if arguments else set[str]()
    for outer in enclosing_nodes(source, loop):
        outside |= assigned_names(outer) if isinstance(outer, ast.For | ast.While) else set()
    return bool(names & (outside - assigned.keys()))


RULE = Rule(required_words=("exp(", "clamp(|clip(", "log_prob|logp|log_pi|logits", "step()", "for |while "), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Linear(4, 3)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for step in range(20):
    states = torch.randn(64, 4)
    with torch.no_grad():
        actions = torch.distributions.Categorical(logits=policy(states)).sample()
    old_log_probs = torch.distributions.Categorical(logits=policy(states)).log_prob(actions).detach()
    rewards = (actions == states[:, :3].argmax(1)).float()
    advantages = rewards - rewards.mean()
    for epoch in range(4):
        dist = torch.distributions.Categorical(logits=policy(states))
        log_probs = dist.log_prob(actions)
        ratio = torch.exp(log_probs - log_probs.detach())
        clipped = torch.clamp(ratio, 0.8, 1.2)
        loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="LOS031",
    title="PPO compares the policy with itself",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"log_probs - log_probs.detach()": "log_probs - old_log_probs"}),
    fix="Compute the old log-probabilities once for each rollout, before the epochs.",
    rule=RULE,
)
