"""``total[index] += values`` adds only one of the values that have the same index.

What you see
    A graph network is not better than a network without edges. Counts of classes are 1, whatever the number of samples,
    or a confusion matrix grows by at most one for each batch and entry. Nothing raises an error.

Why it happens
    ``total[index] += values`` reads ``total[index]``, adds ``values`` and writes the result back. Where an index
    occurs several times, each of them starts from the same old value, and the last one overwrites the others. PyTorch
    and NumPy both work like this.

Fix
    Use a function that accumulates.

        total.index_add_(0, index, values)
        counts = torch.bincount(labels, minlength=n_classes)
        np.add.at(total, index, values)

When this is fine
    - No index occurs twice, as in a permutation, in the result of ``unique`` or ``nonzero``, or in the numbers of the
      samples of a batch.
    - The index is a mask, a slice or a single number, as in a loop over the labels.
    - Each value is added in a row of its own: ``total[torch.arange(n), labels] += 1``.

How it is detected
    Only the linter finds it, from the source code: an array that starts at zero or one is changed by ``+=`` at an index
    that is an array with repeats: the other row of the edges is the index of the added values; it comes from the labels
    of a batch, ``argmax``, ``bucketize``, ``randint`` or the rounding of an array; or the function passes it
    to ``bincount``, or takes its maximum to find the number of groups.

References
    torch.Tensor.index_add_, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.index_add_.html
    torch.Tensor.index_put_, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.index_put_.html
    numpy.ufunc.at, https://numpy.org/doc/stable/reference/generated/numpy.ufunc.at.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.assignments import attribute_value
from trueloop.analysis.queries.batch_loops import BatchLoop, batch_loops, function_of, has_batches_of_one, is_label
from trueloop.analysis.queries.possible_values import loops_around, origins, possible_values, unpacked_call
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_MAKING: Final = frozenset(("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full"))
_CONVERTING: Final = frozenset((
    "to", "cpu", "cuda", "numpy", "long", "int", "astype", "view", "reshape", "flatten", "ravel", "squeeze", "detach",
    "tolist", "clone", "copy", "contiguous", "type", "data", "clamp", "clip", "clamp_", "T", "t", "float",
))  # fmt: skip
_UNIQUE: Final = frozenset((
    "randperm", "arange", "unique", "nonzero", "where", "argsort", "sort", "topk", "permutation", "range", "sample",
    "flatnonzero", "argwhere", "argpartition", "set", "sorted", "linspace", "triu_indices", "tril_indices", "meshgrid",
))  # fmt: skip
_REPEATING: Final = frozenset(("bucketize", "digitize", "searchsorted", "repeat_interleave", "randint"))
_ARRAYS: Final = frozenset(("tensor", "as_tensor", "array", "asarray", "from_numpy", "to_numpy", "LongTensor", "cat"))
_ROWS: Final = re.compile(r"(^|_)(idx|ids?|index|indices|indexes|rows?|mask|weights?|len|lengths?)($|_)")
_COLUMNS: Final = frozenset(("targets", "labels"))
_DISTINCT_NODES: Final = ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant | ast.Slice | ast.List | ast.JoinedStr
_MAX_DEPTH: Final = 8
ARRAY, REPEATS, DISTINCT = "array", "repeats", "distinct"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each addition to the items of an array at an index that has repeats."""
    for node in source.nodes_of(ast.AugAssign, ast.Assign):
        target, value = _addition(node)
        if target is None or value is None or not _is_total(source, target.value):
            continue
        indices = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        indices = [each for each in indices if not isinstance(each, ast.Slice | ast.Constant)]
        traits = [_traits(source, each) for each in indices]
        if not indices or any(DISTINCT in each for each in traits):
            continue
        is_known = any({ARRAY, REPEATS} <= each for each in traits)
        is_known |= any(REPEATS in each for each in traits) and _is_made_here(source, node, target)
        if is_known or any(
            _is_grouped(source, node, target, each) or _is_edge(source, node, each, value) for each in indices
        ):
            items, index = ast.unparse(target), ", ".join(map(ast.unparse, indices))
            yield Hit(
                message=f"`{items} {'-' if _is_minus(node) else '+'}= ...` adds only one of the values with the same "
                f"index: where `{index}` repeats, the last value overwrites the others.",
                node=node,
                fix=_fix(source, node, target, value, indices),
            )


def _addition(node: ast.AugAssign | ast.Assign) -> tuple[ast.Subscript | None, ast.expr | None]:
    """Return the items and what is added to them, for ``a[i] += x`` and ``a[i] = a[i] + x``; None for other code."""
    match node:
        case ast.AugAssign(op=ast.Add() | ast.Sub(), target=ast.Subscript() as target, value=value):
            return target, value
        case ast.Assign(targets=[ast.Subscript() as target], value=ast.BinOp(op=ast.Add(), left=left, right=right)):
            text = ast.unparse(target)
            return (
                (target, right if ast.unparse(left) == text else left)
                if text in map(ast.unparse, (left, right))
                else (None, None)
            )
        case _:
            return None, None


def _is_minus(node: ast.AugAssign | ast.Assign) -> bool:
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Sub)


def _is_total(source: SourceFile, array: ast.expr) -> bool:
    """Return True for an array that starts with equal numbers."""
    known = list(origins(source, array))
    if isinstance(array, ast.Attribute):
        known += [value] if (value := attribute_value(source, array, array.attr)) is not None else []
    made = [_unconverted(each) for each in known if isinstance(each, ast.Call)]
    return any(isinstance(each, ast.Call) and last_name(each.func) in _MAKING for each in made)


def _unconverted(node: ast.expr) -> ast.expr:
    """Return what an expression converts or reshapes."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in _CONVERTING:
                node = inner
            case ast.Attribute(value=ast.expr() as inner, attr="T" | "data" | "values" | "indices"):
                node = inner
            case _:
                return node


def _traits(source: SourceFile, node: ast.expr, depth: int = _MAX_DEPTH) -> set[str]:
    """Return what is known of an index: that it is an array, that it has repeats, or that it has certainly none."""
    node, found = _unconverted(node), set[str]()
    if depth == 0:
        return found
    if isinstance(node, _DISTINCT_NODES):
        found = {DISTINCT}
    elif isinstance(node, ast.BinOp):
        sides = [each for each in (node.left, node.right) if not isinstance(each, ast.Constant)]
        is_mask = isinstance(node.op, ast.BitAnd | ast.BitOr)
        found = {DISTINCT} if is_mask else found.union(*(_traits(source, each, depth - 1) for each in sides))
    elif isinstance(node, ast.Subscript):
        found = _traits_of_item(source, node.value, node.slice, depth)
    elif isinstance(node, ast.Call):
        found = _traits_of_call(source, node, depth)
    elif isinstance(node, ast.Name | ast.Attribute):
        found = _traits_of_variable(source, node, depth)
    return found


def _traits_of_item(source: SourceFile, inner: ast.expr, where: ast.expr, depth: int) -> set[str]:
    parts = where.elts if isinstance(where, ast.Tuple) else [where]
    whole = _traits(source, inner, depth - 1)
    is_part = any(isinstance(each, ast.Slice | ast.Compare) or "mask" in ast.unparse(each) for each in parts)
    is_column = isinstance(where, ast.Constant) and _is_batch(source, inner)
    if is_part or (isinstance(inner, ast.Call) and isinstance(where, ast.Constant)):
        return whole
    return {ARRAY, REPEATS} if is_column and where.value == 1 else {DISTINCT} if DISTINCT in whole else set()  # type: ignore[attr-defined]


def _traits_of_call(source: SourceFile, node: ast.Call, depth: int) -> set[str]:
    name = last_name(node.func)
    along = [each.value for each in node.keywords if each.arg in ("dim", "axis")] or node.args[-1:]
    if name in ("argmax", "argmin", "max", "min"):
        is_row_wise = any(isinstance(each, ast.Constant) and each.value == 1 for each in along)
        return {ARRAY, REPEATS} if is_row_wise else set()
    if name in _UNIQUE or name in ("int", "item", "len", "bool") or name.startswith("is"):
        return {DISTINCT}
    if name in _REPEATING:
        sizes = [each for each in node.args if isinstance(each, ast.Tuple | ast.List)] or node.args[2:]
        is_array = name != "randint" or bool(sizes) or any(each.arg == "size" for each in node.keywords)
        return {ARRAY, REPEATS} if is_array else set()
    if name in ("floor", "round", "floor_"):  # cells of a grid
        rounded = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else node
        return {REPEATS} | _traits(source, rounded, depth - 1)
    if name in _ARRAYS:
        inner = [_traits(source, each, depth - 1) for each in node.args[:1]]
        return {ARRAY}.union(*inner)
    return set[str]().union(*(_traits(source, each, depth - 1) for each in possible_values(source, node)))


def _traits_of_variable(source: SourceFile, node: Any, depth: int) -> set[str]:
    name = last_name(node)
    if "mask" in name.lower() or "perm" in name.lower():
        return {DISTINCT}
    for loop in loops_around(source, node):
        if any(each.id == name for each in nodes_in(loop.target, ast.Name)) and isinstance(node, ast.Name):
            return {ARRAY, REPEATS} if _is_label_of_batch(source, loop, node) else {DISTINCT}
    known = possible_values(source, node)
    own = {ARRAY, REPEATS} if isinstance(node, ast.Attribute) and name in _COLUMNS and not known else set[str]()
    unpacked = unpacked_call(source, node) if isinstance(node, ast.Name) else None
    if unpacked is not None:
        if "return_inverse" in ast.unparse(unpacked):
            return {ARRAY, REPEATS} if "inv" in name else set()
        known = [*known, unpacked]
    found = own.union(*(_traits(source, each, depth - 1) for each in known))
    return found | {REPEATS} if ARRAY in found and is_label(node) and not _ROWS.search(name) else found


def _is_label_of_batch(source: SourceFile, loop: Any, node: ast.Name) -> bool:
    """Return True for a variable of a loop over batches that contains labels."""
    found: BatchLoop | None = next((each for each in batch_loops(source) if each.node is loop), None)
    if found is None or has_batches_of_one(source, found) or _ROWS.search(node.id):
        return False
    target = loop.target.elts[-1] if found.counter and isinstance(loop.target, ast.Tuple) else loop.target
    names = [getattr(each, "id", "") for each in target.elts] if isinstance(target, ast.Tuple) else []
    return node.id in names and (is_label(node) or (len(names) == 2 and names[1] == node.id))


def _is_batch(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the variable of a loop over batches that is the whole batch."""
    loops = [each for each in batch_loops(source) if encloses(each.node, node)]
    targets = [
        e.node.target.elts[-1] if e.counter and isinstance(e.node.target, ast.Tuple) else e.node.target for e in loops
    ]
    return any(dotted_name(node) == dotted_name(each) != "" for each in targets)


def _is_grouped(source: SourceFile, node: ast.AST, target: ast.Subscript, index: ast.expr) -> bool:
    """Return True if a function counts the values of an index, or takes its maximum as the number of groups."""
    if not isinstance(index, ast.Name | ast.Attribute) or _is_of_loop(source, node, index):
        return False
    text, function = ast.unparse(index), function_of(source, node)
    for call in nodes_in(function, ast.Call):
        name = last_name(call.func)
        given = [ast.unparse(_unconverted(each)) for each in call.args]
        owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if (name == "bincount" and text in given) or (name in ("index_add_", "scatter_add_") and text in given[1:2]):
            return True
        if name in ("max", "amax", "unique") and (text in given or (owner == text and not call.args)):
            return True
    totals = [each for each in nodes_in(function, ast.AugAssign) if isinstance(each.target, ast.Subscript)]
    others = [each for each in totals if ast.unparse(each.target.slice) == text and each.target is not target]  # type: ignore[attr-defined]
    is_counted = any(isinstance(each.value, ast.Constant) for each in totals if each in others or each is node)
    return (
        bool(others)
        and is_counted
        and _is_made_here(source, node, target)
        and any(function is function_of(source, each) for each in others)
    )


def _is_made_here(source: SourceFile, node: ast.AST, target: ast.Subscript) -> bool:
    """Return True if an array of zeros is made in the same function, and changed there outside of all loops."""
    is_local = isinstance(target.value, ast.Name) and not list(loops_around(source, node))
    return is_local and any(_UNFILLED.search(ast.unparse(each)) for each in possible_values(source, target.value))


_UNFILLED: Final = re.compile(r"\b(zeros|zeros_like|new_zeros)\(")


def _is_of_loop(source: SourceFile, node: ast.AST, index: ast.expr) -> bool:
    """Return True if an index follows from the variable of a loop around a node, so that it may be one number."""
    used = {each.id for part in origins(source, index) for each in nodes_in(part, ast.Name)}
    unpacked = unpacked_call(source, index) if isinstance(index, ast.Name) else None
    used |= {each.id for each in nodes_in(unpacked, ast.Name)} if unpacked is not None else set()
    pair = _pair(source, index)
    used |= set(re.findall(r"\w+", pair[0])) if pair is not None else set()
    return any(each.id in used for loop in loops_around(source, node) for each in nodes_in(loop.target, ast.Name))


def _is_edge(source: SourceFile, node: ast.AST, index: ast.expr, value: ast.expr) -> bool:
    """Return True if the added values are items at the other one of two rows from which the index comes too."""
    own = _pair(source, index)
    if own is None or _is_of_loop(source, node, index):
        return False
    for each in nodes_in(value, ast.Name):
        for part in origins(source, each):
            value = part if part is not each else value
            others = [_pair(source, item.slice) for item in nodes_in(part, ast.Subscript)]
            if any(other is not None and other[0] == own[0] and other[1] != own[1] for other in others):
                return True
    others = [_pair(source, part) for item in nodes_in(value, ast.Subscript) for part in _parts(item.slice)]
    return any(other is not None and other[0] == own[0] and other[1] != own[1] for other in others)


def _parts(index: ast.expr) -> list[ast.expr]:
    return index.elts if isinstance(index, ast.Tuple) else [index]


def _pair(source: SourceFile, index: ast.expr) -> tuple[str, int] | None:
    """Return the array of which an index is one of two rows or columns, and which one; None if it is none."""
    match _unconverted(index):
        case (
            ast.Subscript(value=owner, slice=ast.Constant(value=row))
            | ast.Subscript(value=owner, slice=ast.Tuple(elts=[ast.Slice(lower=None), ast.Constant(value=row)]))
        ):
            return (ast.unparse(owner), int(row)) if row in (0, 1) else None
        case ast.Name() as variable:
            made = [e for e in nodes_in(function_of(source, variable), ast.Assign) if e.lineno < variable.lineno]
            made = sorted(made, key=lambda each: each.lineno)
            found = [_pair_of_assignment(source, each, variable.id) for each in made]
            return next((each for each in reversed(found) if each is not None), None)
        case _:
            return None


def _pair_of_assignment(source: SourceFile, statement: ast.Assign, name: str) -> tuple[str, int] | None:
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second)])], value=made):
            if name not in (first, second):
                return None
            row = (first, second).index(name)
            return _pair(source, made.elts[row]) if isinstance(made, ast.Tuple) else (ast.unparse(made), row)
        case ast.Assign(targets=[ast.Name(id=first)], value=ast.Subscript() as made) if first == name:
            return _pair(source, made)
        case _:
            return None


def _fix(
    source: SourceFile, node: ast.AST, target: ast.Subscript, value: ast.expr, indices: list[ast.expr]
) -> Fix | None:
    """Return the edit that accumulates the values; None unless a single index is the whole subscript."""
    array, index = ast.unparse(target.value), ast.unparse(target.slice)
    made = " ".join(ast.unparse(each) for each in origins(source, target.value))
    if _is_minus(node) or not isinstance(node, ast.AugAssign):  # type: ignore[arg-type]
        return None
    if re.search(r"\b(np|numpy)\.", made):
        text = f"np.add.at({array}, {'(' + index + ')' if len(indices) > 1 else index}, {ast.unparse(value)})"
    elif indices != [target.slice] or "torch." not in made:
        return None
    elif isinstance(value, ast.Constant):
        text = f"{array} += torch.bincount({index}, minlength=len({array}))" if value.value == 1 else ""
    else:
        text = f"{array}.index_add_(0, {index}, {ast.unparse(value)})"
    edits = (source.text.replace(node, text),) if text else ()
    return Fix(edits, safe=False, description="Accumulate all values") if edits else None


_ADDED: Final = re.compile(r"\[[^=\n]*[A-Za-z_][^=\n]*\] [+-]= |\[(\w+)\] = \w+\[\1\] \+")
RULE = Rule(required_words=("torch|numpy", "zeros|ones|full", _ADDED), find=find)

BAD = """
import torch
from torch import nn


class MeanOfNeighbours(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.others = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x, edges):
        sources, targets = edges
        total = torch.zeros_like(x)
        total[targets] += x[sources]
        degree = torch.bincount(targets, minlength=len(x)).clamp(min=1).unsqueeze(1)
        return self.own(x) + self.others(total / degree)


torch.manual_seed(0)
x, edges = torch.randn(100, 6), torch.randint(0, 100, (2, 400))
y = torch.zeros(100).index_add_(0, edges[1], x[edges[0], 0]) + 4 * x[:, 1]
layer = MeanOfNeighbours(6, 1)
optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
for step in range(100):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(layer(x, edges)[:, 0], y)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL040",
    title="Repeated indices are added only once",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"total[targets] += x[sources]": "total.index_add_(0, targets, x[sources])"}),
    fix="Use index_add_, scatter_add_, index_put_(accumulate=True), bincount or np.add.at.",
    rule=RULE,
)
