"""The target of Q-learning adds the value of the next state although the episode has ended there.

What you see
    The agent learns, but its values are too high or never settle, and it does not distinguish a success from being
    nearly there. The longer the training, the larger the values: nothing anchors them.

Why it happens
    The state after the last step has no future, so the target of this step is the reward alone. The network returns a
    number for this state as well. It is never trained there, and each update propagates the number backwards.

Fix
    Multiply the value of the next state by 0 where the episode has ended:

        with torch.no_grad():
            next_value = target_net(next_states).max(1).values
            target = rewards + gamma * next_value * (1 - dones.float())

    With Gymnasium use ``terminated``: after a ``truncated`` step the value of the next state does count.

When this is fine
    - The environment has no terminal states, only a limit of time (Pendulum, HalfCheetah).
    - The flag is used elsewhere: it selects the next states, sets their values to 0, or ``next_state`` is None.
    - A table has the value 0 for terminal states, because it is never updated there.

How it is detected
    Only the linter finds it, from the source code: an expression ``reward + gamma * value``, where the value is that of
    a network for the next state, and a flag such as ``done``, ``terminal`` or ``terminated`` that the same function
    gets or unpacks, or that the program stores together with the reward; what follows the next state in a transition
    of five values is such a flag, too, whatever its name. It is reported if nothing uses the flag, apart
    from storing or converting it and ending the loop over the steps. So is a target for transitions that are stored
    without the flag that ``env.step(action)`` returns, or passed on without it to the function that computes the
    target. So is a target whose value is multiplied by the flag itself, in a program that nowhere negates it, and one
    whose value is multiplied by ``1 - mask`` where the program stores ``1 - done`` as the mask.

References
    Mnih et al., 2015, "Human-level control through deep reinforcement learning", algorithm 1,
    https://doi.org/10.1038/nature14236
    Gymnasium, "Handling time limits", https://gymnasium.farama.org/tutorials/gymnasium_basics/handling_time_limits/
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_in, function_of, single_assignments
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import enclosing_expressions
from trueloop.analysis.queries.td_targets import product_factors
from trueloop.analysis.source_file import Hit, Module, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed
from trueloop.failures.loss.end_of_episode_ignored import stored_flags
from trueloop.failures.loss.end_of_episode_ignored.stored_flags import FLAG, MASK, REWARDS, STORING, words_of

_DISCOUNTS: Final = frozenset(("gamma", "discount", "discounts"))
_NEXT: Final = re.compile(
    r"next|new|(^|_)(s2|s_|ss|sp|ns|s1|o2|x2|obs2|state2|states2|state_|states_|s_prime|s_p|n_s|sn)($|_)", re.IGNORECASE
)
_COUNTER: Final = re.compile(r"(global_)?(steps?|episodes?|iters?|iterations?|epochs?|games?|updates?|num|n|total)_")
"""The start of ``steps_done`` and other counts."""
ENDLESS: Final = re.compile(r"Pendulum|HalfCheetah|Swimmer|Reacher|Pusher|infinite.horizon|continuing", re.IGNORECASE)
_NO_FLAG: Final = re.compile(
    r"^_|info|idx|ind(ex|ices)|weight|^ws?$|prob|log|act|trunc|time|limit|legal|valid|mask|discount|gamma|goal|step|prio|id"
)
"""Names of other things than a flag that a transition may end with."""
_LAST: Final = re.compile(r"(d|(not_|non_?)?(masks?|dones?|terminals?)(_b|_batch)?)$")
_TRANSITION: Final = 5  # state, action, reward, next state, flag
_MAX_DEPTH: Final = 4


class _Target(NamedTuple):
    """A sum of a reward and a discounted value."""

    node: ast.BinOp
    parts: tuple[ast.AST, ...]
    """The sum, and the values of the variables from which it is computed."""
    names: frozenset[str]
    """All variables from which it is computed, and the one to which it is assigned."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each target that bootstraps from all next states, although the program knows which are terminal."""
    if any(ENDLESS.search(each.text.source) for each in source.modules):
        return
    yield from _inverted(source)
    yield from stored_flags.find(source)
    for target in _targets(source):
        function = function_of(source, target.node)
        bound = _flags_of(function)
        flag = next((name for name in bound if _is_unused(source, function, target, name)), "")
        if not flag and not bound and _stored_flag(source) and not _handles_ends(source, source, target):
            flag = _stored_flag(source)
        own = source.module_of(target.node.lineno)
        parts = [source] if len(source.modules) == 1 or not any(_stepped(own)) else [source, own]
        dropped = ""
        for part in parts if not flag and not bound else ():
            dropped = dropped or _dropped_flag(part, getattr(function, "name", ""))
            if dropped and not _handles_ends(source, part, target):
                flag = dropped
        if flag:
            reason = f"nothing uses `{flag}`" if flag != dropped else f"`{flag}` is not passed on with the transitions"
            yield Hit(
                message=f"`{ast.unparse(target.node)}` adds the value of the next state even where the episode has "
                f"ended: {reason}.",
                node=target.node,
            )


def _inverted(source: SourceFile) -> Iterator[Hit]:
    """Yield each target that adds the value of the next state only where the episode has ended."""
    flags = {name for each in _stepped(source) for name in each}
    if not flags:
        return
    found = [(node, flag) for node in source.nodes_of(ast.BinOp, ast.Call, ast.IfExp, ast.If)
             if (flag := _flag_that_keeps(node)) and FLAG.match(flag) and not MASK.search(flag)]  # fmt: skip
    if not found or any(_is_complement(source, each) for each in source.nodes_of(ast.expr)):
        return
    for node, flag in found:
        shown = node.test if isinstance(node, ast.If) else node
        yield Hit(
            message=f"`{ast.unparse(shown)}` adds the value of the next state only where the episode has ended: "
            f"`{flag}` is true there. The factor is `1 - {flag}`.",
            node=shown,
        )


def _flag_that_keeps(node: ast.AST) -> str:
    """Return the name of the flag that is true where a target adds a discounted value; "" for other code."""
    match node:
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            for reward, product in ((left, right), (right, left)):
                parts = product_factors(product) if words_of(reward) & REWARDS else []
                if len(parts) > 2 and any(map(_is_discount, parts)):
                    return next((name for each in parts if FLAG.match(name := _plain_name(each))), "")
            return ""
        case ast.Call(func=func, args=[test, kept, other]) if last_name(func) == "where":
            return _plain_name(test) if _adds_value(kept) and not _adds_value(other) else ""
        case ast.IfExp(test=test, body=kept, orelse=other):
            return _plain_name(test) if _adds_value(kept) and not _adds_value(other) else ""
        case ast.If(test=test, body=[ast.Assign(value=kept)], orelse=[ast.Assign(value=other)]):
            return _plain_name(test) if _adds_value(kept) and not _adds_value(other) else ""
        case _:
            return ""


def _plain_name(node: ast.expr) -> str:
    """Return the name of a variable, also of one that is converted: ``done.float()[:, None]``, ``int(done)``."""
    while True:
        match node:
            case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner), args=[] | [ast.Constant()]):
                node = inner
            case ast.Call(func=ast.Name(id="int" | "float"), args=[inner]):
                node = inner
            case _:
                return last_name(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _adds_value(node: ast.expr) -> bool:
    """Return True for a sum of a reward and a discounted value."""
    match node:
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            pairs = ((left, right), (right, left))
            return any(words_of(reward) & REWARDS and any(map(_is_discount, product_factors(p))) for reward, p in pairs)
        case _:
            return False


def _stepped(source: SourceFile | Module) -> Iterator[list[str]]:
    """Yield the flags that each ``env.step(action)`` returns."""
    for each in source.nodes_of(ast.Assign):
        match each:
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Call(func=ast.Attribute(attr="step"))):
                if len(parts) in (4, 5):
                    yield [part.id for part in parts if isinstance(part, ast.Name) and FLAG.match(part.id)]
            case _:
                pass


def _is_complement(source: SourceFile, node: ast.expr) -> bool:
    """Return True for ``1 - done``, ``~done`` and the like, which may be stored as a flag that is true elsewhere."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            around = source.parents.get(id(node))
            return bool(FLAG.match(_plain_name(inner))) and not isinstance(around, ast.While | ast.If | ast.BoolOp)
        case ast.UnaryOp(op=ast.Invert(), operand=inner) | ast.BinOp(op=ast.Sub(), left=ast.Constant(), right=inner):
            return any(FLAG.match(last_name(each)) for each in nodes_in(inner, ast.Name, ast.Attribute))
        case (
            ast.Compare(left=inner, ops=[ast.Eq() | ast.NotEq() | ast.Is()])
            | ast.IfExp(test=inner, body=ast.Constant(), orelse=ast.Constant())
        ):
            return bool(FLAG.match(_plain_name(inner)))
        case ast.Call(func=func):
            return last_name(func) in ("logical_not", "rsub", "bitwise_not")
        case _:
            return False


def _targets(source: SourceFile) -> Iterator[_Target]:
    """Yield each sum of a reward and a discounted value that a network computes for the next state."""
    for node in source.nodes_of(ast.BinOp):
        if not isinstance(node.op, ast.Add):
            continue
        function = function_of(source, node)
        for reward, value in ((node.left, node.right), (node.right, node.left)):
            if not words_of(reward) & REWARDS:
                continue
            product = _only_value(function, value) if isinstance(value, ast.Name) else value
            if product is None or not _is_discounted(product):
                continue
            parts = (node, *_origins(function, product))
            names = {each.id for part in parts for each in nodes_in(part, ast.Name)}
            if _values_next_state(parts) and not _is_masked(parts, names):
                yield _Target(node, parts, frozenset(names | set(_assigned_names(source, node))))


def _is_discounted(node: Any) -> bool:
    """Return True for a product of a discount factor and one other factor: ``gamma * q`` or ``0.99 * q``."""
    factors = product_factors(node)
    others = [each for each in factors if not _is_discount(each)]
    return len(factors) > 1 and len(others) == 1


def _is_discount(factor: ast.expr) -> bool:
    if isinstance(factor, ast.Constant):
        return isinstance(factor.value, float) and 0.8 <= factor.value < 1
    return not isinstance(factor, ast.Call) and bool(words_of(factor) & _DISCOUNTS)


def _only_value(function: Any, name: ast.Name) -> Any:
    values = assigned_in(function, name.id)
    return values[0] if len(values) == 1 else None


def _origins(function: Any, node: ast.AST) -> list[ast.AST]:
    """Return an expression and the values of the variables from which it is computed."""
    found: list[ast.AST] = [node]
    seen: set[str] = set()
    for _ in range(_MAX_DEPTH):
        names = {each.id for part in found for each in nodes_in(part, ast.Name)} - seen
        seen |= names
        found += [value for target, value in single_assignments(function) if _assigns(target, value, names)]
    return found


def _assigns(target: ast.expr, value: ast.expr, names: set[str]) -> bool:
    """Return True for a variable, or several that get the results of ``q.max(1)``."""
    is_extremum = isinstance(value, ast.Call) and last_name(value.func) in ("max", "min", "sort", "topk")
    if isinstance(target, ast.Tuple) and is_extremum:
        return any(getattr(each, "id", "") in names for each in target.elts)
    return getattr(target, "id", "") in names


def _values_next_state(parts: tuple[ast.AST, ...]) -> bool:
    """Return True if a call, not a table, gets the next state."""
    nodes = [each for part in parts for each in walk(part)]
    tables = [
        each.slice for each in nodes if isinstance(each, ast.Subscript) and not isinstance(each.slice, ast.Constant)
    ]
    called = [
        argument
        for each in nodes
        if isinstance(each, ast.Call) and last_name(each.func) not in ("max", "tensor", "as_tensor", "float", "amax")
        for argument in each.args
    ]
    return any(map(_is_next, called)) and not any(map(_is_next, tables))


def _is_masked(parts: tuple[ast.AST, ...], names: set[str]) -> bool:
    """Return True if a value may be computed with a mask other than a flag that is called done."""
    complements = (each for part in parts for each in nodes_in(part, ast.BinOp, ast.Invert))
    return any(map(MASK.search, names)) or any(
        isinstance(each, ast.Invert)
        or (isinstance(each.op, ast.Sub) and isinstance(each.left, ast.Constant) and each.left.value == 1)
        for each in complements
    )


def _is_next(node: ast.AST) -> bool:
    return any(
        bool(_NEXT.search(last_name(each)))  # type: ignore[arg-type]
        for each in nodes_in(node, ast.Name, ast.Attribute)
    ) or any(_NEXT.search(str(each.value)) for each in nodes_in(node, ast.Constant))


def _assigned_names(source: SourceFile, node: ast.AST) -> Iterator[str]:
    """Yield the variables that the statement around a node assigns."""
    statement = _statement(source, node)
    for each in walk(statement) if isinstance(statement, ast.Assign | ast.AnnAssign) else ():
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id


def _statement(source: SourceFile, node: ast.AST) -> Any:
    parent: Any = node
    while parent is not None and not isinstance(parent, ast.stmt | ast.comprehension):
        parent = source.parents.get(id(parent))
    return parent


def _flags_of(function: Any) -> list[str]:
    """Return the flags for the ends of episodes that a function gets as parameters or assigns."""
    nodes = [each for each in walk(function) if not isinstance(each, ast.Load)]
    own = {each.arg for each in nodes_in(getattr(function, "args", ast.Pass()), ast.arg)}
    fixed = [e for e in nodes_in(function, ast.Assign) if isinstance(e.value, ast.Constant)]  # done = False
    begun = {id(target) for each in fixed for target in each.targets}
    stored = [each for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    own |= {each.id for each in stored if id(each) not in begun}
    found = {name for name in own if FLAG.match(name)}
    for each in nodes:
        if isinstance(each, ast.Tuple) and isinstance(each.ctx, ast.Store):
            found |= _flags_among(each.elts)
    return sorted(found)


def _is_unused(source: SourceFile, scope: Any, target: _Target, flag: str) -> bool:
    """Return True if a function does nothing with a flag, or with what it computes from it, but store it."""
    derived, checked = {flag}, set[int]()
    reads = [each for each in nodes_in(scope, ast.Name) if isinstance(each.ctx, ast.Load)]
    for _ in range(_MAX_DEPTH):
        for each in reads:
            if each.id not in derived or id(each) in checked:
                continue
            checked.add(id(each))
            more = _computed_from(source, each, target)
            if more is None:
                return False
            derived |= more
    return not derived & target.names


def _computed_from(source: SourceFile, read: ast.expr, target: _Target) -> set[str] | None:
    """Return the variables that are computed from a flag where it is read; None if it is used for something else."""
    statement = _statement(source, read)
    is_neutral = False
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name)):
            return {name}
        case (
            ast.Assign(targets=[ast.Tuple(elts=elements)])
            | ast.For(target=ast.Tuple(elts=elements))
            | ast.comprehension(target=ast.Tuple(elts=elements))
        ):
            return _flags_among(elements) or None
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() as stored]):
            is_index = isinstance(stored, ast.Subscript) and encloses(stored.slice, read)
            is_neutral = bool(FLAG.match(last_name(stored))) and not is_index
        case ast.While():
            is_neutral = encloses(statement.test, read)
        case ast.If():
            is_neutral = _only_ends_loop(source, statement, target)
        case ast.Expr(value=ast.Call(func=func)):
            is_neutral = bool(STORING.search(last_name(func))) and not _is_calculated(source, read)
        case _:
            pass
    return set() if is_neutral else None


def _is_calculated(source: SourceFile, read: ast.AST) -> bool:
    """Return True if an expression reads a flag for a calculation: ``memory.append((state, gamma * (1 - done)))``."""
    kinds = ast.BinOp | ast.UnaryOp | ast.IfExp | ast.Compare | ast.Subscript
    return any(isinstance(each, kinds) for each in enclosing_expressions(source, read))


def _flags_among(elements: list[ast.expr]) -> set[str]:
    """Return the flags that a tuple is unpacked to, also ``d`` or ``fell`` at the end of ``o, a, r, o2, fell``."""
    names = [each.id for each in elements if isinstance(each, ast.Name)]
    is_transition = len(names) > 3 and any(name_words(name) & REWARDS for name in names)
    flags = {name for name in names if FLAG.match(name) or (is_transition and name == names[-1] and _LAST.match(name))}
    if flags or not is_transition or len(names) != len(elements) or len(names) != _TRANSITION:
        return flags
    *_, next_state, last = names
    is_flag = _NEXT.search(next_state) and not (_NEXT.search(last) or last in REWARDS or _NO_FLAG.search(last))
    return {last} if is_flag else set()


def _only_ends_loop(source: SourceFile, node: ast.If, target: _Target) -> bool:
    """Return True if an ``if`` neither contains a target, nor comes before it, nor assigns what it is computed from."""
    statements = (*node.body, *node.orelse)
    is_before = node.lineno < target.node.lineno and function_of(source, node) is function_of(source, target.node)
    if any(encloses(each, target.node) for each in statements) or any(
        isinstance(each, ast.Continue | ast.Break | ast.Return) and is_before
        for statement in statements
        for each in walk(statement)
    ):
        return False
    resets = {
        inner.id
        for statement in statements
        for each in nodes_in(statement, ast.Assign)
        if "reset" not in ast.unparse(each.value)
        for part in each.targets
        for inner in nodes_in(part, ast.Name)
    }
    return not resets & target.names and not any(_NEXT.search(name) for name in resets)


def _stored_flag(source: SourceFile) -> str:
    """Return the flag that a program stores together with a reward, such as ``memory.push(s, a, r, s2, done)``."""
    for call in source.all_calls:
        if STORING.search(last_name(call.func)) and last_name(call.func) != "print":
            parts = [inner for each in call.args for inner in getattr(each, "elts", [each])]
            names = [each.id for each in parts if isinstance(each, ast.Name)]
            flags = [name for name in names if FLAG.match(name)]
            if flags and set().union(*map(name_words, names)) & REWARDS:
                return flags[0]
    return ""


def _dropped_flag(source: SourceFile | Module, learner: str) -> str:
    """Return the flag that ``env.step(action)`` returns, if the program passes its transitions on without it.

    They are passed to a method that stores them, or to the function that computes the target, the ``learner``.
    """
    stored = [
        nodes
        for call in source.nodes_of(ast.Call)
        if last_name(call.func) == learner or STORING.search(last_name(call.func))
        if last_name(call.func) != "print"
        for nodes in [[each for part in (*call.args, *call.keywords) for each in nodes_in(part, ast.Name)]]
        if set().union(*map(words_of, nodes)) & REWARDS and any(map(_is_next, nodes))
    ]
    if not stored or any(FLAG.match(each.id) or MASK.search(each.id) for nodes in stored for each in nodes):
        return ""
    return next((names[0] for names in _stepped(source) if names), "")


def _handles_ends(source: SourceFile, part: SourceFile | Module, target: _Target) -> bool:
    """Return True if any code of a program, or of a file of it, uses a flag for more than storing it."""
    for each in part.nodes_of(ast.Name, ast.Attribute, ast.Subscript):
        name = last_name(each) if isinstance(each, ast.Name | ast.Attribute) else ""
        if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant):
            name = str(each.slice.value)
        is_read = isinstance(each.ctx, ast.Load) and not isinstance(
            source.parents.get(id(each)), ast.Subscript | ast.Attribute
        )
        if "final" in name or MASK.search(name):
            return True
        if name and is_read and not _COUNTER.match(name) and (FLAG.match(name) or FLAG.match(name.split("_")[-1])):
            more = _computed_from(source, each, target)  # type: ignore[arg-type]
            if more is None or any(not FLAG.match(other) for other in more):
                return True
    return any(isinstance(each.ops[0], ast.IsNot) and _is_next(each.left) for each in part.nodes_of(ast.Compare))


RULE = Rule(
    required_words=(
        "gamma|GAMMA|discount|0.9",
        re.compile(r"done|term|ended|, d =|, d in|\b\w+, \w+, r\w*, \w+, \w+(\)|\]|:)? (=|in) "),
        "rew|r +|r,",
        "backward(",
    ),
    find=find,
)

BAD = """
import copy

import torch
from torch import nn

torch.manual_seed(0)
states = torch.randn(256, 4)
actions = torch.randint(2, (256, 1))
rewards = states.sum(1)
next_states = states + 0.1 * torch.randn(256, 4)
ends = (torch.rand(256) < 0.2).float()
q_net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target_net = copy.deepcopy(q_net)
optimizer = torch.optim.Adam(q_net.parameters(), lr=0.01)
for step in range(20):
    rows = torch.randint(256, (32,))
    s, a, r, s2, done = states[rows], actions[rows], rewards[rows], next_states[rows], ends[rows]
    with torch.no_grad():
        target = r + 0.9 * target_net(s2).max(1).values
    loss = nn.functional.smooth_l1_loss(q_net(s).gather(1, a)[:, 0], target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        target_net.load_state_dict(q_net.state_dict())
"""

FAILURE = Failure(
    code="LOS022",
    title="TD target ignores the end of the episode",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"max(1).values": "max(1).values * (1 - done)"}),
    fix="Multiply the value of the next state by (1 - done) in the target.",
    rule=RULE,
)
