"""The validation loop judges variables of the training loop, or the training step uses those of a validation loop.

What you see
    The validation loss hardly moves within an epoch, is the same for all batches, or has nothing to do with how good
    the model is. Early stopping and the choice of the best model follow it. Or the model learns the validation data:
    their loss is lower than that of the test data.

Why it happens
    Python keeps the variables of a loop after its end. ``outputs`` in the validation loop is then the last batch of the
    training loop, if the outputs of the validation batch have another name. A validation loop within the training loop
    that uses the same names, ``for x, y in val_loader``, replaces the training batch: the step below it trains on the
    last validation batch.

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
    - The names are assigned again before the training step, or the validation loop is followed by ``continue``.

How it is detected
    Only the linter finds it: a loop over a loader without a backward pass computes something from a variable, and only
    the batch loop with the backward pass before it assigns this variable, from its own batch. Or a loop over other
    batches, within a loop with a backward pass, assigns the batch that this loop reads afterwards.

References
    Python, "The for statement", https://docs.python.org/3/reference/compound_stmts.html#the-for-statement
    torch.utils.data, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import LOADER_WORDS, BatchLoop, batch_loops, hand_made_batch_loops
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SHOWING: Final = frozenset((
    "print", "log", "info", "debug", "warning", "write", "format", "set_postfix", "set_description", "add_scalar",
))  # fmt: skip
_MOVES: Final = frozenset(("to", "cuda", "float", "long", "double", "int"))
_SHAPE: Final = re.compile(r"\.shape\b|\.size\(|\blen\(")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each use of a variable of the training loop in a loop over other batches."""
    yield from _replaced_batches(source)
    loops = batch_loops(source)
    training = [each for each in loops if _trains(each.node)]
    for loop in loops:
        for before in training:
            if not _trains(loop.node) and _sees(loop, before):
                yield from _judge(source, loop, before)


def _trains(node: ast.AST) -> bool:
    return any(last_name(each.func) == "backward" for each in nodes_in(node, ast.Call))


def _sees(loop: BatchLoop, before: BatchLoop) -> bool:
    """Return True if variables of one loop are visible in another one, and the loops do not contain each other."""
    is_inside = any(each is loop.node for each in nodes_in(before.node, ast.For))
    if before.function is loop.function:
        return not is_inside and before.node.lineno < loop.node.lineno
    return isinstance(before.function, ast.Module)


def _judge(source: SourceFile, loop: BatchLoop, before: BatchLoop) -> Iterator[Hit]:
    own = _stored(loop.node)
    parameters = {each.arg for each in nodes_in(loop.function, ast.arg)}
    chosen = {each for each in _derived(before) - own - parameters if not _is_stored_elsewhere(loop, before, each)}
    for used in nodes_in(loop.node, ast.Name) if chosen else ():
        statement = _statement(source, used)
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


def _stored(node: Any) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name) if isinstance(each.ctx, ast.Store)}


def _is_stored_elsewhere(loop: BatchLoop, before: BatchLoop, name: str) -> bool:
    """Return True if a variable is assigned outside the training loop, too."""
    total = sum(
        each.id == name and isinstance(each.ctx, ast.Store)
        for function in {id(each.function): each.function for each in (loop, before)}.values()
        for each in nodes_in(function, ast.Name)
    )
    inside = sum(each.id == name and isinstance(each.ctx, ast.Store) for each in nodes_in(before.node, ast.Name))
    return total > inside


def _derived(loop: BatchLoop) -> set[str]:
    """Return the variables of a loop that hold its batch, or what is computed from it."""
    found = _stored(loop.node.target) - {loop.counter}
    for each in nodes_in(loop.node, ast.Assign):
        if not _SHAPE.search(ast.unparse(each.value)) and any(
            name.id in found for name in nodes_in(each.value, ast.Name)
        ):
            found |= {
                name for target in each.targets if isinstance(target, ast.Name | ast.Tuple) for name in _stored(target)
            }
    return found


def _is_unread(loop: BatchLoop, name: str) -> bool:
    loads = (each for each in nodes_in(loop.function, ast.Name) if isinstance(each.ctx, ast.Load))
    return name not in ("_", loop.counter) and all(each.id != name for each in loads)


def _statement(source: SourceFile, node: ast.AST) -> ast.stmt | None:
    """Return the statement that computes something from a node; None if it only shows or tests it."""
    parent = source.parents.get(id(node))
    while parent is not None and not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.JoinedStr) or (isinstance(parent, ast.Call) and last_name(parent.func) in _SHOWING):
            return None
        parent = source.parents.get(id(parent))
    is_computed = isinstance(parent, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr)
    return parent if is_computed and not _SHAPE.search(ast.unparse(parent)) else None


def _replaced_batches(source: SourceFile) -> Iterator[Hit]:
    """Yield each loop over other batches in a training loop that assigns variables of the training batch."""
    for loop in (*batch_loops(source), *hand_made_batch_loops(source)):
        around = [] if _trains(loop.node) else list(enclosing_nodes(source, loop.node))
        outer = next((each for each in around if isinstance(each, ast.For | ast.While) and _trains(each)), None)
        if outer is None or _leaves(source, outer, loop.node):
            continue
        used = _first_use(source, outer, loop)
        if used is not None:
            statement = source.text.segment(_statement(source, used) or used)
            yield Hit(
                message=f"This loop over `{ast.unparse(loop.loader)}` assigns `{used.id}` of the training loop around "
                f"it: `{statement}` then uses the last batch of this loop.",
                node=loop.node,
                related=((used, f"reads `{used.id}`"),),
            )


def _first_use(source: SourceFile, outer: ast.For | ast.While, loop: BatchLoop) -> ast.Name | None:
    """Return the first variable that a loop reads for its backward pass after an inner loop has assigned it."""
    inside = {id(each) for each in walk(loop.node)}
    names = [each for each in nodes_in(outer, ast.Name) if id(each) not in inside]
    names.sort(key=lambda each: (each.lineno, each.col_offset))
    own = _stored(outer.target) if isinstance(outer, ast.For) else set[str]()
    own = own.union(*(_stored(each) for each in outer.body if isinstance(each, ast.Assign)))
    if any(each.id in own for each in nodes_in(loop.node.iter, ast.Name)):
        return None
    last = max((each.lineno for each in nodes_in(outer, ast.Call) if last_name(each.func) == "backward"), default=0)
    end, arms = loop.node.end_lineno or 0, _other_arms(source, loop.node)
    batch = _batch_of(loop)
    for used in names:
        stored = [each.lineno for each in names if each.id == used.id and isinstance(each.ctx, ast.Store)]
        if isinstance(used.ctx, ast.Store) or used.lineno > last or id(used) in arms:
            continue
        if used.id in own:
            is_replaced = used.id in batch | _derived(loop) and used.lineno > end
            is_replaced &= not any(end < each < used.lineno for each in stored)
        else:  # data from before the training loop, which each of its iterations reads
            is_replaced = used.id in batch and not stored and _is_assigned_before(outer, loop, used.id)
        if is_replaced and not _reads_itself(loop, used.id) and _statement(source, used) is not None:
            return used
    return None


def _batch_of(loop: BatchLoop) -> set[str]:
    """Return the variables that hold parts of the batch of a loop, also those that the loop cuts by hand."""
    found = _stored(loop.node.target) - {loop.counter, "_"}
    if last_name(getattr(loop.loader, "func", None)) == "range":
        found = set()
    for each in nodes_in(loop.node, ast.Assign):
        calls = {last_name(call.func) for call in nodes_in(each.value, ast.Call)}
        if (
            calls <= _MOVES
            and nodes_in(each.value, ast.Subscript, ast.Name)
            and _stored(each.targets[0]) <= _derived(loop)
        ):
            found |= _stored(each.targets[0])
    return found


def _is_assigned_before(outer: ast.AST, loop: BatchLoop, name: str) -> bool:
    parameters = {each.arg for each in nodes_in(loop.function, ast.arg)}
    stores = (each for each in nodes_in(loop.function, ast.Name) if isinstance(each.ctx, ast.Store) and each.id == name)
    return name in parameters or any(each.lineno < outer.lineno for each in stores)  # type: ignore[attr-defined]


def _reads_itself(loop: BatchLoop, name: str) -> bool:
    """Return True if a loop computes a variable from its earlier value: ``total = total + loss``."""
    is_target = name in _stored(loop.node.target)
    return not is_target and any(
        name in _stored(target) and any(each.id == name for each in nodes_in(assigned.value, ast.Name))
        for assigned in nodes_in(loop.node, ast.Assign)
        for target in assigned.targets
    )


def _leaves(source: SourceFile, outer: ast.AST, node: ast.stmt) -> bool:
    """Return True if the training step is not reached after a loop in the same iteration."""
    around = [node, *(each for each in enclosing_nodes(source, node) if isinstance(each, ast.stmt))]
    for each in around[: around.index(outer)]:  # type: ignore[arg-type]
        block = source.block(each)
        if any(isinstance(e, ast.Continue | ast.Break | ast.Return | ast.Raise) for e in block[block.index(each) :]):
            return True
    return False


def _other_arms(source: SourceFile, node: ast.AST) -> set[int]:
    """Return the nodes that only run if a node does not."""
    found: set[int] = set()
    child = node
    for each in enclosing_nodes(source, node):
        if isinstance(each, ast.If) and child in each.body:
            found |= {id(part) for other in each.orelse for part in walk(other)}
        child = each
    return found


RULE: Final = Rule(required_words=("backward", f"{LOADER_WORDS}|split(|chunk(|range(", "for "), find=find)

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
