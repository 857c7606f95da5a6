"""A function that trains on the batches of a loader returns at the end of the first one.

What you see
    Epochs are over in no time. The loss falls, slowly and with much noise, as each epoch is a single update on its
    first batch; what is returned as the epoch's loss is that of one batch.

Why it happens
    A ``return`` that is indented by four columns too many stands within the loop, as it may. What the function returns
    has the right type, and the program goes on as if the loop had come to its end.

Fix
    Take the ``return`` out of the loop. Where one batch is wanted: ``batch = next(iter(loader))``.

When this is fine
    ``next(iter(loader))``, which says that one batch is wanted; ``break`` or ``return`` on a condition, as for a limit,
    a time, or a loss that is not finite; a turn that may ``continue`` with the next batch; a generator; a search for
    the first batch that fits; a function that says behind the loop what becomes of an empty loader; several updates on
    one batch, to overfit it; a loader of one batch as large as its dataset; an iterator, which goes on where it was
    left. Told where an optimizer steps in the loop's own body, which ends by a ``return`` without a condition. Who
    takes one update by a loop on purpose is named too: hence a warning. A run does not see how a loop is left, so it is
    told from the text only.

References
    facebookresearch/deepcluster#1, "Return statement inside for loop cuts short each set of epochs",
    https://github.com/facebookresearch/deepcluster/issues/1
    facebookresearch/deepcluster#3, "training in each epoch is done with only first one mini-batch",
    https://github.com/facebookresearch/deepcluster/pull/3
    The return statement, https://docs.python.org/3/reference/simple_stmts.html#the-return-statement
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.loop_invariance import over_loader
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.assignments import FUNCTIONS, around
from trueloop.analysis.queries.loops import stands_in
from trueloop.analysis.source_file import Hit, Source, last_word
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule, Severity

KEPT: Final = ("iter", "cycle", "chain", "from_iterable", "islice", "repeat")
"""Functions whose iterators go on where they were left."""


def find(source: Source) -> Iterator[Hit]:
    """Yield the return that ends each loop over a loader, in which an optimizer steps, in its first turn."""
    if _keeps_iterators(source):
        return
    told: set[int] = set()
    for step in source.acts(OpKind.STEPPED):
        loop = step.loops[-1] if step.loops else None
        loader = over_loader(loop) if loop is not None else None
        if loop is None or loader is None or id(loop.node) in told or _whole(loader):
            continue
        left = _left(source, loop.node)
        if left is not None:
            told.add(id(loop.node))
            yield Hit(
                message="This return ends the loop over the batches in its first turn: the model is trained on one "
                "batch, and on no other.",
                node=left,
                related=((loop.node.iter, "the loop over the batches"), (step.node, "stepped here")),
                fix=_behind(source, loop.node, left),
            )


def _left(source: Source, loop: Any) -> ast.Return | None:
    """Return what surely ends a loop in its first turn; None where the text says that this is what is wanted."""
    if not isinstance(loop, ast.For) or loop.orelse:
        return None
    last = loop.body[-1]
    while isinstance(last, ast.With):
        last = last.body[-1]
    others = (ast.Continue, ast.Break, ast.Yield, ast.YieldFrom)
    function = around(source, loop, FUNCTIONS)
    if not isinstance(last, ast.Return) or any(isinstance(each, others) for each in ast.walk(function)):
        return None
    return None if _on_a_condition(function, loop) or _answered(source, loop) else last


def _on_a_condition(function: ast.AST, loop: ast.For) -> bool:
    """True where only some calls of the function come to the loop."""
    tests = (ast.If, ast.Try, ast.While, ast.Match)
    return any(isinstance(each, tests) and stands_in(loop, each) for each in ast.walk(function))


def _answered(source: Source, loop: ast.For) -> bool:
    """True where the function says, right behind the loop, what becomes of a loader without batches."""
    block = source.block(loop)
    behind = block[block.index(loop) + 1 :]
    return bool(behind) and isinstance(behind[0], ast.Return | ast.Raise)


def _whole(loader: AbstractValue) -> bool:
    """True where a batch is as large as something is long: there is one."""
    size = loader.options.get("batch_size") or loader.options.get("1")
    calls = ast.walk(size.node) if size is not None and size.node is not None else ()
    return any(isinstance(each, ast.Call) and getattr(each.func, "id", "") == "len" for each in calls)


def _keeps_iterators(source: Source) -> bool:
    """True where an iterator is made that something else than the next batch is wanted of: it may be kept."""
    taken = {id(each.args[0]) for each in source.all_calls if last_word(each.func) == "next" and each.args}
    return any(last_word(each.func) in KEPT and id(each) not in taken for each in source.all_calls)


def _behind(source: Source, loop: ast.For, left: ast.Return) -> Fix | None:
    """Return the fix: the return goes behind the loop, where no other loop stands around it."""
    function = around(source, loop, FUNCTIONS)
    if source.block(loop) is not function.body or loop.body[-1] is not left or len(loop.body) == 1:
        return None
    edits = source.text.moved(left, behind=loop)
    return Fix(edits, safe=False, words="Return behind the loop") if edits else None


RULE = Rule(words=("DataLoader", "return", "step("), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train_epoch(model, loader, optimizer):
    total = 0.0
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item()
        return total / len(loader)

x = torch.randn(128, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(3):
    print(train_epoch(model, loader, optimizer))
"""

FAILURE = Failure(
    code="DAT009",
    title="A loop over the batches is left in its first round",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=BAD.replace("        return", "    return"),
    fix="Take the return out of the loop; for one batch only, say next(iter(loader)).",
    rule=RULE,
)
