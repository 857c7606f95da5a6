"""A function that draws a batch is cached, so every step gets the batch of its first call.

What you see
    The training loss falls to nearly zero within a few hundred steps, and the held-out score stays poor: the model has
    seen one batch only.

Why it happens
    ``functools.lru_cache`` and ``functools.cache`` return the result of the first call with the same arguments, and do
    not run the function again. ``get_batch("train", 64)`` then draws its rows once.

Fix
    Cache what reads the data, and draw the batch in a function without a cache:

        @lru_cache
        def tensors():
            return torch.load("data.pt")

        def get_batch(size):
            x, y = tensors()
            rows = torch.randint(len(x), (size,))
            return x[rows], y[rows]

When this is fine
    - The function returns all the data, from which the loop selects rows.
    - An argument is different in each step, such as the number of the step.
    - You overfit one batch on purpose: draw it once, before the loop.

How it is detected
    Only the linter finds it: a function with one of these decorators selects rows by random numbers, or takes ``next``
    of an iterator. A loop with a backward pass calls it with arguments that the loop does not change, and does not
    select from the result.

References
    Python, functools.lru_cache, https://docs.python.org/3/library/functools.html#functools.lru_cache
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import called_function, enclosing_loops
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_CACHES: Final = frozenset(("cache", "lru_cache", "memoize"))
_DRAWING: Final = frozenset(("randint", "choice", "choices", "sample", "integers", "random_integers"))
_SELECTING: Final = frozenset(("len", "zip", "TensorDataset", "DataLoader", "split", "chunk", "enumerate", "iter"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call in a training loop of a cached function that draws a batch."""
    drawing = {id(each): each for each in source.nodes_of(ast.FunctionDef) if _is_cached(each) and _draws(each)}
    for call in source.all_calls if drawing else ():
        function = called_function(source, call)
        if function is None or id(function) not in drawing:
            continue
        loops = enclosing_loops(source, call)
        if any(each and _trains(source, call, each) for each in loops) and not _is_selected_from(source, call):
            yield Hit(
                message=f"`{ast.unparse(call)}` returns the same batch in every step: `{function.name}` is cached, so "
                "it draws rows only in its first call.",
                node=call,
                related=((function.decorator_list[0], "cached here"),),
            )


def _is_cached(function: ast.FunctionDef) -> bool:
    decorators = [getattr(each, "func", each) for each in function.decorator_list]
    return any(last_name(each) in _CACHES for each in decorators)


def _draws(function: ast.FunctionDef) -> bool:
    """Return True if a function selects rows by random numbers, or takes the next batch of an iterator."""
    if any(isinstance(each.func, ast.Name) and each.func.id == "next" for each in nodes_in(function, ast.Call)):
        return True
    drawn = {
        name.id
        for each in nodes_in(function, ast.Assign)
        if _has_draw(each.value)
        for target in each.targets
        for name in nodes_in(target, ast.Name)
    }
    indices = [each.slice for each in nodes_in(function, ast.Subscript)]
    return any(_has_draw(each) or any(name.id in drawn for name in nodes_in(each, ast.Name)) for each in indices)


def _has_draw(node: ast.AST) -> bool:
    calls = nodes_in(node, ast.Call)
    prefix = any(  # torch.randperm(n)[:size]; two slices of a stored permutation are a split
        isinstance(each.value, ast.Call) and last_name(each.value.func) in ("randperm", "permutation")
        for each in nodes_in(node, ast.Subscript)
    )
    return prefix or any(last_name(each.func) in _DRAWING for each in calls)


def _trains(source: SourceFile, call: ast.Call, loops: tuple[ast.For | ast.While, ...]) -> bool:
    """Return True if the innermost loop differentiates what it computes, and does not change the arguments."""
    block: Any = function_of(source, call)
    scopes = [loops[0], block] if isinstance(block, ast.FunctionDef) else [loops[0]]
    changed_names = {each.id for each in nodes_in(loops[0], ast.Name) if isinstance(each.ctx, ast.Store)}
    arguments = [*call.args, *(each.value for each in call.keywords)]
    varies = any(isinstance(each, ast.Call | ast.Starred) for each in arguments) or any(
        name.id in changed_names for each in arguments for name in nodes_in(each, ast.Name)
    )
    return not varies and any(
        last_name(each.func) == "backward" for scope in scopes for each in nodes_in(scope, ast.Call)
    )


def _is_selected_from(source: SourceFile, call: ast.Call) -> bool:
    """Return True if rows are selected from the result of a call, so that it is not a batch."""
    statement = source.parents.get(id(call))
    if not isinstance(statement, ast.Assign):
        return isinstance(statement, ast.Subscript)
    names = {name.id for target in statement.targets for name in nodes_in(target, ast.Name)}
    block = function_of(source, call)
    selected = [each.value for each in nodes_in(block, ast.Subscript) if not isinstance(each.slice, ast.Constant)]
    selected += [part for each in nodes_in(block, ast.Call) if last_name(each.func) in _SELECTING for part in each.args]
    selected += [each.func.value for each in nodes_in(block, ast.Call) if last_name(each.func) in ("split", "chunk")
                 and isinstance(each.func, ast.Attribute)]  # fmt: skip
    return any(isinstance(each, ast.Name) and each.id in names for each in selected)


RULE = Rule(required_words=("@", "cache|memoize", "backward"), find=find)

BAD = """
from functools import lru_cache

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(400, 8)
y = x.sum(1, keepdim=True)


@lru_cache
def get_batch(size):
    rows = torch.randint(len(x), (size,))
    return x[rows], y[rows]


model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(60):
    inputs, targets = get_batch(32)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT044",
    title="A cached function returns the same batch in every step",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"from functools import lru_cache\n\n": "", "@lru_cache\n": ""}),
    fix="Cache the data, and draw the batch in a function without a cache.",
    rule=RULE,
)
