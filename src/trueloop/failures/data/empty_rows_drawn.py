"""A replay buffer draws from all of its rows before they are filled, so most of a batch is zeros.

What you see
    The agent learns slowly at first, or its values collapse to 0. The smaller the share of the buffer that is filled,
    the worse it is, and a larger buffer makes it worse.

Why it happens
    A buffer of a fixed size is allocated with zeros. If ``sample`` draws rows between 0 and the size, it returns rows
    that no step has written, with a state, an action and a reward of 0.

Fix
    Count the rows that are filled, and draw among them:

        self.count = min(self.count + 1, self.size)
        rows = np.random.randint(0, self.count, size=batch_size)

When this is fine
    - The buffer is filled before the first draw: a method says whether it is full, or the program waits for its size.
    - The buffer grows with its steps, as a list or deque does.

How it is detected
    Only the linter finds it, from the source code: a class that allocates arrays of a size, writes them at a position
    that starts again at 0 after this size, draws rows below the same size, and does not count what it has written.

References
    Mnih et al., 2015, "Human-level control through deep reinforcement learning", algorithm 1,
    https://doi.org/10.1038/nature14236
    Stable-Baselines3, "ReplayBuffer", https://stable-baselines3.readthedocs.io/en/master/common/buffers.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import single_assignments
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_DRAWS: Final = frozenset(("randint", "choice", "integers", "randrange", "randperm", "permutation", "sample"))
_ALLOCATES: Final = frozenset(("zeros", "empty", "zeros_like"))
_KNOWS: Final = re.compile(r"full|fill|stored|valid|ready|warm|written", re.IGNORECASE)
"""Names in a class that knows how many of its rows are filled."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each draw among all rows of a buffer that does not count the rows that it has written."""
    for owner in source.nodes_of(ast.ClassDef):
        sizes = {size for each in nodes_in(owner, ast.BinOp) if (size := _wraps_at(each))}
        if not sizes or _counts(owner) or not _allocates(owner, sizes):
            continue
        for call in nodes_in(owner, ast.Call):
            size = _drawn_below(call) if last_name(call.func) in _DRAWS else ""
            if size in sizes and not _waits(source, owner, size.removeprefix("self.")):
                yield Hit(
                    message=f"`{ast.unparse(call)}` draws among all rows of the buffer, also those that no step has "
                    f"written yet: `{size}` is its size, not the number of rows that are filled.",
                    node=call,
                )


def _counts(owner: ast.ClassDef) -> bool:
    """Return True for a class that counts its rows, or has a name that says so."""
    called = {last_name(each.func) for each in nodes_in(owner, ast.Call)}
    names = {each.attr for each in nodes_in(owner, ast.Attribute)} | {e.name for e in nodes_in(owner, ast.FunctionDef)}
    adds = any(isinstance(each.target, ast.Attribute) for each in nodes_in(owner, ast.AugAssign))
    return adds or not called.isdisjoint(("min", "minimum", "len", "any", "nonzero")) or any(map(_KNOWS.search, names))


def _wraps_at(node: ast.BinOp) -> str:
    """Return the size of ``(self.position + 1) % self.size``; "" for other expressions."""
    match node:
        case ast.BinOp(
            left=ast.BinOp(left=ast.Attribute(), op=ast.Add(), right=ast.Constant(value=1)),
            op=ast.Mod(),
            right=ast.Attribute(value=ast.Name(id="self")) as size,
        ):
            return ast.unparse(size)
        case _:
            return ""


def _allocates(owner: ast.ClassDef, sizes: set[str]) -> bool:
    """Return True for arrays with as many rows, also where ``__init__`` allocates them by its argument."""
    names = sizes | {ast.unparse(value) for target, value in single_assignments(owner) if ast.unparse(target) in sizes}
    calls = [each for each in nodes_in(owner, ast.Call) if last_name(each.func) in _ALLOCATES]
    parts = [ast.unparse(part) for each in calls for part in nodes_in(each, ast.Name, ast.Attribute)]
    return not names.isdisjoint(parts)


def _drawn_below(call: ast.Call) -> str:
    """Return the upper bound of the rows that a call draws, if the lower one is 0; "" if there is none."""
    arguments = [each for each in call.args if integer(each) != 0]
    first = arguments[0] if arguments else None
    match first:
        case ast.Call(func=func, args=[inner]) if last_name(func) in ("range", "arange"):
            first = inner
        case _:
            pass
    return ast.unparse(first) if isinstance(first, ast.Attribute) else ""


def _waits(source: SourceFile, owner: ast.ClassDef, size: str) -> bool:
    """Return True if the program outside of the class compares something with the size, and not with a share of it."""
    for each in source.nodes_of(ast.Compare):
        numbers = [part.value for part in nodes_in(each, ast.Constant) if isinstance(part.value, float)]
        is_share = any(0 < number < 1 for number in numbers)
        names = {last_name(part) for part in nodes_in(each, ast.Name, ast.Attribute)}
        if size in names and not is_share and not encloses(owner, each):
            return True
    return False


RULE = Rule(
    required_words=(
        "randint|choice|integers|randrange|randperm|permutation|.sample(",
        "% self.|%self.",
        "zeros|empty",
        "class ",
        "reward|state|obs",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn


class Replay:
    def __init__(self, size):
        self.size, self.position = size, 0
        self.states, self.rewards = torch.zeros(size, 3), torch.zeros(size)

    def add(self, state, reward):
        self.states[self.position], self.rewards[self.position] = state, reward
        self.position = (self.position + 1) % self.size

    def sample(self, batch_size):
        rows = torch.randint(0, self.size, (batch_size,))
        return self.states[rows], self.rewards[rows]


torch.manual_seed(0)
replay, critic = Replay(1000), nn.Linear(3, 1)
optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
for step in range(100):
    state = torch.randn(3)
    replay.add(state, state.sum() + 1)
    states, rewards = replay.sample(16)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(critic(states)[:, 0], rewards)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="DAT059",
    title="A replay buffer draws rows that are still empty",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "self.size, self.position = size, 0": "self.size, self.position, self.count = size, 0, 0",
            "self.position = (": "self.count = min(self.count + 1, self.size)\n        self.position = (",
            "randint(0, self.size": "randint(0, self.count",
        },
    ),
    fix="Count the rows that are filled, and draw among them only.",
    rule=RULE,
)
