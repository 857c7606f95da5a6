"""The factor of a warm-up grows with every step and never stops at 1.

What you see
    Training starts well. Later the loss rises again or becomes NaN, because the learning rate is several times the one
    that was given to the optimizer, and still grows.

Why it happens
    ``step / warmup_steps`` is 1 at the end of the warm-up and 2 after as many steps again. Nothing ends the growth.

Fix
    Limit the factor:

        scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup_steps))

When this is fine
    - Another branch or a product ends the growth: ``if step < warmup_steps``, ``min(step / warmup, decay(step))``.
    - Another schedule takes over, as with SequentialLR, or the scheduler is stepped during the warm-up only.
    - The rate is meant to grow until the loss diverges, to find a good one.

How it is detected
    Only the linter finds it: the function of a LambdaLR that is a quotient of its parameter and a number called
    ``warmup``, or a learning rate that is set to such a quotient, without ``min``, condition or second factor.

References
    LambdaLR, https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.LambdaLR.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_WARM_UP: Final = re.compile(r"(?i)warm_?_?up|ramp_?up")
_COMPOSED: Final = ("SequentialLR", "ChainedScheduler")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each factor of a learning rate that grows without a limit."""
    if any(last_name(each.func) in _COMPOSED for each in source.all_calls):
        return
    for quotient in _factors(source):
        if not _is_growing(quotient) or _is_conditional(source, quotient):
            continue
        limited = source.text.replace(quotient, f"min(1.0, {source.text.segment(quotient)})")
        is_factor = not isinstance(source.parents.get(id(quotient)), ast.Assign)
        yield Hit(
            message=f"`{source.text.segment(quotient)}` grows beyond 1 when the warm-up is over: nothing limits it.",
            node=quotient,
            fix=Fix((limited,), safe=False, description="Limit the factor to 1") if is_factor else None,
        )


def _factors(source: SourceFile) -> Iterator[ast.expr]:
    """Yield what the functions of LambdaLR return, and the quotients in ``group["lr"] = rate * step / warmup``."""
    for call in source.all_calls:
        if last_name(call.func) != "LambdaLR":
            continue
        given = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "lr_lambda")]
        for each in given:
            if isinstance(each, ast.Lambda):
                yield each.body
            for function in source.nodes_of(ast.FunctionDef):
                returns = nodes_in(function, ast.Return)
                if function.name == last_name(each) and len(returns) == 1 and not nodes_in(function, ast.If):
                    yield from (each.value for each in returns if each.value is not None)
    for statement in source.nodes_of(ast.Assign):
        target = statement.targets[0]
        if isinstance(target, ast.Subscript) and getattr(target.slice, "value", None) == "lr":
            yield statement.value


def _is_growing(node: ast.expr) -> bool:
    """Return True for ``step / warmup``, ``(step + 1) / float(warmup)`` and ``rate * step / warmup``."""
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            has_name = any(_WARM_UP.search(last_name(each)) for each in nodes_in(right, ast.Name, ast.Attribute))
            return has_name and not _calls(left) and not _calls(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _is_growing(right) and not _calls(left)
        case _:
            return False


def _calls(node: ast.expr) -> bool:
    """Return True if an expression calls more than ``float``, ``int`` or ``max(1, warmup)``."""
    return any(last_name(each.func) not in ("float", "int", "max", "len") for each in nodes_in(node, ast.Call))


def _is_conditional(source: SourceFile, node: ast.AST) -> bool:
    """Return True for an assignment in a branch, or in a function or loop that knows when the warm-up ends."""
    inner: Any = node
    while (parent := source.parents.get(id(inner))) is not None and not isinstance(parent, ast.Lambda):
        if isinstance(parent, ast.If | ast.IfExp | ast.While):
            return True
        if isinstance(parent, ast.FunctionDef):
            return any(_WARM_UP.search(ast.unparse(each.test)) for each in nodes_in(parent, ast.If, ast.IfExp))
        if isinstance(parent, ast.For) and _WARM_UP.search(ast.unparse(parent.iter)):
            return True
        inner = parent
    return False


RULE: Final = Rule(required_words=("warm|ramp", "lr", "/", "LambdaLR|\"lr\"]|'lr']"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
warmup_steps = 10
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / warmup_steps)
for step in range(40):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
    scheduler.step()
print(optimizer.param_groups[0]["lr"])
"""

FAILURE = Failure(
    code="SCH010",
    title="A warm-up has no end",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(step + 1) / warmup_steps": "min(1.0, (step + 1) / warmup_steps)"}),
    fix="Limit the factor to 1: min(1.0, (step + 1) / warmup_steps).",
    rule=RULE,
)
