"""A total is divided and shown, but nothing was ever added to it.

What you see
    The logged loss or accuracy is exactly 0 in every epoch, although the model learns.

Why it happens
    The total is set to 0 before the loop, and the line that adds to it is missing. Dividing 0 raises no error.

Fix
    Add in each iteration, weighted by the size of the batch:

        running_loss += loss.item() * len(inputs)

When this is fine
    - The total is added to in another function, through ``nonlocal``, ``global`` or an attribute.
    - The variable belongs to a term that is switched off: it is shown only ``if total != 0``.

How it is detected
    Only the linter finds it: a variable is set to 0 and later divided, with a loop in between that has a backward pass
    or runs over a loader, and no statement of the function gives it another value.
    It also reports ``np.mean`` of a list into which the function puts nothing.

References
    "The Python Tutorial", section on loops, https://docs.python.org/3/tutorial/controlflow.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import batch_loops, function_of, without_conversions
from trueloop.analysis.queries.loop_variables import trains
from trueloop.analysis.queries.never_filled import never_filled
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TOTAL: Final = re.compile(r"loss|acc|correct|right|running|total|seen|err|score|hits|sum|reward|metric", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each total that is 0 when it is divided after a loop."""
    yield from _means_of_nothing(source)
    over_loaders = {id(each.node) for each in batch_loops(source)}
    loops = [each for each in source.nodes_of(ast.For) if id(each) in over_loaders or trains(each)]
    seen: set[int] = set()
    for loop in loops:
        function = function_of(source, loop)
        for use in _divided(function, loop):
            name = getattr(use, "id", "")
            initial = _only_zero(source, function, name)
            if initial is None or initial.lineno > loop.lineno or id(use) in seen or _is_spare(source, use, name):
                continue
            seen.add(id(use))
            yield Hit(
                message=f"`{name}` is 0 here: nothing was added to it.",
                node=use,
                related=((initial, "set to 0 here"), (loop, "the loop that should add to it")),
            )


def _means_of_nothing(source: SourceFile) -> Iterator[Hit]:
    """Yield each mean of a list that stays empty."""
    for call in source.all_calls:
        match call:
            case ast.Call(func=ast.Attribute(attr="mean" | "nanmean" | "average"), args=[ast.Name() as values, *_]):
                created = never_filled(source, values)
            case _:
                continue
        if created is not None:
            yield Hit(
                message=f"`{ast.unparse(call)}` is NaN: nothing was put into `{values.id}`.",
                node=call,
                related=((created, "set to an empty list here"),),
            )


def _divided(function: ast.AST, loop: ast.For) -> Iterator[ast.expr]:
    """Yield the variables that are divided after a loop."""
    for each in nodes_in(function, ast.BinOp, ast.AugAssign):
        over = each.left if isinstance(each, ast.BinOp) else each.target
        value = without_conversions(over)
        is_later = each.lineno > (loop.end_lineno or loop.lineno)
        if isinstance(each.op, ast.Div) and is_later and isinstance(value, ast.Name) and _TOTAL.search(value.id):
            yield value


def _is_spare(source: SourceFile, use: ast.expr, name: str) -> bool:
    """Return True if a program asks whether anything was added, or has taken the addition out by a comment."""
    tests = [each.test for each in enclosing_nodes(source, use) if isinstance(each, ast.If | ast.IfExp)]
    is_tested = any(read.id == name for test in tests for read in nodes_in(test, ast.Name))
    return is_tested or source.mentions(re.compile(rf"#.*\b{name}\s*\+="))


def _only_zero(source: SourceFile, function: Any, name: str) -> Any:
    """Return the first statement that sets a variable to 0; None if another one may give it another value."""
    if any(name in each.names for each in source.nodes_of(ast.Global, ast.Nonlocal)):
        return None
    found: Any = None
    for each in nodes_in(function, ast.Name, ast.arg):
        if isinstance(each, ast.arg):
            if each.arg == name:
                return None
            continue
        if each.id != name or isinstance(each.ctx, ast.Load):
            continue
        match source.parents.get(id(each)):
            case ast.Assign(value=ast.Constant(value=0 | 0.0)) as statement:
                found = min(found or statement, statement, key=lambda e: e.lineno)
            case ast.AugAssign(op=ast.Div() | ast.Mult()):
                pass
            case ast.Assign(value=ast.BinOp(left=left, op=ast.Div())) if getattr(left, "id", "") == name:
                pass
            case _:
                return None
    return found


RULE: Final = Rule(required_words=("/|mean(|average(", "= 0|= []|list()", "for ", "backward(|oader|grad()"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(4):
    running_loss = 0.0
    for rows in torch.randperm(128).split(32):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    print(epoch, running_loss / 4)
"""

FAILURE = Failure(
    code="EVL037",
    title="A total is never added to",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD, {"        optimizer.step()\n": "        optimizer.step()\n        running_loss += loss.item()\n"}
    ),
    fix="Add the value of each batch to the total in the loop.",
    rule=RULE,
)
