"""The progress of a schedule is computed with ``//``, so it is 0 until the end and the learning rate is constant.

What you see
    The learning rate does not follow the schedule: with a cosine it stays at its highest value, with a warm-up it is 0
    and then jumps.

Why it happens
    ``epoch // epochs`` rounds down: it is 0 for every epoch of the run. The cosine of a whole multiple of pi is 1 or
    -1. Both are valid numbers.

Fix
    Divide with ``/``:

        scheduler = LambdaLR(optimizer, lambda e: 0.5 * (1 + math.cos(math.pi * e / epochs)))

When this is fine
    - The schedule has steps on purpose: ``0.1 ** (epoch // 30)``.
    - The quotient is divided again, or is the index of a cycle.
    - The counter goes beyond the number that it is divided by.

How it is detected
    Only the linter finds it: a whole multiple of pi, ``math.pi * (step // total)``, within a cosine; the quotient of
    the variable of a loop, or of the parameter of a LambdaLR's function, and the length of the loop that trains; and
    ``min(1.0, step // warmup)`` in a LambdaLR's function.

References
    LambdaLR, https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.LambdaLR.html
    Python, "Binary arithmetic operations",
    https://docs.python.org/3/reference/expressions.html#binary-arithmetic-operations
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SCHEDULERS: Final = ("LambdaLR", "MultiplicativeLR")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each quotient that is rounded down although its fraction is meant."""
    quotients = [each for each in source.nodes_of(ast.BinOp) if isinstance(each.op, ast.FloorDiv)]
    if not quotients:
        return
    lambdas = _functions_of_schedules(source)
    loops = [each for each in source.nodes_of(ast.For) if _length(each) is not None and _trains(source, each)]
    for each in quotients:
        function = next((f for f in lambdas if encloses(f, each)), None)
        if _is_multiple_of_pi(source, each):
            why = "a cosine of a whole multiple of pi is 1 or -1"
        elif function is not None and _is_capped(source, each, function):
            why = "it is 0 until the end of the warm-up"
        elif _is_zero(source, each, function, loops):
            why = "it is 0 in the whole loop"
        else:
            continue
        yield Hit(message=f"`{source.text.segment(each)}` is rounded down: {why}.", node=each, fix=_fix(source, each))


def _functions_of_schedules(source: SourceFile) -> list[Any]:
    """Return the functions from which schedulers compute their rates."""
    calls = [each for each in source.all_calls if last_name(each.func) in _SCHEDULERS]
    arguments = [argument for each in calls for argument in (*each.args[1:], *(k.value for k in each.keywords))]
    found: list[Any] = [inner for each in arguments for inner in nodes_in(each, ast.Lambda)]
    names = {name.id for each in arguments for name in nodes_in(each, ast.Name)}
    found += [each for each in source.nodes_of(ast.FunctionDef) if each.name in names]
    return found + [each.value for each in source.nodes_of(ast.Assign) if last_name(each.targets[0]) in names]


def _length(loop: ast.For) -> ast.expr | None:
    """Return the number of iterations of ``for i in range(n)``; None for other loops."""
    call = loop.iter
    while isinstance(call, ast.Call) and last_name(call.func) in ("tqdm", "trange", "track") and call.args:
        if last_name(call.func) == "trange":
            return call.args[0]
        call = call.args[0]
    if isinstance(call, ast.Call) and last_name(call.func) == "range" and len(call.args) == 1:
        return call.args[0]
    return None


def _trains(source: SourceFile, loop: ast.For) -> bool:
    names = {last_name(each.func) for each in nodes_in(loop, ast.Call)}
    return bool(names & {"backward", "step", "train"}) or any("train" in each for each in names)


def _is_multiple_of_pi(source: SourceFile, quotient: ast.BinOp) -> bool:
    """Return True for ``cos(pi * (step // total))``."""
    parent = source.parents.get(id(quotient))
    is_product = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult)
    call = source.parents.get(id(parent)) if is_product else None
    return (
        isinstance(parent, ast.BinOp)
        and isinstance(call, ast.Call)
        and last_name(call.func) == "cos"
        and "pi" in {last_name(parent.left), last_name(parent.right)}
    )


def _is_capped(source: SourceFile, quotient: ast.BinOp, function: Any) -> bool:
    """Return True for ``min(1.0, step // warmup)`` with the parameter of a function."""
    call = source.parents.get(id(quotient))
    if not isinstance(call, ast.Call) or last_name(call.func) != "min" or not _uses(quotient.left, function):
        return False
    return len(call.args) == 2 and any(getattr(each, "value", None) == 1 for each in call.args)


def _uses(node: ast.expr, function: Any) -> bool:
    """Return True for the parameter of a function, or the parameter plus a number."""
    node = node.left if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) else node
    return isinstance(node, ast.Name) and node.id in {each.arg for each in nodes_in(function, ast.arg)}


def _is_zero(source: SourceFile, quotient: ast.BinOp, function: Any, loops: list[ast.For]) -> bool:
    """Return True for the quotient of the variable of a loop, or of a parameter that counts it, and its length."""
    divisor = ast.unparse(quotient.right)
    if not isinstance(quotient.left, ast.Name):
        return False
    if function is not None:
        return _uses(quotient.left, function) and any(ast.unparse(_length(e) or e) == divisor for e in loops)
    own = [each for each in loops if encloses(each, quotient) and last_name(each.target) == quotient.left.id]
    constant = [each for each in own if ast.unparse(_length(each) or each) == divisor]
    scope = function_of(source, quotient)
    return any(divisor.isidentifier() is False or len(assigned_in(scope, divisor)) <= 1 for _ in constant)


def _fix(source: SourceFile, quotient: ast.BinOp) -> Fix | None:
    start, end = source.text.span(quotient.left)[1], source.text.span(quotient.right)[0]
    between = source.text.content[start:end]
    at = start + between.find(b"//")
    return Fix((Edit(at, at + 2, "/"),), safe=False, description="Divide with /") if b"//" in between else None


RULE: Final = Rule(required_words=("//", "lr", "cos|LambdaLR|MultiplicativeLR|range("), find=find)

BAD = """
import math
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs = 10
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: 0.5 * (1 + math.cos(math.pi * (e // epochs))))
for epoch in range(epochs):
    for step in range(4):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    scheduler.step()
print(optimizer.param_groups[0]["lr"])
"""

FAILURE = Failure(
    code="SCH009",
    title="The progress of a schedule is rounded down to 0",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(e // epochs)": "(e / epochs)"}),
    fix="Divide with / instead of //.",
    rule=RULE,
)
