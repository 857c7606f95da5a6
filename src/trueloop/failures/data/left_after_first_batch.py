"""A ``return`` inside the batch loop ends training after the first batch.

What you see
    An epoch takes almost no time. The loss falls slowly and is noisy, because each epoch makes one update, on its first
    batch. The loss that is returned for the epoch is the loss of this batch, often divided by the number of batches.

Why it happens
    A ``return`` that is indented one level too deep is valid Python. The function returns a value of the right type,
    and the program continues as if the loop had finished.

Fix
    Move the ``return`` out of the loop. To use one batch only, write ``batch = next(iter(loader))``.

        for inputs, targets in loader:
            ...
            optimizer.step()
        return total / len(loader)

When this is fine
    - You write ``next(iter(loader))``, which says that you want one batch.
    - The ``break`` or ``return`` has a condition: a maximum number of steps, a time limit, a loss that is not finite.
    - The loop body can ``continue`` with the next batch.
    - The function is a generator.
    - The function handles an empty loader right after the loop.
    - You overfit one batch on purpose, with several updates.
    - The loader has one batch, which contains the full dataset.
    - The loop reads from an iterator, so the next loop continues with the next batch.

How it is detected
    Only the linter finds it, from the source code: an optimizer steps in the body of a loop over a ``DataLoader``, and
    that body ends with an unconditional ``return``. It may be intended, so this is a warning.

References
    facebookresearch/deepcluster#1, "Return statement inside for loop cuts short each set of epochs",
    https://github.com/facebookresearch/deepcluster/issues/1
    facebookresearch/deepcluster#3, "training in each epoch is done with only first one mini-batch",
    https://github.com/facebookresearch/deepcluster/pull/3
    The return statement, https://docs.python.org/3/reference/simple_stmts.html#the-return-statement
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.loop_invariance import iterated_loader
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.assignments import FUNCTIONS, enclosing_definition
from trueloop.analysis.queries.loops import is_inside
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, walk
from trueloop.failures.failure import Failure, Rule, Severity

RESUMABLE_ITERATORS: Final = ("iter", "cycle", "chain", "from_iterable", "islice", "repeat")
"""Functions whose iterators continue where they stopped."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each return that ends a training loop over a loader in its first iteration."""
    if _has_resumable_iterator(source):
        return
    reported: set[int] = set()
    for step in source.ops(OpKind.STEP):
        loop = step.loops[-1] if step.loops else None
        loader = iterated_loader(loop) if loop is not None else None
        if loop is None or loader is None or id(loop.node) in reported or _is_full_batch(loader):
            continue
        exit_ = _unconditional_return(source, loop.node)
        if exit_ is not None:
            reported.add(id(loop.node))
            yield Hit(
                message=f"This return ends the loop over `{ast.unparse(loop.node.iter)}` in its first "
                "iteration: the model is trained on one batch only.",
                node=exit_,
                related=((loop.node.iter, "the batch loop"), (step.node, "the optimizer steps here")),
                fix=_move_return(source, loop.node, exit_),
            )


def _unconditional_return(source: SourceFile, loop: Any) -> ast.Return | None:
    """Return the return statement that ends a loop in its first iteration; None if it seems intended."""
    if not isinstance(loop, ast.For) or loop.orelse:
        return None
    last = loop.body[-1]
    while isinstance(last, ast.With):
        last = last.body[-1]
    intended = (ast.Continue, ast.Break, ast.Yield, ast.YieldFrom)
    function = enclosing_definition(source, loop, FUNCTIONS)
    if not isinstance(last, ast.Return) or any(isinstance(each, intended) for each in walk(function)):
        return None
    return None if _is_conditional(function, loop) or _handles_empty_loader(source, loop) else last


def _is_conditional(function: ast.AST, loop: ast.For) -> bool:
    """Return True if only some calls of the function reach the loop."""
    tests = (ast.If, ast.Try, ast.While, ast.Match)
    return any(isinstance(each, tests) and is_inside(loop, each) for each in walk(function))


def _handles_empty_loader(source: SourceFile, loop: ast.For) -> bool:
    """Return True if the function handles a loader without batches right after the loop."""
    after = source.following(loop)
    return bool(after) and isinstance(after[0], ast.Return | ast.Raise)


def _is_full_batch(loader: AbstractValue) -> bool:
    """Return True if the batch size is the length of a dataset: the loader has one batch."""
    size = loader.arguments.get("batch_size") or loader.arguments.get("1")
    calls = walk(size.node) if size is not None and size.node is not None else ()
    return any(isinstance(each, ast.Call) and getattr(each.func, "id", "") == "len" for each in calls)


def _has_resumable_iterator(source: SourceFile) -> bool:
    """Return True if an iterator may be used for more than one `next`."""
    used_once = {id(each.args[0]) for each in source.all_calls if last_name(each.func) == "next" and each.args}
    return any(last_name(each.func) in RESUMABLE_ITERATORS and id(each) not in used_once for each in source.all_calls)


def _move_return(source: SourceFile, loop: ast.For, exit_: ast.Return) -> Fix | None:
    """Return the fix that moves the return after the loop, unless another loop encloses it."""
    function = enclosing_definition(source, loop, FUNCTIONS)
    if source.block(loop) is not function.body or loop.body[-1] is not exit_ or len(loop.body) == 1:
        return None
    edits = source.text.move_statement(exit_, after=loop)
    return Fix(edits, safe=False, description="Move the return after the loop") if edits else None


RULE = Rule(required_words=("DataLoader", "return", "step("), find=find)

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
    title="The batch loop returns after its first batch",
    severity=Severity.WARNING,
    bad=BAD,
    good=BAD.replace("        return", "    return"),
    fix="Move the return out of the loop; for one batch only, write next(iter(loader)).",
    rule=RULE,
)
