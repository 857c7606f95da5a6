"""Early stopping counts epochs without an improvement, but never sets its counter back to zero.

What you see
    Training stops much earlier than the patience allows, although the validation loss still improves now and then.

Why it happens
    Patience means a number of bad epochs in a row. Without a reset, the counter adds up all bad epochs of the run, and
    a noisy validation loss reaches the limit soon.

Fix
    Set the counter back where the new best value is stored:

        if val_loss < best_loss:
            best_loss = val_loss
            waited = 0  # missing
        else:
            waited += 1
            if waited >= patience:
                break

When this is fine
    - The counter is set back somewhere else in the loop, or in a method that is called after an improvement.
    - The limit is meant for all bad epochs of the run. Then name it so, and suppress the finding.

How it is detected
    Only the linter finds it, from the source code. It reports a counter that one arm of a comparison with the best
    value (called so, or the variable that the other arm sets to the compared value) increments, that ends the training
    at a limit (``if``, ``while``, or the returned comparison with it), and that the loop or class never sets to a
    number again.

References
    royerlab/cytoself#29, "Early stopping does not count consecutive steps",
    https://github.com/royerlab/cytoself/issues/29
    modelscope/ms-swift#5326: "The patience counter in the EarlyStopping plugin was not reset",
    https://github.com/modelscope/ms-swift/pull/5326
"""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.queries.best_values import MIRRORED, initial_number, is_same, stores, stores_in
from trueloop.analysis.queries.metric_names import metric_name, name_words
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix, encloses, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

LOOPS = ast.For | ast.AsyncFor | ast.While


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each counter of epochs without improvement that is never set back."""
    for node in source.nodes_of(ast.If):
        if not node.orelse:
            continue
        for bad, good in ((node.orelse, node.body), (node.body, node.orelse)):
            best = _best_value(node.test, good)
            counter = next((each for each in map(_incremented_variable, bad) if each is not None), None)
            if best is None or counter is None or _is_set_back(source, node, counter):
                continue
            if any(_stops_at_limit(each, counter) for each in source.nodes):
                name = ast.unparse(counter)
                edit = source.text.insert_before(good[-1], f"{name} = 0")
                yield Hit(
                    message=f"`{name}` counts all epochs without an improvement, not those in a row: it is never set "
                    f"back to 0 when `{ast.unparse(best)}` improves.",
                    node=next(each for each in bad if _incremented_variable(each) is not None),
                    related=((node.test, "compared with the best value here"),),
                    fix=Fix((edit,), safe=False, description="Set the counter back") if edit else None,
                )


def _best_value(test: ast.expr, good: list[ast.stmt]) -> ast.expr | None:
    """Return the variable that is called the best, or that gets the value which it is compared with."""
    stored = list(stores_in(good))
    named = next((target for target, _ in stored if _is_best(target)), None)
    if named is not None and _compares_best(test):
        return named
    for each in nodes_in(test, ast.Compare):
        if type(each.ops[0]) in MIRRORED:
            sides = each.left, each.comparators[0]
            for own, new in (sides, sides[::-1]):
                for target, value in stored:
                    if is_same(target, own) and value is not None and ast.unparse(value) == ast.unparse(new):
                        return target
    return None


def _compares_best(test: ast.expr) -> bool:
    tests = [each for each in nodes_in(test, ast.Compare) if type(each.ops[0]) in MIRRORED]
    return any(_is_best(part) for each in tests for side in (each.left, *each.comparators) for part in walk(side))


def _is_best(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and "best" in name_words(metric_name(node))


def _incremented_variable(statement: ast.stmt) -> ast.expr | None:
    """Return the variable of ``waited += 1``; None for other statements."""
    match statement:
        case ast.AugAssign(target=ast.Name() | ast.Attribute() as target, op=ast.Add(), value=ast.Constant(value=1)):
            return target
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add(), right=ast.Constant(value=1))) if (
            isinstance(target, ast.Name | ast.Attribute) and is_same(target, left)
        ):
            return target
        case _:
            return None


def _is_set_back(source: SourceFile, check: ast.If, counter: ast.expr) -> bool:
    """Return True if the counter gets another value where the check is repeated."""
    parent: Any = source.parents.get(id(check))
    while parent is not None and not isinstance(parent, LOOPS):
        parent = source.parents.get(id(parent))
    for target, value in stores(source.nodes):
        if not is_same(target, counter) or _is_increment(source, target):
            continue
        if initial_number(value) is None:  # a copy, or the counter of a checkpoint
            return True
        if isinstance(counter, ast.Attribute) and not _is_in_constructor(source, target):
            return True
        if parent is not None and isinstance(counter, ast.Name) and encloses(parent, target):
            return True
    return parent is None and isinstance(counter, ast.Name)


def _is_increment(source: SourceFile, target: ast.expr) -> bool:
    statement = source.parents.get(id(target))
    return isinstance(statement, ast.stmt) and _incremented_variable(statement) is not None


def _is_in_constructor(source: SourceFile, target: ast.expr) -> bool:
    parent: Any = source.parents.get(id(target))
    while parent is not None and not isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        parent = source.parents.get(id(parent))
    return isinstance(parent, ast.ClassDef) or getattr(parent, "name", "") in ("__init__", "__post_init__")


def _stops_at_limit(node: ast.AST, counter: ast.expr) -> bool:
    """Return True for an ``if``, ``while``, ``return`` or flag that ends the training when the counter is large."""
    match node:
        case ast.If(test=test, body=body):
            ends = any(isinstance(each, ast.Break | ast.Return | ast.Raise) for each in body)
            flags = [target for target, value in stores_in(body) if getattr(value, "value", None) is True]
            ends = ends or any("stop" in ast.unparse(each).lower() for each in flags)
            return ends and _is_limited(test, counter, ast.GtE | ast.Gt | ast.Eq)
        case ast.While(test=test) if "patien" in ast.unparse(test).lower():  # not a budget of attempts
            return _is_limited(test, counter, ast.LtE | ast.Lt | ast.NotEq)
        case ast.Return(value=ast.Compare() | ast.BoolOp() as test):
            return _is_limited(test, counter, ast.GtE | ast.Gt)
        case ast.Assign(targets=[target], value=ast.Compare() | ast.BoolOp() as test) if "stop" in ast.unparse(target):
            return _is_limited(test, counter, ast.GtE | ast.Gt)
        case _:
            return False


def _is_limited(test: ast.expr, counter: ast.expr, operators: Any) -> bool:
    """Return True if a condition compares the counter with something, by one of some operators."""
    tests = [each for each in nodes_in(test, ast.Compare) if len(each.ops) == 1]
    return any(is_same(each.left, counter) and isinstance(each.ops[0], operators) for each in tests)


RULE = Rule(
    required_words=(
        "best|lowest|highest|patience|wait|bad|stale|improv|min_|max_",
        "+= 1|+ 1",
        "break|return|stop|raise|while",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True) + torch.randn(128, 1)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best_loss, waited, patience = float("inf"), 0, 3
for epoch in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[:96]), y[:96])
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        val_loss = nn.functional.mse_loss(model(x[96:]), y[96:]).item()
    if val_loss < best_loss:
        best_loss = val_loss
    else:
        waited += 1
        if waited >= patience:
            break
"""

FAILURE = Failure(
    code="CKP010",
    title="Early stopping never resets its counter",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"        best_loss = val_loss\n": "        best_loss = val_loss\n        waited = 0\n"}),
    fix="Set the counter back to 0 where the new best value is stored.",
    rule=RULE,
)
