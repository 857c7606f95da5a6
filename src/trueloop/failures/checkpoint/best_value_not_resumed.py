"""A resumed run forgets the best value so far, or takes the latest one for it, so a worse model may replace the best.

What you see
    After a restart the file with the best model is overwritten, and the new one scores worse than the old one did.
    Early stopping counts an improvement that is none.

Why it happens
    The weights and the epoch are read from the checkpoint, but the best value starts at infinity or 0 again. Or the
    checkpoint, which is written in every epoch, contains the metric of this epoch, and not the best value.

Fix
    Save the best value with the rest, and read it again:

        torch.save({"model": model.state_dict(), "epoch": epoch, "best_loss": best_loss}, path)

        start_epoch = checkpoint["epoch"] + 1
        best_loss = checkpoint["best_loss"]

When this is fine
    - The model is evaluated before the loop, and the best value is set to the result.
    - Each run, or each epoch, writes a file of its own.
    - The weights are only the start of a fine-tuning, which counts its epochs from 0.
    - The checkpoint is only written when the value is the best so far.

How it is detected
    Only the linter finds it, from the source code, in two cases. (1) A training loop goes on at an epoch or step that
    is read where weights are loaded, and all that the program assigns to a best value, which decides whether a model is
    saved, are a number at the start and new best values. A program that reads an item with "best" in its key is not
    reported. (2) A best value is read from a loaded file, and the item of the same key in a dictionary that is saved is
    the value that the program compares with the best one. The dictionary is not within a condition on the best value.

References
    PyTorch examples, ImageNet: ``best_acc1 = checkpoint['best_acc1']``,
    https://github.com/pytorch/examples/blob/main/imagenet/main.py
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.best_values import (
    best_checks,
    best_flags,
    initial_number,
    is_best,
    is_parameter,
    is_same,
    may_save,
    saves_model,
    saving_uses,
    stores,
)
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins
from trueloop.analysis.queries.resumed_loops import resumed_loops
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_OWN_FILES: Final = re.compile(r"\b(epoch|step|iteration|global_step|ep|it)\b|time|date", re.IGNORECASE)
_CONDITION: Final = re.compile(r"(?i)best|improv|better")
_RESTORING: Final = re.compile(
    r"""__dict__|setattr|(globals|locals)\(|nonlocal|(\[|\.(get|pop)\()\s*f?["'][^"'\]]*best""", re.IGNORECASE
)
"""Code that may read the best value in another way, such as ``checkpoint["best_loss"]``."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each best value that is wrong in a resumed run."""
    yield from _latest_values(source)
    yield from _forgotten_values(source)


def _forgotten_values(source: SourceFile) -> Iterator[Hit]:
    """Yield each best value that a resumed run starts again."""
    loops = list(resumed_loops(source))
    if not loops or _RESTORING.search(source.text.source):
        return
    for loop, start, load in loops:
        for name, best in {ast.unparse(each): each for each in _best_values(source)}.items():
            first = _first_value(source, loop, best)
            if first is not None:
                yield Hit(
                    message=f"The run goes on at `{ast.unparse(start)}`, but `{name}` is `{ast.unparse(first)}` again: "
                    "the first model after the restart replaces the best one.",
                    node=first,
                    related=((load, "the weights are loaded here"), (start, "training goes on here")),
                )


def _latest_values(source: SourceFile) -> Iterator[Hit]:
    """Yield each item of a checkpoint with the latest value, which is read as the best one."""
    seen = set[int]()
    for each in (*best_checks(source), *best_flags(source)):
        if each.value is None:
            continue
        for read in origins(source, each.best):
            for key, item in _items(source) if _is_loaded(source, read) else ():
                is_key = ast.unparse(getattr(read, "slice", read)) == ast.unparse(key)
                if is_key and id(item) not in seen and _is_latest(source, item, each.value):
                    seen.add(id(item))
                    yield Hit(
                        message=f"`{ast.unparse(item)}` is the latest value, but a resumed run reads it as "
                        f"`{ast.unparse(each.best)}`: a worse model may then count as the best.",
                        node=item,
                        related=((read, "read here"), (each.value, "compared with the best value here")),
                    )


def _is_loaded(source: SourceFile, node: ast.expr) -> bool:
    """Return True for an item with a constant key of a file that is loaded."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
        return False
    return any(isinstance(e, ast.Call) and last_name(e.func).startswith("load") for e in origins(source, node.value))


def _items(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the keys and items of the dictionaries that may be saved without a condition on the best value."""
    for each in source.nodes_of(ast.Dict):
        around = [e.test for e in enclosing_nodes(source, each) if isinstance(e, ast.If)]
        if not any(_CONDITION.search(ast.unparse(test)) for test in around):
            yield from ((key, item) for key, item in zip(each.keys, each.values, strict=True) if key is not None)


def _is_latest(source: SourceFile, item: ast.expr, value: ast.expr) -> bool:
    """Return True for an item that is the new value, also through the argument of a function."""
    found = list(origins(source, item)) if isinstance(item, ast.Name | ast.Attribute) else []
    if any(is_best(part) for each in found for part in nodes_in(each, ast.Name, ast.Attribute)):
        return False
    return any(isinstance(each, type(value)) and ast.unparse(each) == ast.unparse(value) for each in found)


def _best_values(source: SourceFile) -> Iterator[ast.expr]:
    """Yield each best value whose comparison with a new value decides whether a model is saved."""
    for check in best_checks(source):
        if saves_model(check.node.body) and not _has_own_files(check.node.body):
            yield check.best
    for flag in best_flags(source):
        uses = list(saving_uses(source, flag.name))
        if uses and not _has_own_files(uses):
            yield flag.best


def _has_own_files(statements: list[Any]) -> bool:
    """Return True if the path of a saved model contains the epoch or the time."""
    calls = [each for part in statements for each in nodes_in(part, ast.Call) if may_save(each)]
    paths = [each for call in calls for each in (*call.args[1:], *(e.value for e in call.keywords))]
    return any(_OWN_FILES.search(ast.unparse(each)) for each in paths if not isinstance(each, ast.Name))


def _first_value(source: SourceFile, loop: ast.AST, best: ast.expr) -> ast.expr | None:
    """Return the number at which a best value starts; None if something else than new best values is assigned."""
    if isinstance(best, ast.Subscript) or is_parameter(source, best, best):
        return None
    is_local = isinstance(best, ast.Name)
    if is_local and not encloses(loop, best):
        return None
    first = None
    places = stores(nodes_in(function_of(source, loop), ast.AST) if is_local else source.nodes)
    for target, value in ((target, value) for target, value in places if is_same(target, best)):
        if initial_number(value) is None:
            if not _is_update(source, target, value, best):
                return None
        elif encloses(loop, target):
            return None  # begins again in each epoch
        else:
            first = value
    return first


def _is_update(source: SourceFile, target: ast.expr, value: ast.expr | None, best: ast.expr) -> bool:
    """Return True for ``best = max(best, new)``, and for an assignment in an ``if`` that compares the best value."""
    parts = nodes_in(value, ast.expr) if value is not None else ()
    if any(is_best(each) and is_same(each, best) for each in parts):
        return True
    parent = source.parents.get(id(target))
    while parent is not None and not isinstance(parent, ast.FunctionDef):
        tests = nodes_in(parent.test, ast.Name, ast.Attribute) if isinstance(parent, ast.If) else ()
        if any(is_best(each) or "improv" in ast.unparse(each) for each in tests):
            return True
        parent = source.parents.get(id(parent))
    return False


RULE = Rule(required_words=("best", "load(|load_", "save", "max(|min(|if "), find=find)

BAD = """
import os
import tempfile
import torch
from torch import nn

path = os.path.join(tempfile.mkdtemp(), "last.pt")
x = torch.randn(96, 6)


def train(epochs):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters())
    start_epoch, best_loss = 0, float("inf")
    if os.path.exists(path):
        checkpoint = torch.load(path, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start_epoch = checkpoint["epoch"] + 1
    for epoch in range(start_epoch, epochs):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path)
        if loss < best_loss:
            best_loss = loss.item()
            torch.save(model.state_dict(), path + ".best")


train(epochs=3)
train(epochs=6)
"""

FAILURE = Failure(
    code="CKP018",
    title="A resumed run begins with a wrong best value",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            '"epoch": epoch}': '"epoch": epoch, "best_loss": best_loss}',
            '["epoch"] + 1': '["epoch"] + 1\n        best_loss = checkpoint["best_loss"]',
        },
    ),
    fix="Save the best value in the checkpoint, and read it when the run is resumed.",
    rule=RULE,
)
