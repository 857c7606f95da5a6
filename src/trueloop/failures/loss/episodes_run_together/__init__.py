"""Discounted returns or advantages are carried from one episode of a batch into the episode before it.

What you see
    The policy learns slowly or not at all, and the value loss stays high. The returns of the last steps of an episode
    vary with what happens in the next episode. With one episode per update everything works.

Why it happens
    The steps of several episodes are stored one after the other. The loop ``total = reward + gamma * total`` runs
    backwards over all of them, so at the last step of an episode ``total`` still has the return of the next one. The
    numbers are finite and the shapes are right.

Fix
    Start at zero where an episode ends.

        for t in reversed(range(len(rewards))):
            total = rewards[t] + gamma * total * (1 - dones[t])
            returns[t] = total

When this is fine
    - Each call gets the rewards of a single episode, or the episodes are in a list of their own.
    - ``if done: total = 0`` precedes the sum, or the discount of each step is zero where an episode ends.
    - The task has no episodes: nothing is reset.

How it is detected
    Only the linter finds it: a sum ``total = reward + gamma * total``, also as ``gae = delta + gamma * lam * gae``,
    with subscripts, in ``itertools.accumulate`` or in ``scipy.signal.lfilter``. It is reported if its discount is the
    same for all steps, nothing in the loop resets the total, and the loop that stores the rewards resets the
    environment, or begins an inner loop over the steps of an episode again, without emptying the list or computing the
    returns. The linter follows the list through functions,
    parameters, attributes and other files. It also reports ``1 - dones[t + 1]`` in a loop that discounts, if the last
    step uses ``1 - dones[t]``, or if all flags are stored after the ``env.step`` that returns them. In a
    function that masks the total it also reports the discounted value of a next state, or another total, without a
    mask.

References
    Sutton and Barto, "Reinforcement Learning: An Introduction", 2nd edition, 2018, section 3.3,
    http://incompleteideas.net/book/the-book-2nd.html
    Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2016,
    arXiv:1506.02438
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeGuard

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.class_instances import enclosing_blocks
from trueloop.analysis.queries.loops import assigned_names
from trueloop.analysis.queries.possible_values import computed_from, enclosing_nodes, possible_values
from trueloop.analysis.queries.td_targets import product_factors
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed
from trueloop.failures.loss.episodes_run_together.end_of_other_step import ends_of_other_step
from trueloop.failures.loss.episodes_run_together.masked_in_part import (
    is_previous,
    masked_in_part,
    names_in,
    summands,
)

_REWARD: Final = re.compile(r"reward|(^|_)(r|rs|rews?|rwds?)($|_)", re.IGNORECASE)
_DISCOUNT: Final = re.compile(r"gamma|discount|lam(bda)?($|_)|tau", re.IGNORECASE)
_END: Final = re.compile(
    r"done|term(inal|$|_)|terminat|trunc|finish|(^|_)(over|ended|end|ends|last|final)($|_)|timeout", re.IGNORECASE
)
_PARTS: Final = frozenset((
    "split", "array_split", "tensor_split", "view", "reshape", "chunk", "T", "groupby", "transpose",
))  # fmt: skip
_VECTOR_ENVIRONMENTS: Final = re.compile(r"VectorEnv|VecEnv|make_vec|vector\.make")
_ENVIRONMENT: Final = re.compile(r"env|game|world|simulat", re.IGNORECASE)
_BACKWARDS: Final = re.compile(r"reversed\(|flip|-1|-= 1|-\s*\w+\]")
_STORING: Final = frozenset(("append", "extend", "insert", "appendleft"))
_MIN_DISCOUNT: Final = 0.8
_MAX_DEPTH: Final = 4


class _Sum(NamedTuple):
    """A sum of a reward and the discounted total of the steps after it."""

    node: Any
    total: str
    loop: Any
    """The loop around it, or the call that runs over all steps."""


class _Episodes(NamedTuple):
    """The loop that stores the rewards of several episodes in one list."""

    store: ast.AST
    reset: ast.AST


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each discounted sum that runs over several episodes without a reset."""
    for each in (*_sums_in_loops(source), *_sums_in_calls(source)):
        episodes = _episodes_in(source, each)
        if episodes is not None:
            yield Hit(
                message=f"`{ast.unparse(each.node)}` runs over the rewards of several episodes, and nothing resets "
                f"{each.total} where an episode ends: each return contains the rewards of later episodes.",
                node=each.node,
                related=(
                    (episodes.store, "the rewards of all episodes are stored here"),
                    (episodes.reset, "the next episode starts here"),
                ),
            )
    for unmasked in masked_in_part(source):
        yield Hit(
            message=f"`{ast.unparse(unmasked.part)}` also counts where an episode ends, although "
            f"`{ast.unparse(unmasked.other)}` stops there: the values of the next episode leak into this one.",
            node=unmasked.part,
            related=((unmasked.other, "the end of an episode counts here"),),
        )
    for other in ends_of_other_step(source):
        yield Hit(
            message=f"`{ast.unparse(other.read)}` is the end after the next step, since {other.reason}: the sum runs "
            "over the end of each episode, and is cut off one step early.",
            node=other.read,
            related=((other.evidence, "see here"),),
        )


def _sums_in_loops(source: SourceFile) -> Iterator[_Sum]:
    for node in source.nodes_of(ast.Assign, ast.AugAssign):
        target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
        loop: Any = source.parents.get(id(node))
        if not isinstance(loop, ast.For | ast.While) or not isinstance(target, ast.Name | ast.Subscript):
            continue
        sums = [node.value] if isinstance(node, ast.AugAssign) else summands(node.value)
        others = [each for each in sums if not _discounts(loop, each, target)]
        is_sum = len(sums) - len(others) == 1 and (bool(others) or isinstance(node, ast.AugAssign))
        if not is_sum or any(map(_is_weighted, others)) or _is_reset(loop, node, target):
            continue
        if _BACKWARDS.search(ast.unparse(function_of(source, node))) and not _is_one_of_several(source, loop):
            yield _Sum(node, f"`{ast.unparse(target)}`", loop)


def _is_weighted(node: ast.expr) -> bool:
    """Return True for a term of a running average, such as ``0.01 * reward`` or ``(1 - beta) * reward``."""
    return any(
        isinstance(each, ast.Constant) or (isinstance(each, ast.BinOp) and isinstance(each.left, ast.Constant))
        for each in (product_factors(node) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else ())
    )


def _discounts(loop: Any, node: ast.expr, target: Any) -> bool:
    """Return True for a product of the previous total and a discount that is the same for all steps."""
    if isinstance(node, ast.IfExp) and not any(map(_END.search, names_in(node.test))):
        node = node.body  # gamma * returns[t + 1] if t + 1 < n else 0
    factors = product_factors(node)
    carried = [each for each in factors if is_previous(each, target)]
    others = [each for each in factors if not is_previous(each, target)]
    bound = {each.id for each in nodes_in(loop, ast.Name) if isinstance(each.ctx, ast.Store)}
    is_constant = not any(each.id in bound for other in others for each in nodes_in(other, ast.Name))
    return len(carried) == 1 and is_constant and bool(others) and any(map(_is_discount, others))


def _is_discount(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and _MIN_DISCOUNT <= node.value < 1
    return _DISCOUNT.search(ast.unparse(node)) is not None and not isinstance(node, ast.Call)


def _is_reset(loop: Any, total: ast.stmt, target: Any) -> bool:
    """Return True if a loop sets the total elsewhere, skips steps, or tests a flag for the end of an episode."""
    base = last_name(target)
    for each in walk(loop):
        if isinstance(each, ast.Assign | ast.AugAssign) and each is not total:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            if any(last_name(part) == base for whole in targets for part in getattr(whole, "elts", [whole])):
                return True
        if isinstance(each, ast.Continue | ast.Break | ast.Return):
            return True
        if isinstance(each, ast.If) and any(map(_END.search, names_in(each.test))):
            return True
    return any(_END.search(name) for name in names_in(total)) or any(
        last_name(each.func) in ("where", "masked_fill", "masked_fill_") for each in nodes_in(total, ast.Call)
    )


def _is_one_of_several(source: SourceFile, loop: Any) -> bool:
    """Return True if another loop of the function selects what a loop runs over, as one for each episode does."""
    read = {each.id for each in nodes_in(loop, ast.Name)}
    outer = [each.target for each in enclosing_nodes(source, loop) if isinstance(each, ast.For)]
    return any(each.id in read for target in outer for each in nodes_in(target, ast.Name))


def _sums_in_calls(source: SourceFile) -> Iterator[_Sum]:
    """Yield ``accumulate(rewards, lambda total, r: r + gamma * total)`` and ``lfilter([1], [1, -gamma], rewards)``."""
    for call in source.all_calls:
        match call:
            case ast.Call(args=[_, ast.Lambda(args=ast.arguments(args=[total, step]), body=body)]) if last_name(
                call.func
            ) in ("accumulate", "reduce"):
                target = ast.Name(total.arg, ast.Store())
                bound = ast.Tuple([ast.Name(step.arg, ast.Store())], ast.Store())
                if any(_discounts(bound, each, target) for each in summands(body)) and len(summands(body)) > 1:
                    yield _Sum(call, "the total", call)
            case ast.Call(args=[_, ast.List(elts=[_, ast.UnaryOp(operand=discount)]), _]) if (
                last_name(call.func) == "lfilter"
            ):
                if _is_discount(discount):
                    yield _Sum(call, "the total", call)
            case _:
                pass


def _episodes_in(source: SourceFile, total: _Sum) -> _Episodes | None:
    """Return where the rewards of several episodes are stored in the list that a sum reads; None if that is unknown."""
    reads = [each for each in nodes_in(total.loop, ast.Name, ast.Attribute) if isinstance(each.ctx, ast.Load)]
    nodes = [each for read in reads for each in _followed(source, read)]
    if any(last_name(each) in _PARTS for each in nodes):
        return None
    keys = {_key(source, each) for each in nodes}
    found, within = None, walk(total.loop)
    for base, store in _stores(source):
        key = _key(source, base)
        if key in keys and store not in within:
            episodes = _several_episodes(source, key, store, total)
            if episodes is None:
                return None
            found = episodes
    return found


def _followed(source: SourceFile, node: ast.expr, depth: int = 2) -> Iterator[ast.expr]:
    """Yield the variables and attributes from which a value comes, also those that functions return."""
    for each in computed_from(source, node, _MAX_DEPTH):
        if isinstance(each, ast.Name | ast.Attribute):
            yield each
        elif isinstance(each, ast.Call) and depth:
            for value in possible_values(source, each):
                yield from _followed(source, value, depth - 1)


def _key(source: SourceFile, node: Any) -> tuple[Any, str]:
    """Return what identifies a variable within its function, or an attribute of any object."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return (0 if isinstance(node, ast.Attribute) else id(function_of(source, node))), last_name(node)


def _stores(source: SourceFile) -> Iterator[tuple[ast.expr, ast.AST]]:
    """Yield each list or tensor of rewards with the statement or call that stores in it."""
    for each in source.nodes_of(ast.Call, ast.Assign, ast.AugAssign):
        pairs: list[tuple[ast.expr, list[ast.expr]]] = []
        match each:
            case ast.Call(func=ast.Attribute(value=base, attr=attr), args=values) if attr in _STORING:
                pairs = [(base, values)]
            case ast.Assign():
                pairs = [
                    (target.value, [value])
                    for target, value in assigned_pairs(each)
                    if _is_item(target)
                    and last_name(target) not in names_in(value)  # returns[t] = r + g * returns[t + 1]
                ]
            case ast.AugAssign(target=ast.Name() | ast.Attribute() as base, value=ast.List() as value):
                pairs = [(base, [value])]
            case _:
                pass
        for base, values in pairs:
            names = [*names_in(base), *(name for value in values for name in names_in(value))]
            keys = [e.value for e in nodes_in(base, ast.Constant) if isinstance(e.value, str)]
            if any(map(_REWARD.search, (*names, *keys))):
                yield base, each


def _is_item(node: ast.expr) -> TypeGuard[ast.Subscript]:
    return isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant | ast.Slice)


def _several_episodes(source: SourceFile, key: tuple[Any, str], store: ast.AST, total: _Sum) -> _Episodes | None:
    """Return the evidence that a list gets several episodes before it is emptied and before its sum is computed."""
    resets = [(each, _blocks(source, each)) for each in source.all_calls if _starts_episode(source, each)]
    for chain in enclosing_blocks(source, store):
        loops = [each for each in chain if not isinstance(each, ast.If) and not _ends_with_episode(each)]
        for loop in loops:
            reset: ast.AST | None = next((call for call, blocks in resets if id(loop) in blocks), None)
            reset = reset or _episode_within(chain[: chain.index(loop)], loop)
            if reset is None and not any(_VECTOR_ENVIRONMENTS.search(each.text.source) for each in source.modules):
                continue
            ends = [total.loop, *_emptied(source, key)]
            if any(_is_for_each(source, loop, each) for each in ends) or not _knows_ends(source, store, total):
                return None
            return _Episodes(store, reset or loop)
    return None


def _episode_within(chain: tuple[ast.For | ast.While | ast.If, ...], loop: ast.For | ast.While) -> ast.AST | None:
    """Return the loop over the steps of an episode that begins again, with a new state, in each turn of a loop."""
    for inner in chain:
        if not isinstance(inner, ast.If) and _ends_with_episode(inner):
            before = [each for each in loop.body if each.lineno < inner.lineno and inner not in walk(each)]
            if assigned_names(inner) & {name for each in before for name in assigned_names(each)}:
                return inner
    return None


def _blocks(source: SourceFile, node: ast.AST) -> set[int]:
    return {id(each) for chain in enclosing_blocks(source, node) for each in chain}


def _starts_episode(source: SourceFile, call: ast.Call) -> bool:
    if not last_name(call.func).startswith("reset"):
        return False
    is_assigned = isinstance(source.statement_of(call), ast.Assign)
    return is_assigned or bool(_ENVIRONMENT.search(ast.unparse(call.func)))


def _ends_with_episode(loop: ast.For | ast.While) -> bool:
    """Return True for a loop that ends where an episode ends: ``while not done``, or with ``if done: break``."""
    if isinstance(loop, ast.While) and any(map(_END.search, names_in(loop.test))):
        return True
    return any(
        any(map(_END.search, names_in(each.test)))
        and any(isinstance(inner, ast.Break | ast.Return) for statement in each.body for inner in walk(statement))
        for each in nodes_in(loop, ast.If)
        if not any(each in walk(inner) for inner in nodes_in(loop, ast.For, ast.While) if inner is not loop)
    )


def _emptied(source: SourceFile, key: tuple[Any, str]) -> list[ast.AST]:
    """Return the statements and calls that assign a list or remove its items."""
    found: list[ast.AST] = []
    for each in source.nodes_of(ast.Assign, ast.AnnAssign, ast.Delete, ast.Call):
        if isinstance(each, ast.Call):
            is_clear = isinstance(each.func, ast.Attribute) and each.func.attr == "clear"
            targets: list[Any] = [each.func.value] if is_clear else []  # type: ignore[attr-defined]
        elif isinstance(each, ast.AnnAssign):
            targets = [each.target]
        else:
            whole = [part for e in each.targets for part in (e.elts if isinstance(e, ast.Tuple) else [e])]
            targets = [e for e in whole if not isinstance(e, ast.Subscript) or isinstance(e.slice, ast.Slice)]
        if any(_key(source, e) == key for e in targets):
            found.append(each)
    return found


def _is_for_each(source: SourceFile, loop: ast.AST, node: ast.AST) -> bool:
    """Return True if a node runs in each iteration of a loop, or where an episode ends."""
    for chain in enclosing_blocks(source, node):
        if loop in chain:
            conditions = [each for each in chain[: chain.index(loop)] if isinstance(each, ast.If)]  # type: ignore[arg-type]
            if not conditions or any(_END.search(name) for each in conditions for name in names_in(each.test)):
                return True
    return False


def _knows_ends(source: SourceFile, store: ast.AST, total: _Sum) -> bool:
    """Return True if the code that stores the rewards, or adds them up, has a flag for the ends of episodes."""
    functions = (function_of(source, store), function_of(source, total.node))
    names = [name for each in functions for name in names_in(each)]
    names += [each.arg for function in functions for each in nodes_in(function, ast.arg)]
    return any(map(_END.search, names))


RULE = Rule(
    required_words=(
        "gamma|discount|GAMMA|DISCOUNT",
        "reset|+ 1]|+1]|1:]|reversed(",
        "reward|rews",
        "done|terminated|terminal|mask",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
gamma = 0.9


class Walk:
    def reset(self):
        self.place = 0.5
        return torch.tensor([self.place, 1.0])

    def step(self, action):
        self.place += 0.25 if action else -0.25
        done = not 0 < self.place < 1
        return torch.tensor([self.place, 1.0]), float(self.place >= 1), done


env, policy = Walk(), nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for update in range(10):
    log_probs, rewards, dones = [], [], []
    for episode in range(4):
        state, done = env.reset(), False
        while not done:
            choice = torch.distributions.Categorical(logits=policy(state))
            action = choice.sample()
            log_probs.append(choice.log_prob(action))
            state, reward, done = env.step(action.item())
            rewards.append(reward)
            dones.append(done)
    returns, total = torch.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        total = rewards[t] + gamma * total
        returns[t] = total
    loss = -(torch.stack(log_probs) * (returns - 0.5)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS069",
    title="Returns are carried across the ends of episodes",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"gamma * total\n": "gamma * total * (1 - dones[t])\n"}),
    fix="Multiply the total by (1 - dones[t]), or reset it to zero where an episode ends.",
    rule=RULE,
)
