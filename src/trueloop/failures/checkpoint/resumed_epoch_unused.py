"""A resumed run reads the epoch from its checkpoint, but begins at 0 again, or with the epoch that was finished.

What you see
    A run that was stopped in epoch 80 of 100 trains 100 further epochs. Checkpoints and logs of the first part are
    overwritten, and schedules that depend on the epoch start again. Or each restart trains one epoch twice.

Why it happens
    The epoch was saved and read, but the loop is still ``for epoch in range(epochs)``. Or the number of the epoch that
    has just ended is saved, and the loop goes on at this number instead of the next one.

Fix
    Begin the loop at the epoch that was read:

        start_epoch = checkpoint["epoch"] + 1
        for epoch in range(start_epoch, epochs):

When this is fine
    - A model that was trained elsewhere is fine-tuned, and its epoch is only printed.
    - The epoch is used in another way: to skip batches, or as ``last_epoch`` of a scheduler.
    - The checkpoint is saved before the epoch is trained, or within it.

How it is detected
    Only the linter finds it: a variable called ``start_epoch`` or the like that gets ``checkpoint["epoch"]`` and that
    nothing reads apart from messages, also ``args.start_epoch`` in a function that is called before the loop, in a
    program that loads an optimizer's state and trains in a loop over ``range`` with a single argument. It also reports
    a saved dictionary with the number of the epoch itself, at the end of the epoch, if the loop begins at the item with
    the same key.

References
    PyTorch tutorial "Saving & Loading a General Checkpoint for Inference and/or Resuming Training",
    https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins
from trueloop.analysis.queries.resumed_loops import resumed_loops
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_KEY: Final = re.compile(r"(?i)^(start_?|last_?|current_?)?(epoch|step|iter|iteration|global_?step)s?$")
_NAME: Final = re.compile(
    r"(?i)(start|begin|first|resume|init|last|current)\w*(epoch|step|iter)|^(epoch|ep)_?(start|begin)"
)
_OUTPUT: Final = frozenset(("print", "info", "debug", "warning", "log", "write", "format", "secho", "echo"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each epoch of a checkpoint that is never used, or that is trained again."""
    yield from _repeated_epochs(source)
    yield from _unused_epochs(source)


def _repeated_epochs(source: SourceFile) -> Iterator[Hit]:
    """Yield each number of a finished epoch in a checkpoint, at which the loop begins when the run is resumed."""
    for loop, start, _ in resumed_loops(source):
        read = next(
            (each for each in origins(source, start) if isinstance(each, ast.Subscript) and _key_of(each)), None
        )
        if read is None or not isinstance(loop, ast.For):
            continue
        for each in nodes_in(loop, ast.Dict):
            items = {ast.unparse(key): value for key, value in zip(each.keys, each.values, strict=True) if key}
            saved = items.get(ast.unparse(read.slice))
            if saved is not None and ast.unparse(saved) == ast.unparse(loop.target) and _is_at_end(source, loop, each):
                yield Hit(
                    message=f"`{ast.unparse(saved)}` has ended when it is saved, and a resumed run begins at it: the "
                    "epoch is trained twice. Save or load the number of the next one.",
                    node=saved,
                    related=((read, "read here"), (start, "training goes on here")),
                )
                break


def _is_at_end(source: SourceFile, loop: ast.For, node: ast.AST) -> bool:
    """Return True for a node in a loop over epochs that comes after the loop over batches, or a call that trains."""
    around = list(enclosing_nodes(source, node))
    inner = around[: around.index(loop)] if loop in around else [loop]
    if any(isinstance(each, ast.For | ast.While) for each in inner):
        return False
    own = next((number for number, each in enumerate(loop.body) if encloses(each, node)), 0)
    before = loop.body[:own]
    called = [each for part in before for each in nodes_in(part, ast.Call)]
    names = [last_name(each.func) for each in called if each.args or isinstance(each.func, ast.Name)]
    return any("train" in each for each in names) or any(last_name(each.func) == "backward" for each in called)


def _unused_epochs(source: SourceFile) -> Iterator[Hit]:
    """Yield each epoch that is read from a checkpoint and never used."""
    loops = [each for each in source.nodes_of(ast.For) if _counts_from_zero(source, each)]
    loads = [each for each in source.all_calls if last_name(each.func) == "load_state_dict"]
    if not loops or not any("optim" in ast.unparse(each.func) or "opt" in last_name(_owner(each)) for each in loads):
        return
    for statement in source.nodes_of(ast.Assign):
        target = statement.targets[0]
        key = _key_of(statement.value)
        if len(statement.targets) != 1 or not key or not _NAME.search(last_name(target)):
            continue
        name = last_name(target)
        reads = [
            each
            for each in source.nodes_of(ast.Name, ast.Attribute)
            if last_name(each) == name and isinstance(each.ctx, ast.Load)
        ]
        loop = next((each for each in loops if _is_resumed_by(source, each, statement, target)), None)
        if loop is not None and all(_is_shown(source, each) for each in reads):
            yield Hit(
                message=f"`{ast.unparse(target)}` is read from the checkpoint but never used: "
                f"`{ast.unparse(loop.iter)}` begins at 0 again.",
                node=statement,
                related=((loop.iter, "the loop"),),
            )


def _is_resumed_by(source: SourceFile, loop: ast.For, statement: ast.Assign, target: ast.expr) -> bool:
    """Return True for a loop in the scope of the epoch that is read, or after the call that sets ``args.start_epoch``.

    The function must be called right before the loop, with the object that gets the epoch.
    """
    if _scope(source, loop, target) is _scope(source, statement, target):
        return True
    function = function_of(source, statement)
    owner = last_name(getattr(target, "value", None))
    if owner not in [each.arg for each in getattr(getattr(function, "args", None), "args", [])] or owner == "self":
        return False
    block = source.block(loop)
    before = block[: block.index(loop)] if loop in block else []
    return any(called_function(source, call) is function for each in before for call in nodes_in(each, ast.Call))


def _scope(source: SourceFile, node: ast.AST, target: ast.expr) -> Any:
    """Return what sees a variable: the function around a node, or the class for an attribute of ``self``."""
    is_own = isinstance(target, ast.Attribute) and last_name(target.value) == "self"
    return enclosing_definition(source, node, ast.ClassDef) if is_own else function_of(source, node)


def _owner(call: ast.Call) -> Any:
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _key_of(value: ast.expr) -> str:
    """Return the key of ``checkpoint["epoch"] + 1`` or ``checkpoint.get("epoch", 0)``; "" for other values."""
    for each in nodes_in(value, ast.Subscript, ast.Call):
        is_get = isinstance(each, ast.Call) and last_name(each.func) == "get" and each.args
        key = each.args[0] if isinstance(each, ast.Call) and is_get else getattr(each, "slice", None)
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and _KEY.match(key.value):
            return key.value
    return ""


def _counts_from_zero(source: SourceFile, loop: ast.For) -> bool:
    """Return True for ``for epoch in range(epochs)`` that trains, directly or by a function."""
    call = loop.iter
    is_range = isinstance(call, ast.Call) and last_name(call.func) in ("range", "trange") and len(call.args) == 1
    called = {last_name(each.func) for each in nodes_in(loop, ast.Call)}
    return is_range and (not called.isdisjoint(("backward", "fit")) or any("train" in each for each in called))


def _is_shown(source: SourceFile, node: ast.AST) -> bool:
    """Return True if a variable is read for a message only."""
    call: Any = node
    while call is not None and not isinstance(call, ast.stmt):
        if isinstance(call, ast.JoinedStr) or (isinstance(call, ast.Call) and last_name(call.func) in _OUTPUT):
            return not isinstance(call, ast.Call) or not encloses(call.func, node)
        call = source.parents.get(id(call))
    return False


RULE: Final = Rule(required_words=("load_state_dict", "epoch|step|iter", "range(", "load("), find=find)

BAD = """
import os
import tempfile
import torch
from torch import nn

torch.manual_seed(0)
path = os.path.join(tempfile.mkdtemp(), "last.pt")
x = torch.randn(64, 6)


def train(epochs):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start_epoch = 0
    if os.path.exists(path):
        checkpoint = torch.load(path, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start_epoch = checkpoint["epoch"] + 1
    for epoch in range(epochs):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, path)


train(epochs=3)
train(epochs=6)
"""

FAILURE = Failure(
    code="CKP016",
    title="A resumed run begins at a wrong epoch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"range(epochs)": "range(start_epoch, epochs)"}),
    fix="Begin the loop at the epoch from the checkpoint: range(start_epoch, epochs).",
    rule=RULE,
)
