"""The batches come from a generator, which is empty after the first epoch.

What you see
    The first epoch takes its time, and all later ones end at once. The printed loss stays the same from the second
    epoch on, or is 0 or nan, and the model is as good as after one epoch.

Why it happens
    A generator, ``map``, ``zip`` or ``iter(...)`` can be iterated only once. A loop over one that is used up runs zero
    times and raises no error.

Fix
    Create the generator again in each epoch, or pass something that can be iterated again: a DataLoader, a list, or an
    object with ``__iter__``.

        train(model, read_batches(file), epochs=30)  # wrong: one generator for 30 epochs
        train(model, lambda: read_batches(file), epochs=30)  # right, with `for x, y in batches():` in each epoch

When this is fine
    - The generator never ends, and each epoch leaves the loop after some batches.
    - The program makes only one pass over the data.
    - The generator is created in the loop over the epochs.

How it is detected
    Only the linter finds it: a loop over epochs contains a loop over a variable or a parameter whose only value is a
    generator that was created outside: a call of a function with ``yield``, a generator expression, ``map``,
    ``filter``, ``zip`` or ``iter``. One of the two loops has to train, and the inner one must not be left early; it may
    be in a function, such as an evaluation, that the outer one calls with the generator.

References
    Python glossary, "iterator", on one that is used up, https://docs.python.org/3/glossary.html#term-iterator
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.method_chains import without_calls
from trueloop.analysis.queries.possible_values import MAX_DEPTH, enclosing_nodes, possible_values
from trueloop.analysis.queries.shuffled_loaders import function_called, passed_argument
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ONCE: Final = frozenset(("map", "filter", "zip", "iter", "chain", "islice"))
_PASSING: Final = frozenset(("enumerate", "tqdm", "track"))
_TRAINING: Final = frozenset(("backward", "step", "zero_grad"))
_LOOPS: Final = ast.For | ast.While


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loop over a generator within a loop over epochs that does not create it."""
    for loop in source.nodes_of(ast.For):
        iterable = without_calls(loop.iter, _PASSING)
        if not isinstance(iterable, ast.Name) or _is_left_early(loop):
            continue
        for name, node, outer in _repeated(source, loop, iterable):
            if any(isinstance(e, ast.Name) and e.id == name.id and isinstance(e.ctx, ast.Store) for e in walk(outer)):
                continue
            created = _only_value(source, name)
            if created is not None and not encloses(outer, created) and _is_used_up(source, created):
                yield Hit(
                    message=f"`{name.id}` is a generator, which the first epoch uses up: in all later epochs this "
                    f"{'loop' if node is loop else 'call'} has no batches.",
                    node=node,
                    related=((created, "the generator is created once, here"), (outer, "the loop over the epochs")),
                )


def _repeated(source: SourceFile, loop: ast.For, iterable: ast.Name) -> Iterator[tuple[ast.Name, ast.AST, ast.stmt]]:
    """Yield the variable that a loop reads in each epoch, the loop or a call of its function, and the epochs' loop."""
    outer = _outer_loop(source, loop)
    if outer is not None:
        yield from [(iterable, loop, outer)] if _trains(source, outer) else []
        return
    function = function_of(source, loop)
    if iterable.id not in [each.arg for each in getattr(getattr(function, "args", None), "args", ())]:
        return
    for call in definitions(source).calls.get(function.name, []):
        given = (
            passed_argument(source, function, call, iterable.id) if function_called(source, call) is function else None
        )
        outer = _outer_loop(source, call)
        if isinstance(given, ast.Name) and outer is not None and _trains(source, outer):
            yield given, call, outer


def _only_value(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the expression that gives a variable its value, through other variables and arguments; None if several."""
    for _ in range(MAX_DEPTH):
        values = possible_values(source, node)
        if len(values) != 1:
            return None
        node = values[0]
        if not isinstance(node, ast.Name | ast.Attribute):
            return node
    return None


def _outer_loop(source: SourceFile, loop: ast.AST) -> Any:
    """Return the loop around a loop in the same function that counts epochs; None if there is none."""
    outer = next((each for each in enclosing_nodes(source, loop) if isinstance(each, _LOOPS)), None)
    if not isinstance(outer, ast.For):
        return outer
    counter = without_calls(outer.iter, _PASSING)
    numbers = [getattr(each, "value", None) for each in getattr(counter, "args", ())]
    return outer if last_name(getattr(counter, "func", None)) in ("range", "trange") and numbers != [1] else None


def _trains(source: SourceFile, block: ast.AST, depth: int = 2) -> bool:
    """Return True for a block with a training step, in itself or in a function that it calls."""
    calls = list(nodes_in(block, ast.Call))
    functions = [each for call in calls if depth and (each := function_called(source, call)) is not None]
    return any(last_name(call.func) in _TRAINING for call in calls) or any(
        _trains(source, each, depth - 1) for each in functions
    )


def _is_left_early(loop: ast.For) -> bool:
    """Return True if a loop has a ``break`` of its own, or a ``return``."""
    inner = [each for statement in loop.body for each in walk(statement) if isinstance(each, _LOOPS)]
    breaks = [each for each in walk(loop) if isinstance(each, ast.Break)]
    return any(isinstance(each, ast.Return) for each in walk(loop)) or any(
        not any(encloses(each, stop) for each in inner) for stop in breaks
    )


def _is_used_up(source: SourceFile, value: ast.expr) -> bool:
    """Return True for an expression whose value can be iterated once, and ends."""
    if isinstance(value, ast.GeneratorExp):
        return True
    if not isinstance(value, ast.Call):
        return False
    name = last_name(value.func)
    function = definitions(source).functions.get(name)
    if function is not None:
        is_generator = any(function_of(source, e) is function for e in nodes_in(function, ast.Yield, ast.YieldFrom))
        is_endless = any(getattr(each.test, "value", False) for each in nodes_in(function, ast.While))
        return is_generator and not function.decorator_list and not is_endless
    return isinstance(value.func, ast.Name) and name in _ONCE and bool(value.args) and not _is_endless_source(value)


def _is_endless_source(call: ast.Call) -> bool:
    """Return True for ``zip(count(), x)`` or ``iter(f, None)``, which may never end."""
    calls_function = len(call.args) > 1 and last_name(call.func) == "iter"
    return calls_function or any(
        last_name(each.func) in ("cycle", "count", "repeat") for each in nodes_in(call, ast.Call)
    )


RULE = Rule(required_words=("for ", "backward|.step(", "yield|map(|filter(|zip(|iter(|chain(| for "), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(192, 6)
y = x.sum(1, keepdim=True)


def batches(size):
    for rows in torch.randperm(192).split(size):
        yield x[rows], y[rows]


model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs, data = 10, batches(16)
for epoch in range(epochs):
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
"""

FAILURE = Failure(
    code="DAT027",
    title="A generator is used up after the first epoch",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"epochs, data = 10, batches(16)": "epochs = 10", "in data:": "in batches(16):"}),
    fix="Create the generator in each epoch, or use a DataLoader or a list.",
    rule=RULE,
)
