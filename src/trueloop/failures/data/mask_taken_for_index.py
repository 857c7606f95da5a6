"""A mask of integers is used as an index, so it takes the rows 0 and 1 again and again instead of those it marks.

What you see
    The loss falls to nothing within a few steps, and the accuracy is 0, 1 or a strange share on all parts of the data.

Why it happens
    ``x[mask]`` selects rows only if the type of the mask is bool. Integers are row numbers, and 0 and 1 are valid ones.

Fix
    Create the mask as bool, or convert it:

        mask = torch.zeros(len(x), dtype=torch.bool)
        mask[rows] = True
        x[mask.bool()]

When this is fine
    - A table of two entries is read with labels of 0 and 1: ``names[is_spam]``, ``palette[mask]``.
    - The mask is compared or multiplied: ``x[mask == 1]``, ``loss * mask``.
    - A tensor of the type uint8, which PyTorch still takes as a mask.

How it is detected
    In a run, an integer index of 0 and 1 chooses the rows of a loss, and is as long as what it indexes. The linter
    reports ``x[mask]`` and ``x[mask, 1]`` where the index is named after a mask and is zeros of an integer type
    with items set to 1, or a comparison converted to integers.

References
    NumPy, "Boolean array indexing", https://numpy.org/doc/stable/user/basics.indexing.html#boolean-array-indexing
    torch.Tensor.index_select, https://docs.pytorch.org/docs/stable/generated/torch.index_select.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of, single_assignments
from trueloop.analysis.queries.possible_values import MAX_DEPTH, possible_values, unpacked_call
from trueloop.analysis.queries.shuffled_loaders import function_called
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, integer, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BackwardLosses

_MASK: Final = re.compile(r"(?i)mask|(^|_)(keep|valid|selected)(_|$)")
_TABLE: Final = re.compile(r"(?i)palette|colou?r|cmap|lut|table|name|class|weight|embed|lookup|map")
_INTEGERS: Final = re.compile(r"\b(int|long|int64|int32|LongTensor|IntTensor)\b")
_EMPTY: Final = frozenset(("zeros", "zeros_like", "new_zeros"))
_CONVERTING: Final = frozenset(("long", "int", "to", "type", "astype"))


class Detector(BaseDetector):
    """Reports a loss whose rows an index of zeros and ones has chosen."""

    def __init__(self) -> None:
        self._judged = False

    def on_backward_losses(self, event: BackwardLosses) -> Iterator[Evidence]:
        """Yield evidence for each such loss."""
        for loss in event.losses:
            self._judged = True
            if loss.mask_as_index is not None:
                zeros, ones = loss.mask_as_index
                yield Evidence(
                    message=f"The rows of this loss are chosen by an integer index of {zeros} zeros and {ones} ones, "
                    f"so they are {zeros} times row 0 and {ones} times row 1. Only a bool mask selects rows.",
                    location=loss.location or event.location,
                )

    def inconclusive(self) -> str:
        """Return a reason if no loss was judged."""
        return "" if self._judged else "no loss of PyTorch was seen"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each index that is a mask of integers."""
    for node in source.nodes_of(ast.Subscript):
        index = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        if not isinstance(node.ctx, ast.Load) or not isinstance(index, ast.Name | ast.Attribute):
            continue
        if not _MASK.search(last_name(index)) or _is_table(source, node.value):
            continue
        made = list(_created(source, index))
        if made and all(_is_integer_mask(source, each) for each in made):
            text, is_tensor = ast.unparse(index), "np" not in ast.unparse(made[0])
            fix = Fix(
                (source.text.replace(index, f"{text}.bool()"),), safe=False, description="Convert the mask to bool"
            )
            yield Hit(
                message=f"`{text}` consists of the integers 0 and 1, so `{ast.unparse(node)}` takes the rows 0 and 1 "
                "many times, not the rows that are marked. Only a mask of the type bool selects rows.",
                node=node,
                related=((made[0], "the mask is created here"),),
                fix=fix if is_tensor else None,
            )


def _is_table(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a table of entries that 0 and 1 are the numbers of."""
    values = [node, *possible_values(source, node)]
    literals = [each for value in values for each in nodes_in(value, ast.List, ast.Tuple, ast.Dict)]
    return bool(_TABLE.search(ast.unparse(node)) or literals)


def _created(source: SourceFile, node: ast.expr, depth: int = MAX_DEPTH) -> Iterator[ast.expr]:
    """Yield the expressions that create the value of a variable, also of one in a list that a function returns."""
    values = list(possible_values(source, node)) if depth else []
    call = unpacked_call(source, node) if not values and isinstance(node, ast.Name) and depth else None
    function = function_called(source, call) if call is not None else None
    for each in nodes_in(function, ast.Return) if function is not None else ():
        values += [each.value.elt] if isinstance(each.value, ast.ListComp | ast.GeneratorExp) else []
    if isinstance(node, ast.Attribute):
        values = values or [e for t, e in single_assignments(source.tree) if ast.unparse(t) == ast.unparse(node)]
    elif not values:
        yield node
    for each in values:
        yield from _created(source, each, depth - 1)


def _is_integer_mask(source: SourceFile, value: ast.expr) -> bool:
    """Return True for zeros of an integer type with ones written into them, and for a comparison as integers."""
    if not isinstance(value, ast.Call):
        return False
    arguments = ast.unparse(ast.Tuple([*value.args, *(each.value for each in value.keywords)]))
    if last_name(value.func) in _EMPTY:
        return bool(_INTEGERS.search(arguments)) and _is_marked(source, value)
    inner = value.func.value if isinstance(value.func, ast.Attribute) else value
    is_integer = last_name(value.func) in ("long", "int") or bool(_INTEGERS.search(arguments))
    is_zeros = isinstance(inner, ast.Call) and last_name(inner.func) in _EMPTY and _is_marked(source, value)
    return last_name(value.func) in _CONVERTING and is_integer and (isinstance(inner, ast.Compare) or is_zeros)


def _is_marked(source: SourceFile, zeros: ast.expr) -> bool:
    """Return True if a function writes 1, and nothing but 0 and 1, into the zeros that it has created."""
    statement: Any = source.statement_of(zeros)
    names = {ast.unparse(each) for each in getattr(statement, "targets", ())}
    written = [
        integer(each.value)
        for each in nodes_in(function_of(source, zeros), ast.Assign)
        if isinstance(each.targets[0], ast.Subscript) and ast.unparse(each.targets[0].value) in names
    ]
    return 1 in written and set(written) <= {0, 1}


RULE: Final = Rule(
    required_words=("torch", re.compile(r"\[[\w.]*(mask|keep|valid|select|is_)\w*[\],]"), re.compile(r"\b(long|int)")),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(200, 6)
y = (x.sum(1) > 0).long()
train_mask = torch.zeros(200, dtype=torch.long)
train_mask[torch.randperm(200)[:120]] = 1
model = nn.Linear(6, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for epoch in range(12):
    optimizer.zero_grad()
    out = model(x)
    loss = nn.functional.cross_entropy(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="DAT060",
    title="A mask of integers is used as an index",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"dtype=torch.long)": "dtype=torch.bool)", "] = 1": "] = True"}),
    fix="Create the mask with dtype=torch.bool, or index with mask.bool().",
    rule=RULE,
    detector=Detector,
)
