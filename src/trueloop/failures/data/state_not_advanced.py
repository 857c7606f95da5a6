"""The loop over an episode never takes over the next state, stores one state as both of a transition, or is not reset.

What you see
    The agent does not learn, or only what to do first. All log-probabilities of an episode are nearly equal. Or a
    Q-network learns that no action changes anything: its values are rewards without a future.

Why it happens
    ``env.step(action)`` returns the next state under a name of its own. Without ``state = next_state`` the variable
    that the policy reads keeps the result of ``env.reset()``. And after ``state, reward, done = env.step(action)`` the
    state before the step is lost: ``memory.append((state, action, reward, state))`` contains the next one twice.
    Without ``env.reset()`` in each episode, all episodes after the first one end at once, or go on where it ended.

Fix
    Take over the next state at the end of each step.

        next_state, reward, done, info = env.step(action)
        memory.append((state, action, reward, next_state))
        state = next_state

When this is fine
    - ``env.step`` assigns to the variable that the policy reads.
    - The policy reads the state from the environment itself.
    - The transition is the last one of its episode, so that its next state is not used.
    - The environment starts again by itself, as a vector environment does.

How it is detected
    Only the linter finds it: a loop calls ``env.step``, reads a variable that was assigned from ``env.reset()``
    before the loop, and never changes it, except by another reset at the end of an episode. Or a call or tuple in the
    loop contains the action and the reward of ``env.step`` and twice the same state. Or a loop over episodes contains
    a loop with ``env.step`` that ends when the episode is done, and ``env.reset()`` is called before both only.

References
    Gymnasium, "Basic Usage", https://gymnasium.farama.org/introduction/basic_usage/
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, dotted_name, encloses, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_KEEPING: Final = frozenset((
    "copy", "clone", "detach", "cpu", "numpy", "to", "float", "unsqueeze", "squeeze", "flatten", "view", "reshape",
    "item", "ravel",
))  # fmt: skip
_MAKING: Final = frozenset((
    "tensor", "as_tensor", "array", "asarray", "from_numpy", "FloatTensor", "Tensor", "copy", "deepcopy", "float",
    "int",
))  # fmt: skip
_NEXT: Final = re.compile(r"(?<![a-z])(next|nxt|new)_?|_?(next|nxt|new)$", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each step of an environment in a loop that reads only the state of the reset."""
    for step in source.nodes_of(ast.Assign):
        match step:
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id=following), _, *_])],
                value=ast.Call(func=ast.Attribute(attr="step", value=env), args=[_, *_]),
            ):
                pass
            case _:
                continue
        loop = _innermost_loop(source, step)
        if loop is None:
            continue
        yield from _equal_states(source, loop, step)
        yield from _never_reset(source, loop, step)
        for state in _reset_states(function_of(source, step), dotted_name(env)):
            if state != following and _is_only_read(source, loop, state, step) and not _acts_on(loop, step, following):
                yield Hit(
                    message=f"`{state}` is never set to `{following}` in this loop, so every action is chosen for the "
                    "first state of the episode.",
                    node=step,
                    fix=_fix(source, loop, state, following),
                )


def _acts_on(loop: ast.For | ast.While, step: ast.Assign, following: str) -> bool:
    """Return True if a loop chooses the action for the state that the step returns: ``action = act(following)``."""
    action = {each.id for each in nodes_in(step.value, ast.Name) if isinstance(each.ctx, ast.Load)}
    return any(
        action & {each.id for target in statement.targets for each in nodes_in(target, ast.Name)}
        and any(each.id == following for each in nodes_in(statement.value, ast.Name))
        for statement in nodes_in(loop, ast.Assign)
        if statement is not step
    )


def _never_reset(source: SourceFile, loop: ast.For | ast.While, step: ast.Assign) -> Iterator[Hit]:
    """Yield the loop over episodes around the loop of an episode, if it never resets the environment."""
    env: Any = step.value.func.value  # type: ignore[attr-defined]
    tests = [each.test for each in nodes_in(loop, ast.If) if any(isinstance(part, ast.Break) for part in each.body)]
    tests += [loop.test] if isinstance(loop, ast.While) else []
    ends = {each.id for test in tests for each in nodes_in(test, ast.Name)}
    results = {each.id for each in nodes_in(step.targets[0], ast.Name)}
    episodes = _innermost_loop(source, loop)
    if not ends & results or not isinstance(episodes, ast.For) or not isinstance(env, ast.Name):
        return
    inside = nodes_in(episodes, ast.Name)
    is_new = any(each.id == env.id and isinstance(each.ctx, ast.Store) for each in inside)
    is_given = any(  # play(env) may reset it
        env.id in [last_name(given) for given in (*call.args, *(key.value for key in call.keywords))]
        for call in nodes_in(episodes, ast.Call)
    )
    resets = [each for each in source.all_calls if last_name(each.func) == "reset"]
    if is_new or is_given or any(encloses(episodes, each) for each in resets):
        return
    if any(dotted_name(getattr(each.func, "value", None)) == env.id for each in resets):
        yield Hit(
            message=f"`{env.id}.reset()` is called before the episodes only: each episode after the first one starts "
            "where the one before has ended.",
            node=episodes,
            related=((step, "the step of the environment"),),
        )


def _equal_states(source: SourceFile, loop: ast.For | ast.While, step: ast.Assign) -> Iterator[Hit]:
    """Yield each transition in a loop whose state and next state have the same value."""
    call: Any = step.value
    results = [dotted_name(each) for each in step.targets[0].elts]  # type: ignore[attr-defined]
    states = {results[0], *_reset_states(function_of(source, step), dotted_name(call.func.value))}
    needed = {results[1], *map(_name, call.args)} - {""}
    lists = dict[str, tuple[str, int] | None]()
    for statement in nodes_in(loop, ast.Expr, ast.Assign):
        if statement is step or _depends_on(source, statement, loop, set(results[2:])):
            continue
        for stored in [items for items in map(_items, walk(statement)) if len(items) > 3 and needed & set(items)][:1]:
            origins = [_origin(loop, name, statement.lineno) for name in stored]
            twice = [o for o in origins if o[0] in states and origins.count(o) > 1]
            if twice and "True" not in stored:
                yield _same(source, step, statement, stored[origins.index(twice[0])])
        for container, value in _stored_alone(statement):
            origin = _origin(loop, value, statement.lineno)
            lists[container] = origin if origin[0] in states else None
            for other, earlier in lists.items():
                names = _NEXT.sub("", container), _NEXT.sub("", other)
                if container != other and names[0] == names[1] and earlier == origin:
                    yield _same(source, step, statement, value)


def _same(source: SourceFile, step: ast.stmt, statement: ast.stmt, state: str) -> Hit:
    return Hit(
        message=f"`{source.text.segment(statement)}` stores `{state}` both as the state before the action and as the "
        "state after it: no transition shows what its action changed.",
        node=statement,
        related=((step, "the step of the environment"),),
    )


def _items(node: ast.AST) -> list[str]:
    """Return the variables that a tuple, a dictionary or a call is made of, "" for other items."""
    match node:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Dict(values=items):
            return [_name(each) for each in items]
        case ast.Call(func=func) if last_name(func) not in ("print", "log", "info"):
            return [_name(each) for each in (*node.args, *(key.value for key in node.keywords))]
        case _:
            return []


def _stored_alone(statement: ast.Expr | ast.Assign) -> Iterator[tuple[str, str]]:
    """Yield the list or array and the variable of ``states.append(state)`` or ``states[i] = state``."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append", value=owner), args=[value])):
            yield dotted_name(owner), _name(value)
        case ast.Assign(targets=[ast.Subscript(value=owner)], value=value):
            yield dotted_name(owner), _name(value)
        case _:
            pass


def _name(node: ast.expr) -> str:
    """Return the variable that an expression converts or copies; "True" for this constant, "" for anything else."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPING:
            node = node.func.value
        elif node.args and last_name(node.func) in _MAKING:
            node = node.args[0]
        else:
            return ""
    return node.id if isinstance(node, ast.Name) else "True" if getattr(node, "value", None) is True else ""


def _origin(loop: ast.AST, name: str, line: int) -> tuple[str, int]:
    """Return the variable and the line in a loop from which a variable has its value; line 0 is before the loop."""
    last: Any = None
    for each in nodes_in(loop, ast.stmt):
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        stored = {part.id for target in targets if target is not None for part in nodes_in(target, ast.Name)}
        if name in stored and each.lineno < line and (last is None or each.lineno > last.lineno):
            last = each
    copied = _name(last.value) if isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Name) else ""
    if last is None:
        return name, 0
    return _origin(loop, copied, last.lineno) if copied else (name, last.lineno)


def _depends_on(source: SourceFile, node: ast.AST, loop: ast.AST, names: set[str]) -> bool:
    """Return True if a condition in a loop, such as the end of an episode, decides whether a node runs."""
    tests = [each.test for each in enclosing_nodes(source, node) if isinstance(each, ast.If) and encloses(loop, each)]
    return any(each.id in names for test in tests for each in nodes_in(test, ast.Name))


def _innermost_loop(source: SourceFile, node: ast.AST) -> ast.For | ast.While | None:
    return next((each for each in enclosing_nodes(source, node) if isinstance(each, ast.For | ast.While)), None)


def _reset_states(function: Any, env: str) -> Iterator[str]:
    """Yield the variables that get the result of ``env.reset()``."""
    for each in nodes_in(function, ast.Assign):
        match each:
            case ast.Assign(
                targets=[ast.Name(id=name) | ast.Tuple(elts=[ast.Name(id=name), *_])],
                value=ast.Call(func=ast.Attribute(attr="reset", value=owner)),
            ) if dotted_name(owner) == env:
                yield name
            case _:
                pass


def _is_only_read(source: SourceFile, loop: ast.For | ast.While, name: str, step: ast.Assign) -> bool:
    """Return True if a loop reads a variable, but does not change it or its parts, except by a reset at the end."""
    uses = [each for each in nodes_in(loop, ast.Name) if each.id == name]
    changed_parts = [
        each.value
        for each in nodes_in(loop, ast.Subscript, ast.Attribute)
        if isinstance(each.ctx, ast.Store) or (isinstance(each, ast.Attribute) and each.attr.endswith("_"))
    ]
    is_changed = any(isinstance(each, ast.Name) and each.id == name for each in changed_parts)
    stores = [source.statement_of(each) for each in uses if not isinstance(each.ctx, ast.Load)]
    is_read = any(not encloses(each, use) for use in uses if isinstance(use.ctx, ast.Load) for each in stores or [step])
    return is_read and not is_changed and all(_is_reset_at_end(source, loop, each, name, step) for each in stores)


def _is_reset_at_end(source: SourceFile, loop: ast.AST, statement: Any, name: str, step: ast.Assign) -> bool:
    """Return True for ``state = env.reset()`` where a result of the step says so, and for what converts a state."""
    results = {each.id for each in nodes_in(step.targets[0], ast.Name)}
    if not isinstance(statement, ast.Assign) or not _depends_on(source, statement, loop, results):
        return False
    read = {each.id for each in nodes_in(statement.value, ast.Name)}
    is_reset = any(last_name(each.func) == "reset" for each in nodes_in(statement.value, ast.Call))
    return not read & results and (is_reset or name in read)


def _fix(source: SourceFile, loop: ast.For | ast.While, state: str, following: str) -> Fix | None:
    edit: Edit | None = source.text.insert_after(loop.body[-1], f"{state} = {following}")
    return Fix((edit,), safe=False, description="Take over the next state") if edit else None


RULE = Rule(required_words=(".step(", ".reset(", "torch", "for |while "), find=find)

BAD = """
import torch
from torch import nn
from torch.distributions import Categorical


class Corridor:
    def reset(self):
        self.place = torch.zeros(2)
        return self.place

    def step(self, action):
        self.place = self.place + torch.tensor([0.1, 0.2 * action - 0.1])
        return self.place, -abs(self.place[1].item()), self.place[0] > 1, {}


torch.manual_seed(0)
env = Corridor()
policy = nn.Linear(2, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for episode in range(20):
    state = env.reset()
    done = False
    log_probs, rewards = [], []
    while not done:
        dist = Categorical(logits=policy(state))
        action = dist.sample()
        next_state, reward, done, info = env.step(action)
        log_probs.append(dist.log_prob(action))
        rewards.append(reward)
    loss = -torch.stack(log_probs).sum() * sum(rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sum(rewards))
"""

FAILURE = Failure(
    code="DAT041",
    title="The next state is never taken over, stored or reset",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD, {"        rewards.append(reward)\n": "        rewards.append(reward)\n        state = next_state\n"}
    ),
    fix="Set the state to the next one at the end of each step.",
    rule=RULE,
)
