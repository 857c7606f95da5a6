"""A masked sum is divided by the number of all values instead of those that the mask keeps.

What you see
    The loss is too small, and falls if the mask keeps less. Batches with few valid values hardly count, and a reported
    error cannot be compared with that of another mask.

Why it happens
    ``mask.numel()`` counts the zeros of the mask, too. The values that the mask removes add 0 to the
    sum, and 1 each to the count.

Fix
    Divide by the number of values that the mask keeps.

        loss = (losses * mask).sum() / mask.sum()

When this is fine
    - The factor is a weight of each sample, and the mean is over all samples.
    - The losses of a sequence are added up, and averaged over the sequences: ``/ len(mask)`` or ``/ mask.size(0)``.
    - The share of a batch that is valid is wanted: ``mask.sum() / mask.numel()``.

How it is detected
    Only the linter finds it: a sum of values that are multiplied by a mask, selected by it, or set to 0 by
    ``torch.where`` or ``masked_fill``, divided by ``numel()`` of the same mask. A factor has to be called a mask, or
    valid, seen or observed.

References
    torch.where, https://docs.pytorch.org/docs/stable/generated/torch.where.html
    torch.numel, https://docs.pytorch.org/docs/stable/generated/torch.numel.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.method_chains import without_methods
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name
from trueloop.failures.failure import Failure, Rule, Severity, changed

_MASKS: Final = frozenset(("mask", "masks", "valid", "seen", "observed", "present", "known", "keep"))
_CASTS: Final = frozenset(("float", "to", "type_as", "unsqueeze", "expand_as", "view", "reshape", "double", "int"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each quotient of a masked sum and the size of its mask."""
    for division in source.nodes_of(ast.BinOp):
        mask = _counted(division.right) if isinstance(division.op, ast.Div) else None
        name = dotted_name(mask)
        summed = _summed(division.left) if name else None
        if mask is None or summed is None or not any(_is_masked(e, name) for e in origins(source, summed, 3)):
            continue
        edit = source.text.replace(division.right, f"{source.text.segment(mask)}.sum()")
        yield Hit(
            message=f"`{ast.unparse(division.right)}` counts all values, also those that `{name}` removes from the "
            f"sum: divide by `{name}.sum()`.",
            node=division,
            fix=Fix((edit,), safe=False, description="Count the values that the mask keeps"),
        )


def _counted(node: ast.expr) -> ast.expr | None:
    """Return x of ``x.numel()`` and ``torch.numel(x)``."""
    match node:
        case ast.Call(func=ast.Attribute(attr="numel", value=ast.Name(id="torch")), args=[mask]):
            return mask
        case ast.Call(func=ast.Attribute(attr="numel" | "nelement", value=mask)):
            return mask
        case _:
            return None


def _summed(node: ast.expr) -> ast.expr | None:
    """Return x of ``x.sum()`` and ``torch.sum(x)``."""
    match node:
        case ast.Call(func=ast.Attribute(attr="sum", value=ast.Name(id="torch")), args=[inner]):
            return inner
        case ast.Call(func=ast.Attribute(attr="sum", value=inner), args=[]):
            return inner
        case _:
            return None


def _is_masked(node: ast.expr, name: str) -> bool:
    """Return True for values of which those that a mask does not keep are 0 or left out."""
    match node:
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            is_factor = name in (
                dotted_name(without_methods(left, _CASTS)),
                dotted_name(without_methods(right, _CASTS)),
            )
            return is_factor and bool(name_words(name.rpartition(".")[2]) & _MASKS)
        case ast.Call(func=ast.Attribute(attr="where", value=ast.Name(id="torch")), args=[condition, _, other]):
            return dotted_name(condition) == name and _is_zero(other)
        case ast.Call(func=ast.Attribute(attr="where"), args=[condition, other]):
            return dotted_name(condition) == name and _is_zero(other)
        case ast.Call(func=ast.Attribute(attr="masked_fill"), args=[ast.UnaryOp(operand=condition), other]):
            return dotted_name(condition) == name and _is_zero(other)
        case ast.Subscript(slice=condition):
            return dotted_name(condition) == name and bool(name_words(name.rpartition(".")[2]) & _MASKS)
        case _:
            return False


def _is_zero(node: ast.expr) -> bool:
    is_zeros = isinstance(node, ast.Call) and last_name(node.func) in ("zeros_like", "zeros", "new_zeros")
    return is_zeros or (isinstance(node, ast.Constant) and node.value == 0) or ast.unparse(node).endswith("tensor(0.0)")


RULE = Rule(required_words=("numel(|nelement(", "sum(", "where(|mask|valid|seen|observed"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
values = torch.randn(256, 8)
mask = torch.rand(256, 8) < 0.3
model = nn.Linear(16, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    output = model(torch.cat([values * mask, mask.float()], dim=1))
    errors = (output - values) ** 2 * mask
    loss = errors.sum() / mask.numel()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS048",
    title="A masked sum is divided by the number of all values",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"mask.numel()": "mask.sum()"}),
    fix="Divide by the number of values that the mask keeps: `mask.sum()`.",
    rule=RULE,
)
