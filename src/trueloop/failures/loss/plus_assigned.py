"""``loss =+ term`` assigns ``+term``: what the variable held before is lost.

What you see
    A term of the loss has no effect, a running total is as small as its last summand, or a counter stays 1. Nothing is
    reported, because the statement is valid.

Why it happens
    Python reads ``loss =+ term`` as ``loss = (+term)``: a plus sign in front of a value changes nothing. ``loss =-
    term`` assigns the negative term in the same way.

Fix
    Write the operator before the equals sign:

        loss += term

When this is fine
    - The sign belongs to the value: ``offset = +1``, with a space after ``=``.

How it is detected
    Only the linter finds it: ``=+`` or ``=-`` without a space between, where the same
    variable was assigned before in the function; ``=-`` only with a space after it.

References
    Python, "Unary arithmetic operations",
    https://docs.python.org/3/reference/expressions.html#unary-arithmetic-and-bitwise-operations
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Edit, Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TYPO: Final = re.compile(rb"=(\+(?=[ A-Za-z_(])|-(?= ))")
_WORD: Final = re.compile(r" =(\+[ A-Za-z_(]|- )")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``=+`` and ``=-`` that should add to the variable or subtract from it."""
    for statement in source.nodes_of(ast.Assign):
        text = source.module_of(statement.lineno).text
        at = text.span(statement.value)[0] - 1
        found = _TYPO.match(text.content[at : at + 3])
        name = dotted_name(statement.targets[0])
        if found is None or len(statement.targets) != 1 or not _is_assigned_before(source, statement, name):
            continue
        sign = found[1].decode()
        yield Hit(
            message=f"`{text.segment(statement)}` assigns the value with the sign {sign}: the earlier value of "
            f"`{name}` is lost.",
            node=statement,
            fix=Fix((Edit(at, at + 2, f"{sign}="),), safe=False, description=f"Write {sign}="),
        )


def _is_assigned_before(source: SourceFile, statement: ast.Assign, name: str) -> bool:
    """Return True if an earlier statement of the function assigns to the same variable."""
    others: list[Any] = [
        each
        for each in nodes_in(function_of(source, statement), ast.Name, ast.Attribute)
        if isinstance(each.ctx, ast.Store) and each.lineno < statement.lineno
    ]
    return bool(name) and (name.startswith("self.") or any(dotted_name(each) == name for each in others))


RULE: Final = Rule(required_words=(_WORD,), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
model = nn.Linear(8, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(100):
    out = model(x)
    loss = nn.functional.mse_loss(out[:, 0], x.sum(1))
    loss =+ nn.functional.mse_loss(out[:, 1], x[:, 0])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS072",
    title="=+ assigns instead of adding",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"loss =+": "loss +="}),
    fix="Write += or -=.",
    rule=RULE,
)
