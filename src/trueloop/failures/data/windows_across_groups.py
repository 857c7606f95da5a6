"""Windows slide over the joints of several series that were put end to end.

What you see
    The error is higher than it should be, more so for short series, and largest where a window begins in one store,
    patient or machine and its target belongs to the next one.

Why it happens
    After ``reshape(-1)`` or ``concatenate`` the series of all groups are one long array. A window of 14 steps that
    begins 5 steps before a joint holds 5 steps of one group and 9 of another. All shapes are right.

Fix
    Cut the windows of each group, and join the windows.

        windows = [sliding_window_view(series, width) for series in table]
        x = np.concatenate(windows)

When this is fine
    - The series are parts of one recording, in their order, such as files of consecutive months.
    - Text or other tokens, of which documents are packed one after the other.
    - Batches of rows, which are cut without an overlap.
    - Windows that contain a joint are left out by a condition, or their starts are listed.
    - The table has one series, as a column that was reshaped for a scaler.

How it is detected
    Only the linter finds it: ``sliding_window_view``, ``unfold`` or a slice ``series[i:i + width]`` for each step, of
    an array that is a flattened table whose steps are cut along its second dimension, as in ``table[:, :42]``, or the
    concatenation of what a loop or ``groupby`` gives for stores, patients, sensors, episodes or other groups.

References
    numpy.lib.stride_tricks.sliding_window_view,
    https://numpy.org/doc/stable/reference/generated/numpy.lib.stride_tricks.sliding_window_view.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import added_to_list, function_of
from trueloop.analysis.queries.possible_values import MAX_DEPTH, enclosing_nodes, loops_around, origins
from trueloop.analysis.queries.window_pairs import CONVERSIONS
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.data.held_out_seen_in_training.windows_split import windows_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_GROUP: Final = re.compile(
    r"store|shop|patient|subject|sensor|station|ticker|stock|symbol|user|customer|episode|machine|engine|unit|cit(y|ies)"
    r"|countr|region|vehicle|participant|meter|household|product|item|sku|player|groupby|group|well|site|asset|trial",
    re.IGNORECASE,
)
_TEXT: Final = re.compile(r"token|encode|text|word|corpus|vocab|char|song|month|year|chunk|part|day|shard", re.I)
_JOINING: Final = frozenset(("concatenate", "concat", "cat", "hstack"))
_FLATTENING: Final = frozenset(("reshape", "view", "ravel", "flatten"))
_KEEPING: Final = CONVERSIONS | {"dropna", "fit_transform", "reset_index", "transform"}
_STEPS: Final = re.compile(r"\[:, (-?\w+:-?\w*|:-?\w+)\]$")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each place that cuts windows out of series of several groups that are joined."""
    for node, series in _windows(source):
        for each in _values(source, series):
            if _joins_groups(source, each) or _flattens_table(source, each):
                yield Hit(
                    message=f"`{ast.unparse(node)}` slides over the joints of the series in `{ast.unparse(each)}`: "
                    "such windows begin in one series and end in the next one.",
                    node=each,
                    related=((node, "windows are cut here"),),
                )
                break


def _windows(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each expression that cuts a window for each step, with the series, unless some windows are left out."""
    for value in source.nodes_of(ast.Call, ast.ListComp, ast.List):
        for each in windows_in(source, value, 0):
            is_chosen = any(isinstance(outer, ast.If | ast.IfExp) for outer in enclosing_nodes(source, each))
            if not is_chosen and not any(nodes_in(function_of(source, each), ast.Continue)):
                is_method = isinstance(each, ast.Call) and last_name(each.func) == "unfold"
                owner = getattr(each, "func", each) if is_method else each
                yield each, owner.value if not isinstance(owner, ast.Call) else owner.args[0]  # type: ignore[attr-defined]


def _values(source: SourceFile, node: ast.expr, depth: int = MAX_DEPTH) -> Iterator[ast.expr]:
    """Yield the expressions of which an array has all steps, without scaling and conversions."""
    for each in origins(source, node) if depth else ():
        yield each
        match each:
            case ast.BinOp(left=inner) | ast.Attribute(attr="values", value=inner):
                yield from _values(source, inner, depth - 1)
            case ast.Subscript(value=inner, slice=ast.Constant(value=str()) | ast.List()):
                yield from _values(source, inner, depth - 1)  # a column of a table
            case ast.Call(func=func) if last_name(func) in _KEEPING:
                is_method = isinstance(func, ast.Attribute) and last_name(func.value) not in ("np", "torch")
                is_scaler = last_name(func) in ("transform", "fit_transform")
                inner = func.value if is_method and not is_scaler else next(iter(each.args), None)  # type: ignore[attr-defined]
                yield from _values(source, inner, depth - 1) if inner is not None else ()
            case ast.Name():
                for item in _items_of_loop(source, each):
                    yield from _values(source, item, depth - 1)
            case _:
                pass


def _items_of_loop(source: SourceFile, name: ast.Name) -> Iterator[ast.expr]:
    """Yield the values of ``for key, value in parts.items()`` for a dictionary that is written out."""
    for loop in loops_around(source, name):
        match loop.target, loop.iter:
            case ast.Tuple(elts=[_, ast.Name(id=target)]), ast.Call(func=ast.Attribute(attr="items", value=owner)):
                made = [each for each in origins(source, owner) if isinstance(each, ast.Dict) and target == name.id]
                yield from (value for each in made for value in each.values)
            case _:
                pass


def _flattens_table(source: SourceFile, node: ast.expr) -> bool:
    """Return True for ``table.reshape(-1)`` if the table is a range of steps, ``data[:, :42]``, of several series."""
    match node:
        case ast.Call(func=ast.Attribute(attr=attr, value=table), args=args) if attr in _FLATTENING:
            is_flat = list(map(ast.unparse, args)) in ([], ["-1"])
            return is_flat and any(_STEPS.search(ast.unparse(each)) for each in _values(source, table))
        case _:
            return False


def _joins_groups(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the concatenation of what a loop or comprehension gives for each group."""
    if not isinstance(node, ast.Call) or last_name(node.func) not in _JOINING or not node.args:
        return False
    axes = [ast.unparse(each) for each in node.args[1:2]]
    axes += [ast.unparse(each.value) for each in node.keywords if each.arg in ("axis", "dim")]
    return axes in ([], ["0"]) and any(_is_of_groups(source, each) for each in origins(source, node.args[0]))


def _is_of_groups(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a list with a series, not windows, of each group, by the names in the loop that makes it."""
    made: list[tuple[ast.comprehension | ast.For | None, ast.expr]] = []
    match node:
        case ast.ListComp(elt=elt, generators=[loop]) | ast.GeneratorExp(elt=elt, generators=[loop]):
            made = [(loop, elt)]
        case ast.Name():
            made = [(next(iter(loops_around(source, each)), None), each) for each in added_to_list(source, node)]
        case _:
            pass
    for over, value in made:
        names = "" if over is None else f"{ast.unparse(over.target)} {ast.unparse(over.iter)}"
        called = [last_name(each.func) for each in nodes_in(value, ast.Call)]
        if _GROUP.search(names) and not _TEXT.search(names) and not any(map(_OF_WINDOWS.search, called)):
            return True
    return False


_OF_WINDOWS: Final = re.compile(r"window|seq|unfold|stack|sliding|slice|sample", re.IGNORECASE)
_CUTTING: Final = re.compile(r"sliding_window_view|\.unfold\(|\[(\w+) ?: ?\1 ?\+|\[\w+ ?: ?(end|stop|j)\w*\]")
RULE: Final = Rule(required_words=("torch", _CUTTING, "concat|cat(|hstack|reshape(|view(|ravel(|flatten("), find=find)

BAD = """
import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
torch.manual_seed(0)
sales = (10 * rng.normal(size=(20, 1)) + rng.normal(size=(20, 60)).cumsum(axis=1)).astype(np.float32)
stores = sales[:, :40]
windows = torch.from_numpy(np.lib.stride_tricks.sliding_window_view(stores.reshape(-1), 8).copy())
model = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(40):
    rows = windows[torch.randint(0, len(windows), (64,))]
    loss = nn.functional.mse_loss(model(rows[:, :7]), rows[:, 7:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT069",
    title="Windows slide over the joints of several series",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "np.lib.stride_tricks.sliding_window_view(stores.reshape(-1), 8).copy()": (
                "np.concatenate([np.lib.stride_tricks.sliding_window_view(each, 8) for each in stores])"
            )
        },
    ),
    fix="Cut the windows of each series, and join the windows.",
    rule=RULE,
)
