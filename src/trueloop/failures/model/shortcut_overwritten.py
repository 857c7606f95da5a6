"""An activation with inplace=True changes the tensor that a residual connection adds later.

What you see
    A residual network trains, but worse than published: the shortcut carries no negative values, so each block can only
    add to what is positive.

Why it happens
    ``nn.ReLU(inplace=True)`` writes its result into its input. If the first operation of a block is such an activation,
    the variable ``x`` that is added at the end has been cut at 0 as well. Autograd raises no error, since the gradient
    of a ReLU needs only its result.

Fix
    Leave ``inplace`` out for an activation that gets the input of the block.

        self.block = nn.Sequential(nn.ReLU(), nn.Conv2d(c, c, 3, padding=1))
        return x + self.block(x)

When this is fine
    - The activation gets the result of another layer: ``self.relu(self.bn(x))``.
    - The result has the same name, ``x = self.relu(x)``, so that the shortcut is meant to begin after the activation.

How it is detected
    Only the linter finds it: a function passes a variable to an activation with ``inplace=True``, or to a
    ``Sequential`` that begins with one, keeps the result under another name, and adds the variable later.

References
    torch.nn.ReLU, https://docs.pytorch.org/docs/stable/generated/torch.nn.ReLU.html
    He et al., 2016, "Identity Mappings in Deep Residual Networks", arXiv:1603.05027
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.assignments import assigned_value, attribute_value
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ACTIVATIONS: Final = frozenset((
    "ReLU", "LeakyReLU", "ELU", "ReLU6", "SiLU", "Hardswish", "CELU", "SELU", "Mish", "Hardtanh", "Threshold", "RReLU",
    "relu", "leaky_relu", "elu", "relu6", "silu", "hardswish", "celu", "selu", "mish", "hardtanh", "threshold",
))  # fmt: skip


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each shortcut whose tensor an activation has changed."""
    for call in source.all_calls:
        values = call.args[:1]
        if not values or not isinstance(values[0], ast.Name):
            continue
        name, made = values[0].id, _activation(source, call)
        statement = source.statement_of(call) if made is not None else None
        if statement is None or name in _targets(statement):
            continue
        added = _added(source, call, statement, name)
        if added is not None:
            yield Hit(
                message=f"`{ast.unparse(call)}` changes `{name}` in place, and `{ast.unparse(added)}` adds the changed "
                "tensor: the shortcut has lost its negative values.",
                node=call,
                related=((added, "added here"),),
                fix=_fix(source, made),
            )


def _activation(source: SourceFile, call: ast.Call) -> ast.Call | None:
    """Return the activation with ``inplace=True`` that is applied first to the argument of a call; None if none is."""
    if last_name(call.func) in _ACTIVATIONS and dotted_name(call.func) != f"self.{last_name(call.func)}":
        return call if _is_inplace(call) and last_name(call.func)[0].islower() else None
    if isinstance(call.func, ast.Name):
        made: Any = assigned_value(source, call, call.func.id)
    else:
        is_own = dotted_name(call.func) == f"self.{last_name(call.func)}"
        made = attribute_value(source, call, last_name(call.func)) if is_own else None
    while isinstance(made, ast.Call) and last_name(made.func) == "Sequential" and made.args:
        made = made.args[0]
    is_layer = isinstance(made, ast.Call) and last_name(made.func) in _ACTIVATIONS
    return made if is_layer and _is_inplace(made) else None


def _is_inplace(call: ast.Call) -> bool:
    """Return True for ``ReLU(inplace=True)`` and ``ReLU(True)``."""
    first = call.args[:1] if last_name(call.func) in ("ReLU", "ReLU6", "SiLU", "Mish") else []
    given = [*first, *(each.value for each in call.keywords if each.arg == "inplace")]
    return any(isinstance(each, ast.Constant) and each.value is True for each in given)


def _targets(statement: Any) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {each.id for target in targets if target is not None for each in nodes_in(target, ast.Name)}


def _added(source: SourceFile, call: ast.Call, statement: ast.stmt, name: str) -> ast.AST | None:
    """Return the first sum after a call, or around it, that has the variable as a term."""
    function = function_of(source, call)
    rebound = [e.lineno for e in nodes_in(function, ast.stmt) if e.lineno > statement.lineno and name in _targets(e)]
    last = min(rebound, default=1 << 30)
    for each in nodes_in(function, ast.BinOp, ast.AugAssign, ast.Call):
        match each:
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                terms = left, right
            case ast.AugAssign(op=ast.Add(), value=value):
                terms = (value,)
            case ast.Call(func=ast.Attribute(attr="add" | "add_"), args=[*terms]):
                pass
            case _:
                continue
        if statement.lineno <= each.lineno <= last and any(getattr(term, "id", "") == name for term in terms):
            return each
    return None


def _fix(source: SourceFile, made: ast.Call | None) -> Fix | None:
    """Return the fix that switches ``inplace`` off."""
    values = [each.value for each in made.keywords if each.arg == "inplace"] if made is not None else []
    edits = tuple(source.text.replace(each, "False") for each in values)
    return Fix(edits, safe=False, description="Do not change the input") if edits else None


RULE: Final = Rule(required_words=("inplace|ReLU(True|ReLU6(True|SiLU(True", "+|add", "def "), find=find)

BAD = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.block = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(width, width))

    def forward(self, x):
        return x + self.block(x)


torch.manual_seed(0)
x = torch.randn(200, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), Block(16), Block(16), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="MDL039",
    title="An in-place activation changes the shortcut",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"nn.ReLU(inplace=True)": "nn.ReLU()"}),
    fix="Leave inplace=True out for the activation that gets the input of the block.",
    rule=RULE,
)
