"""An epsilon-greedy policy acts at random with probability 1 - epsilon, so it explores more the more it has learned.

What you see
    The returns fall during training, just as epsilon does, or stay at those of random actions, although the
    Q-network learns.

Why it happens
    Epsilon is the probability of a random action. With ``if random.random() > epsilon: return random_action()`` the
    comparison is the wrong way round: with an epsilon of 0.05 at the end, 95 % of the actions are random.

Fix
    Exchange the comparison, or the branches:

        if random.random() < epsilon:
            return env.action_space.sample()
        return q_net(state).argmax().item()

When this is fine
    - The variable is the probability of the greedy action: it grows during training, or is a constant such as 0.9.
    - The random branch chooses among the best actions.

How it is detected
    Only the linter finds it, from the source code: a random number that is compared with a variable called epsilon, a
    branch that draws a random action, and another one that takes the best action or calls a network. It is silent if
    epsilon only grows, or is constant and at least one half.

References
    Mnih et al., 2015, "Human-level control through deep reinforcement learning", algorithm 1,
    https://doi.org/10.1038/nature14236
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueloop.analysis.queries.method_chains import without_methods
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_EPSILON: Final = re.compile(r"(^|_)(eps|epsilon)(_?(threshold|now|t|greedy|value|start|current|train|i|k))?$", re.I)
_UNIFORM: Final = frozenset(("random", "rand", "uniform", "random_sample"))
_DRAWN: Final = frozenset(("randrange", "randint", "choice", "sample", "integers", "random_action", "sample_action"))
MIN_GREEDY: Final = 0.5  # a constant epsilon is the probability of the less frequent action
_BEST: Final = frozenset(("argmax", "max", "greedy", "best_action", "topk"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each policy that acts at random where it should be greedy."""
    for node in source.nodes_of(ast.If, ast.IfExp):
        explores_if_less = _explores_if_less(node.test)
        if explores_if_less is None:
            continue
        if isinstance(node, ast.IfExp):
            first: Sequence[ast.AST] = [node.body]
            second: Sequence[ast.AST] = [node.orelse]
        else:
            first, second = node.body, node.orelse or _following(source, node)
        less, more = (first, second) if explores_if_less else (second, first)
        if _is_best(less) and _is_random(more) and not _is_probability_of_greedy(source, node.test):
            yield Hit(
                message=f"With `{ast.unparse(node.test)}` the action is random with probability 1 - epsilon instead of "
                "epsilon.",
                node=node.test,
            )


def _explores_if_less(test: ast.expr) -> bool | None:
    """Return True for ``random() < epsilon``, False for ``random() > epsilon``, None for other conditions."""
    match test:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            is_less = isinstance(operator, ast.Lt | ast.LtE)
            if not is_less and not isinstance(operator, ast.Gt | ast.GtE):
                return None
            if _is_uniform(left) and _is_epsilon(right):
                return is_less
            return not is_less if _is_uniform(right) and _is_epsilon(left) else None
        case _:
            return None


def _is_epsilon(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and bool(_EPSILON.search(last_name(node)))


def _is_uniform(node: ast.expr) -> bool:
    """Return True for ``random.random()``, ``np.random.rand()`` and ``torch.rand(1).item()``."""
    node = without_methods(node, ("item",))
    return isinstance(node, ast.Call) and last_name(node.func) in _UNIFORM


def _is_probability_of_greedy(source: SourceFile, test: ast.expr) -> bool:
    """Return True if epsilon grows in the program, or has no value below one half and never changes."""
    names = {last_name(each) for each in nodes_in(test, ast.Name, ast.Attribute) if _is_epsilon(each)}
    values = [(target, value) for target, value in _values(source) if last_name(target).lstrip("-") in names]
    constants = [each.value for _, each in values if isinstance(each, ast.Constant)]
    numbers = [each for each in constants if isinstance(each, int | float)]
    if any(_changes_by(target, value, ast.Sub | ast.Mult | ast.Div | ast.Pow) for target, value in values):
        return False
    grows = any(_changes_by(target, value, ast.Add) for target, value in values)
    return grows or (bool(numbers) and len(numbers) == len(values) and min(numbers) >= MIN_GREEDY)


def _values(source: SourceFile) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield the variables, attributes and parameters of the program with the values that they get."""
    for node in source.nodes_of(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.FunctionDef, ast.Call):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((each, value) for each in targets)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield target, value
            case ast.AugAssign(target=target, op=op, value=value):
                yield target, ast.BinOp(target, op, value)
            case ast.FunctionDef(args=arguments):
                given = [*arguments.posonlyargs, *arguments.args]
                pairs = [*zip(given[len(given) - len(arguments.defaults) :], arguments.defaults, strict=True)]
                pairs += [(a, v) for a, v in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if v]
                yield from ((ast.Name(each.arg), value) for each, value in pairs)
            case ast.Call(func=func, args=[ast.Constant(value=str() as option), *_], keywords=keywords):
                if last_name(func) == "add_argument":
                    yield from ((ast.Name(option), each.value) for each in keywords if each.arg == "default")
            case ast.Call(keywords=keywords):
                yield from ((ast.Name(each.arg), each.value) for each in keywords if each.arg)
            case _:
                pass


def _changes_by(target: ast.AST, value: ast.expr, operators: Any) -> bool:
    """Return True for ``epsilon + step`` and ``min(epsilon + step, 0.9)``, if the operators contain `ast.Add`."""
    name = ast.unparse(target)
    return any(
        isinstance(each.op, operators) and name in (ast.unparse(each.left), ast.unparse(each.right))
        for each in nodes_in(value, ast.BinOp)
    )


def _following(source: SourceFile, node: ast.If) -> Sequence[ast.AST]:
    """Return the statements after an ``if`` whose body returns."""
    return source.following(node) if isinstance(node.body[-1], ast.Return | ast.Continue) else []


def _is_random(statements: Sequence[ast.AST]) -> bool:
    calls = [call for each in statements for call in nodes_in(each, ast.Call)]
    return any(last_name(each.func) in _DRAWN for each in calls) and not _calls_best(calls)


def _is_best(statements: Sequence[ast.AST]) -> bool:
    calls = [call for each in statements for call in nodes_in(each, ast.Call)]
    return _calls_best(calls) and not any(last_name(each.func) in _DRAWN for each in calls)


def _calls_best(calls: Sequence[ast.Call]) -> bool:
    return any(last_name(each.func) in _BEST or "greedy" in dotted_name(each.func) for each in calls)


RULE = Rule(required_words=("eps", "rand", "argmax|max(|greedy", "torch"), find=find, depends_on_users=True)

BAD = """
import random
import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
q_net = nn.Linear(2, 2)
optimizer = torch.optim.Adam(q_net.parameters(), lr=0.05)


def act(state, epsilon):
    if random.random() > epsilon:
        return random.randrange(2)
    with torch.no_grad():
        return q_net(state).argmax().item()


epsilon, total = 1.0, 0.0
for step in range(60):
    state = torch.randn(2)
    action = act(state, epsilon)
    reward = state[action].item()
    total += reward
    optimizer.zero_grad()
    (q_net(state)[action] - reward).pow(2).backward()
    optimizer.step()
    epsilon = max(0.05, epsilon * 0.95)
print(f"reward {total:.1f}")
"""

FAILURE = Failure(
    code="DAT033",
    title="Epsilon-greedy explores with probability 1 - epsilon",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"random.random() > epsilon": "random.random() < epsilon"}),
    fix="Act at random if the random number is less than epsilon.",
    rule=RULE,
)
