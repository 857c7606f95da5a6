"""A schedule whose length is counted in epochs is stepped only in every k-th epoch.

What you see
    The learning rate hardly changes: a ``StepLR`` never makes its first step, a cosine schedule ends at a tenth of its
    way.

Why it happens
    ``StepLR(optimizer, step_size=10)`` counts calls of ``step()`` and waits for ten of them. Under
    ``if epoch % 10 == 0`` they take a hundred epochs.

Fix
    Advance the schedule in each epoch; it counts them itself.

        scheduler = StepLR(optimizer, step_size=10)
        for epoch in range(epochs):
            train_one_epoch()
            scheduler.step()

    Or count the length in calls: ``step_size=1`` or ``T_max=epochs // 10``.

When this is fine
    - The length is counted in calls of ``step()``.
    - The length was planned for a longer run.

How it is detected
    Only the linter finds it: all steps of a scheduler are under ``if counter % k == c`` in one loop over a range, and
    the length counts iterations of this loop: ``T_max`` or ``total_iters`` is the number of iterations, ``step_size``
    equals ``k``, or a ``step_size`` or milestone is within the number of iterations, but not of calls.

References
    torch.optim.lr_scheduler.StepLR, https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.StepLR.html
"""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.class_instances import enclosing_loops
from trueloop.analysis.queries.possible_values import enclosing_nodes, known_integer, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LENGTHS: Final = {
    "CosineAnnealingLR": (1, "T_max"),
    "PolynomialLR": (1, "total_iters"),
    "LinearLR": (3, "total_iters"),
    "StepLR": (1, "step_size"),
    "MultiStepLR": (1, "milestones"),
}
"""Class of a schedule -> position and name of the argument that counts its calls."""


class _Period(NamedTuple):
    """A condition that is true in every k-th iteration of a loop."""

    test: ast.expr
    every: int
    bound: ast.expr
    """The end of the range of the loop."""
    iterations: int | None


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each periodic step of a scheduler whose length counts the iterations."""
    steps = source.ops(OpKind.SCHEDULER_STEP)
    for step in steps:
        if any(each.subject is step.subject and each.node is not step.node for each in steps):
            continue
        length = _length(step)
        period = _period(source, step.node) if length is not None else None
        if length is None or period is None:
            continue
        wrong = _wrong_length(source, length, period)
        if wrong:
            yield Hit(
                message=f"`{ast.unparse(step.node)}` runs only if `{ast.unparse(period.test)}`, in every "
                f"{period.every}th iteration, but `{wrong}` counts all iterations.",
                node=step.node,
                related=((period.test, "the condition"), (length[1], "the length of the schedule")),
            )


def _length(step: Op) -> tuple[str, ast.expr] | None:
    """Return the name and value of the length of a scheduler; None if it is unknown."""
    created: Any = step.subject.node
    if not isinstance(created, ast.Call) or not isinstance(step.node, ast.Call) or step.node.args:
        return None
    position, name = _LENGTHS.get(last_name(created.func), (0, ""))
    values = [each.value for each in created.keywords if each.arg == name] or created.args[position : position + 1]
    return (name, values[0]) if name and values else None


def _period(source: SourceFile, node: ast.AST) -> _Period | None:
    """Return the periodic condition around a step in one loop over a range; None if there is none."""
    conditions = [e for e in enclosing_nodes(source, node) if isinstance(e, ast.If) and encloses(e, node)]
    chains = enclosing_loops(source, node)
    loops = {id(each): each for chain in chains for each in chain}
    if len(conditions) != 1 or len(loops) != 1 or any(encloses(each, node) for each in conditions[0].orelse):
        return None
    every = _remainder_of(source, conditions[0].test)
    match next(iter(loops.values())):
        case ast.For(iter=ast.Call(func=ast.Name(id="range" | "trange"), args=[end])):
            start = None
        case ast.For(iter=ast.Call(func=ast.Name(id="range" | "trange"), args=[start, end])):
            pass
        case _:
            return None
    if every is None or every < 2:
        return None
    if start is not None and isinstance(end, ast.BinOp) and ast.unparse(end.right) == ast.unparse(start):
        start, end = None, end.left  # range(1, epochs + 1)
    stop, first = _number(source, end), 0 if start is None else _number(source, start)
    iterations = None if stop is None or first is None else stop - first
    return _Period(conditions[0].test, every, end, iterations)


def _remainder_of(source: SourceFile, test: ast.expr) -> int | None:
    """Return k for ``epoch % k == 0`` and ``not (epoch + 1) % k``; None for other conditions."""
    match test:
        case ast.Compare(left=ast.BinOp(op=ast.Mod(), right=every), ops=[ast.Eq()]):
            return _number(source, every)
        case ast.UnaryOp(op=ast.Not(), operand=ast.BinOp(op=ast.Mod(), right=every)):
            return _number(source, every)
        case _:
            return None


def _wrong_length(source: SourceFile, length: tuple[str, ast.expr], period: _Period) -> str:
    """Return the argument that counts iterations instead of calls; "" if it may count calls."""
    name, value = length
    text = f"{name}={ast.unparse(value)}"
    number = _number(source, value)
    if name in ("T_max", "total_iters"):
        is_same = ast.unparse(value) == ast.unparse(period.bound)
        return text if is_same or (number is not None and number == period.iterations) else ""
    if name == "step_size" and number == period.every:
        return text
    if period.iterations is None:
        return ""
    lists = [each.elts for each in origins(source, value, 3) if isinstance(each, ast.List | ast.Tuple)]
    numbers = [number] if number is not None else [_number(source, each) for each in (lists[0] if lists else ())]
    calls = -(-period.iterations // period.every)
    known = [each for each in numbers if each is not None]
    return text if any(calls < each < period.iterations for each in known) else ""


def _number(source: SourceFile, node: ast.expr) -> int | None:
    """Return the integer that a value has; None if it is unknown or has several values."""
    return None if nodes_in(node, ast.BinOp) else known_integer(source, node, 4)


RULE: Final = Rule(
    required_words=("StepLR|CosineAnnealingLR|PolynomialLR|LinearLR", ".step()", "% ", "range(", "if "), find=find
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(200, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.1)
for epoch in range(40):
    for rows in torch.randperm(200).split(50):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    if (epoch + 1) % 10 == 0:
        scheduler.step()
print(loss.item())
"""

FAILURE = Failure(
    code="SCH017",
    title="Schedule counted in epochs is stepped in every k-th epoch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"    if (epoch + 1) % 10 == 0:\n        scheduler.step()": "    scheduler.step()"}),
    fix="Call scheduler.step() in every epoch, or count the length in calls.",
    rule=RULE,
)
