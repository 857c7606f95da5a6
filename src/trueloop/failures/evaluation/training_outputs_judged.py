"""The loop over the validation data judges variables of the training loop, not its own outputs or labels.

What you see
    The validation loss hardly moves within an epoch, is the same for all batches, or has nothing to do with how good
    the model is. Early stopping and the choice of the best model follow it.

Why it happens
    Python keeps the variables of a loop after its end. ``outputs`` in the validation loop is then the last batch of the
    training loop, if the outputs of the validation batch have another name.

Fix
    Judge what the loop computed:

        for val_inputs, val_labels in val_loader:
            val_outputs = model(val_inputs)
            total += criterion(val_outputs, val_labels).item()  # not outputs

    A function for each loop keeps the variables apart.

When this is fine
    - The loop shows a number of the training loop, such as its last loss.
    - The variable is assigned between the loops, or before both: a running state.
    - A batch of the training data is kept on purpose, for example as examples for the prompt.

How it is detected
    Only the linter finds it: a loop over a loader without a backward pass computes something from a variable, and only
    the batch loop with the backward pass before it assigns this variable, from its own batch.

References
    Python, "The for statement", https://docs.python.org/3/reference/compound_stmts.html#the-for-statement
    torch.utils.data, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import LOADER_WORDS, BatchLoop, batch_loops
from trueloop.analysis.queries.loop_variables import computing_statement, derived_names, stored_names, trains
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each use of a variable of the training loop in a loop over other batches."""
    loops = batch_loops(source)
    training = [each for each in loops if trains(each.node)]
    for loop in loops:
        for before in training:
            if not trains(loop.node) and _sees(loop, before):
                yield from _judge(source, loop, before)


def _sees(loop: BatchLoop, before: BatchLoop) -> bool:
    """Return True if variables of one loop are visible in another one, and the loops do not contain each other."""
    is_inside = any(each is loop.node for each in nodes_in(before.node, ast.For))
    if before.function is loop.function:
        return not is_inside and before.node.lineno < loop.node.lineno
    return isinstance(before.function, ast.Module)


def _judge(source: SourceFile, loop: BatchLoop, before: BatchLoop) -> Iterator[Hit]:
    own = stored_names(loop.node)
    parameters = {each.arg for each in nodes_in(loop.function, ast.arg)}
    chosen = {each for each in derived_names(before) - own - parameters if not _is_stored_elsewhere(loop, before, each)}
    for used in nodes_in(loop.node, ast.Name) if chosen else ():
        statement = computing_statement(source, used)
        if used.id in chosen and statement is not None:
            chosen.discard(used.id)
            unread = sorted(name for name in own if _is_unread(loop, name))
            yield _hit(source, loop, before, statement, used, unread)


def _hit(
    source: SourceFile, loop: BatchLoop, before: BatchLoop, node: ast.stmt, used: ast.Name, unread: list[str]
) -> Hit:
    loader = ast.unparse(loop.loader)
    own = f", and nothing reads `{unread[0]}` of this loop" if len(unread) == 1 else ""
    edit = source.text.replace(used, unread[0]) if len(unread) == 1 else None
    return Hit(
        message=f"`{source.text.segment(node)}` in the loop over `{loader}` uses `{used.id}`, which is from the "
        f"last batch of `{ast.unparse(before.loader)}`{own}.",
        node=node,
        related=((before.node, f"this loop assigns `{used.id}`"),),
        fix=None if edit is None else Fix((edit,), safe=False, description=f"Use `{unread[0]}`"),
    )


def _is_stored_elsewhere(loop: BatchLoop, before: BatchLoop, name: str) -> bool:
    """Return True if a variable is assigned outside the training loop, too."""
    total = sum(
        each.id == name and isinstance(each.ctx, ast.Store)
        for function in {id(each.function): each.function for each in (loop, before)}.values()
        for each in nodes_in(function, ast.Name)
    )
    inside = sum(each.id == name and isinstance(each.ctx, ast.Store) for each in nodes_in(before.node, ast.Name))
    return total > inside


def _is_unread(loop: BatchLoop, name: str) -> bool:
    loads = (each for each in nodes_in(loop.function, ast.Name) if isinstance(each.ctx, ast.Load))
    return name not in ("_", loop.counter) and all(each.id != name for each in loads)


RULE: Final = Rule(required_words=("backward", LOADER_WORDS, "for "), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train_loader = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=32)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        nn.functional.mse_loss(outputs, targets).backward()
        optimizer.step()
    total = 0.0
    with torch.no_grad():
        for val_inputs, val_targets in val_loader:
            val_outputs = model(val_inputs)
            total += nn.functional.mse_loss(outputs, val_targets).item()
    print(epoch, total / len(val_loader))
"""

FAILURE = Failure(
    code="EVL025",
    title="The validation loop judges variables of the training loop",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(outputs, val_targets)": "(val_outputs, val_targets)"}),
    fix="Pass the outputs and labels of the validation batch to the loss, not those of the training loop.",
    rule=RULE,
)
