"""Memory that is only reserved gets the values of each sequence, and the rest of each row stays what it was.

What you see
    Padding is not 0 but arbitrary numbers: an embedding raises an index error now and then, a loss is huge or NaN, and
    two runs with one seed differ.

Why it happens
    ``torch.empty(n, m)``, ``torch.LongTensor(n, m)`` and ``np.empty((n, m))`` do not write to the memory. Often it is 0
    by chance, so the mistake shows only in a long run.

Fix
    Start with the padding:

        batch = torch.full((n, longest), PAD)
        batch = torch.zeros(n, longest, dtype=torch.long)
        for i, ids in enumerate(samples):
            batch[i, : len(ids)] = torch.tensor(ids)

When this is fine
    - The rest is written too: by ``fill_``, ``zero_``, or ``batch[i, len(ids):] = PAD``.
    - Every row is written completely, or only the written part is read.
    - The lengths are returned with numbers that are no indices, for ``pack_padded_sequence``.

How it is detected
    Only the linter finds it, from the source code: reserved memory of two or more dimensions that a function writes
    only by ``x[i, :length]`` with a length of the loop's own item, or one element at a time in a loop over an item of
    the outer loop, where the size is called a maximum.

References
    torch.empty, "Returns a tensor filled with uninitialized data",
    https://docs.pytorch.org/docs/stable/generated/torch.empty.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of, without_conversions
from trueloop.analysis.queries.possible_values import loops_around
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_RESERVING: Final = re.compile(
    r"^(torch\.)?((empty|Tensor|(Float|Long|Int|Double)Tensor))$|^(np|numpy)\.(empty|ndarray)$"
)
_INDEX: Final = re.compile(r"LongTensor|dtype=\S*(?:long|int)")
_LENGTHS: Final = re.compile(r"\blen(gth)?s?\b|_len(gth)?s?\b|seq_?len", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each reservation of memory of whose rows only the first part is written."""
    for statement in source.nodes_of(ast.Assign):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                call = without_conversions(value)
            case _:
                continue
        if not isinstance(call, ast.Call) or not _reserves_rows(call):
            continue
        function = function_of(source, statement)
        writes = list(_writes(source, function, name))
        if (
            writes
            and all(_is_partial(source, each, call) for each in writes)
            and not _is_filled(function, name, writes)
            and not _is_read_in_part(source, function, name, is_index=_INDEX.search(ast.unparse(value)) is not None)
        ):
            yield Hit(
                message=f"`{ast.unparse(call)}` does not write to the memory, and `{ast.unparse(writes[0])}` fills "
                "only a part of each row: the rest is what was there before.",
                node=call,
                related=((writes[0], "written here"),),
            )


def _reserves_rows(call: ast.Call) -> bool:
    """Return True for ``torch.empty(n, m)``, ``torch.LongTensor(n, m)`` and ``np.empty((n, m))``."""
    first = call.args[0] if call.args else None
    is_tuple = isinstance(first, ast.Tuple)
    sizes = first.elts if isinstance(first, ast.Tuple) else call.args
    is_shape = is_tuple or not dotted_name(call.func).startswith(("np.", "numpy."))
    has_values = any(isinstance(each, ast.List | ast.ListComp | ast.Starred) for each in call.args)
    return is_shape and not has_values and len(sizes) > 1 and bool(_RESERVING.match(dotted_name(call.func)))


def _writes(source: SourceFile, function: Any, name: str) -> Iterator[ast.Subscript]:
    """Yield the items and slices of an array that a function assigns."""
    for each in nodes_in(function, ast.Subscript):
        parent = source.parents.get(id(each))
        if isinstance(each.ctx, ast.Store) and not isinstance(parent, ast.Subscript) and _array_of(each) == name:
            yield each


def _array_of(item: Any) -> str:
    while isinstance(item, ast.Subscript):
        item = item.value
    return getattr(item, "id", "")


def _indices(item: Any) -> list[ast.expr]:
    """Return the indices of ``x[i, j]`` and ``x[i][j]``."""
    found: list[ast.expr] = []
    while isinstance(item, ast.Subscript):
        found = [*(item.slice.elts if isinstance(item.slice, ast.Tuple) else [item.slice]), *found]
        item = item.value
    return found


def _is_partial(source: SourceFile, item: ast.Subscript, call: ast.Call) -> bool:
    """Return True for a write whose extent depends on the item of a loop."""
    loops = [each for each in loops_around(source, item) if isinstance(each, ast.For)]
    indices = _indices(item)
    parts = [each for each in indices if isinstance(each, ast.Slice)]
    if parts:
        uppers = [each.upper for each in parts if each.lower is None and each.upper is not None and each.step is None]
        own = {each.id for loop in loops[:1] for each in nodes_in(loop, ast.Name) if isinstance(each.ctx, ast.Store)}
        names = {each.id for upper in uppers for each in nodes_in(upper, ast.Name)}
        return len(parts) == len(uppers) == 1 and len(indices) > 1 and bool(names & own)
    if len(loops) < 2 or len(indices) < 2 or "max" not in ast.unparse(call).lower():
        return False
    inner, outer = loops[:2]
    items = {each.id for each in nodes_in(outer, ast.Name) if isinstance(each.ctx, ast.Store)}
    ragged = {each.id for each in nodes_in(inner.iter, ast.Name)} & items
    return bool(ragged) and "range(" not in ast.unparse(inner.iter)


def _is_filled(function: Any, name: str, writes: list[ast.Subscript]) -> bool:
    """Return True if a method or another function may write to the array before it is complete."""
    end = max(each.lineno for each in writes)
    for call in nodes_in(function, ast.Call):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if _array_of(owner) == name and (last_name(call.func).endswith("_") or "fill" in last_name(call.func)):
            return True
        given = any(getattr(each, "id", "") == name for each in (*call.args, *(word.value for word in call.keywords)))
        if given and call.lineno <= end and last_name(call.func) not in ("len", "print"):
            return True
    return False


def _is_read_in_part(source: SourceFile, function: Any, name: str, *, is_index: bool) -> bool:
    """Return True if a function reads only a part of an array, or returns it with the lengths of its rows."""
    reads = [e for e in nodes_in(function, ast.Subscript) if isinstance(e.ctx, ast.Load) and _array_of(e) == name]
    stores = [e for e in nodes_in(function, ast.Subscript) if isinstance(e.ctx, ast.Store)]
    outside = [e for e in reads if not any(encloses(store, e) for store in stores)]
    if any(isinstance(index, ast.Slice) and index.upper is not None for each in outside for index in _indices(each)):
        return True
    packed = "pack_padded" in source.text.source or "mask" in ast.unparse(function)
    returned = " ".join(ast.unparse(each) for each in nodes_in(function, ast.Return))
    return not is_index and (packed or _LENGTHS.search(returned) is not None)


RULE: Final = Rule(required_words=("empty(|Tensor(|ndarray(", "for ", "] ="), find=find)

BAD = """
import torch
from torch import nn


def collate(samples, longest):
    batch = torch.LongTensor(len(samples), longest)
    for i, ids in enumerate(samples):
        batch[i, : len(ids)] = torch.tensor(ids)
    return batch


torch.manual_seed(0)
samples = [[1, 2, 3], [4, 5], [6]]
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(3):
    optimizer.zero_grad()
    loss = model(collate(samples, 3).clamp(0, 9).float()).square().mean()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="DAT065",
    title="Only a part of reserved memory is written",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.LongTensor(len(samples), longest)": "torch.zeros(len(samples), longest).long()"}),
    fix="Create the tensor with torch.zeros or torch.full.",
    rule=RULE,
)
