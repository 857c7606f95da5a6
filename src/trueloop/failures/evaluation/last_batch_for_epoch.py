"""A decision about an epoch rests on the loss or accuracy of its last batch.

What you see
    A validation loss that jumps up and down; the "best" checkpoint, early stopping or the learning rate depend on
    chance.

Why it happens
    A variable that the loop over the loader assigns in each iteration holds, after the loop, the value of the last
    batch alone, which is often the smallest one.

Fix
    Add the values up, and divide by their number:

        total = 0.0
        for inputs, labels in val_loader:
            total += criterion(model(inputs), labels).item() * len(inputs)
        val_loss = total / len(val_loader.dataset)

When this is fine
    - The loader has a single batch.
    - ``record`` is a ``Counter``, whose ``update`` adds.
    - The value is a running mean or the state of a metric object, which the loop only reads.
    - You print the loss of the last training batch to follow the progress.

How it is detected
    Only the linter finds it, from the source code: a loop over a loader that computes a loss, or a share of right
    predictions, assigns it to a variable and uses this variable at most to print or log it. After the loop the variable
    is compared with the best value, given to ``scheduler.step()``, or returned by a function that evaluates. A total
    that the loop itself sets to 0 before it adds to it is reported too, and a count of right predictions that is added
    to after the loop. So is a count that the loop sets in each iteration, also by ``record.update(right=...)``, and
    that is divided after the loop. Loaders of a single batch, with a ``batch_size`` such as ``len(data)``, are not
    reported.

References
    PyTorch quickstart, whose test loop adds the losses up,
    https://docs.pytorch.org/tutorials/beginner/basics/quickstart_tutorial.html
"""

import ast
from collections.abc import Callable, Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import (
    LOADER_WORDS,
    BatchLoop,
    assigned_in,
    assigned_pairs,
    batch_loops,
    compared_sides,
    created_loader,
    hand_made_batch_loops,
    is_loss_call,
    without_conversions,
)
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, integer, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_OUTPUT: Final = frozenset((
    "print", "log", "info", "debug", "set_postfix", "set_description", "set_postfix_str", "add_scalar", "write",
    "isnan", "isfinite", "format", "item", "backward", "scale", "log_scalar", "detach", "cpu",
))  # fmt: skip
"""Functions that do not collect a value."""
_EVALUATING: Final = frozenset(("val", "valid", "validate", "validation", "eval", "evaluate", "evaluation", "test"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each decision about an epoch that uses the value of its last batch."""
    yield from _totals_of_one_batch(source)
    yield from _counted_after_loop(source)
    yield from _replaced_counts(source)
    for loop in batch_loops(source):
        if _has_one_batch(source, loop) or _may_end_early(loop):
            continue
        for statement in nodes_in(loop.node, ast.Assign):
            if len(statement.targets) != 1:
                continue
            name = dotted_name(statement.targets[0])
            if not name or not _is_result_of_batch(source, loop, statement.value):
                continue
            decision = _decision(source, loop, name) if _is_only_replaced(source, loop, name) else None
            if decision is not None:
                yield Hit(
                    message=f"`{name}` is the value of the last batch here: each iteration of the loop over "
                    f"`{ast.unparse(loop.loader)}` replaces it.",
                    node=decision,
                    related=((statement, "assigned in each iteration"),),
                )


def _totals_of_one_batch(source: SourceFile) -> Iterator[Hit]:
    """Yield each total that is set to zero in every iteration of a loop over a loader, and read after the loop."""
    for loop in batch_loops(source):
        for statement in loop.node.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=0)):
                    pass
                case _:
                    continue
            added = [
                each for each in loop.node.body if isinstance(each, ast.AugAssign) and dotted_name(each.target) == name
            ]
            inside = {id(each) for each in walk(loop.node)}
            reads = [
                each for each in nodes_in(loop.function, ast.Name) if each.id == name and isinstance(each.ctx, ast.Load)
            ]
            read_after = [each for each in reads if id(each) not in inside and each.lineno > loop.node.lineno]
            if len(added) == 1 and read_after and len(read_after) == len(reads) and not _may_end_early(loop):
                yield Hit(
                    message=f"`{name}` is set to 0 in each iteration of the loop over `{ast.unparse(loop.loader)}`, so "
                    "it is the value of the last batch only.",
                    node=statement,
                    related=((read_after[0], "read here"),),
                )


def _counted_after_loop(source: SourceFile) -> Iterator[Hit]:
    """Yield each count of right predictions that is added to after the loop, so for the last batch only."""
    for loop in batch_loops(source):
        block = source.block(loop.node)
        following = block[block.index(loop.node) + 1 :] if loop.node in block else []
        stored = {
            each.id
            for each in nodes_in(loop.node, ast.Name)
            if isinstance(each.ctx, ast.Store) and each.id != loop.counter
        }
        for statement in following:
            if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
                continue
            sides = [each for node in nodes_in(statement.value, ast.expr) for each in compared_sides(node)]
            names = [{name.id for name in nodes_in(each, ast.Name)} for each in sides]
            is_batch = len(names) == 2 and all(stored & each for each in names)
            if is_batch and not _has_one_batch(source, loop) and not _may_end_early(loop) and not _collects(loop):
                yield Hit(
                    message=f"`{ast.unparse(statement.target)}` counts the last batch only: this line stands after the "
                    f"loop over `{ast.unparse(loop.loader)}`, not in it.",
                    node=statement,
                    related=((loop.node, "the loop over the batches"),),
                )


def _replaced_counts(source: SourceFile) -> Iterator[Hit]:
    """Yield each assignment of a count in a loop that computes no gradients, if it is divided after the loop."""
    for loop in (*batch_loops(source), *hand_made_batch_loops(source)):
        trains = any(each.attr == "backward" for each in nodes_in(loop.node, ast.Attribute))
        if trains or _may_end_early(loop) or _has_one_batch(source, loop):
            continue
        reported = set[int]()
        for statement, name, value in _stores(loop):
            division = _division_after(loop, name) if source.block(statement) is loop.node.body else None
            is_used = _is_collected(source, loop, name, ast.unparse)
            if (
                division is not None
                and _is_count(source, loop, value)
                and not is_used
                and id(statement) not in reported
            ):
                reported.add(id(statement))
                yield Hit(
                    message=f"`{name}` is the count of the last batch in `{ast.unparse(division)}`: each iteration of "
                    f"the loop over `{ast.unparse(loop.loader)}` replaces it.",
                    node=statement,
                    related=((division, "divided here"),),
                )


def _stores(loop: BatchLoop) -> Iterator[tuple[ast.stmt, str, ast.expr]]:
    """Yield each variable or item of a dictionary that a loop sets, as text, with its value and the statement."""
    for statement in loop.node.body:
        pairs: list[tuple[ast.expr, ast.expr]] = []
        match statement:
            case ast.Assign():
                pairs = list(assigned_pairs(statement))
            case ast.AugAssign(op=ast.BitOr(), target=target, value=value):
                pairs = [(target, value)]
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="update", value=owner)) as call):
                made = assigned_in(loop.function, dotted_name(owner))
                if made and all(isinstance(each, ast.Dict) or _is_dict(each) for each in made):
                    keys = [ast.keyword(each.arg, each.value) for each in call.keywords]
                    pairs = [(owner, ast.Call(ast.Name("dict"), [], keys)), *((owner, each) for each in call.args)]
            case _:
                pass
        for target, value in pairs:
            if isinstance(value, ast.Dict) or _is_dict(value):
                for key, item in _entries(value):
                    yield statement, f"{ast.unparse(target)}[{key!r}]", item
            else:
                yield statement, ast.unparse(target), value


def _is_dict(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "dict"


def _entries(node: Any) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names and values of ``{"right": 1}`` or ``dict(right=1)``."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), value
    else:
        yield from ((each.arg, each.value) for each in node.keywords if each.arg)


def _is_count(source: SourceFile, loop: BatchLoop, value: ast.expr) -> bool:
    """Return True for a loss, or a number of right predictions, of a batch."""
    inner = without_conversions(value)
    calls = [last_name(each.func) for each in nodes_in(inner, ast.Call)]
    compares = any(len(compared_sides(each)) == 2 for each in nodes_in(inner, ast.expr))
    return _is_result_of_batch(source, loop, value) or (compares and "sum" in calls)


def _division_after(loop: BatchLoop, name: str) -> ast.BinOp | None:
    """Return the first division of a variable after a loop, if nothing else in the function changes the variable."""
    end = loop.node.end_lineno or 0
    for each in nodes_in(loop.function, ast.Name, ast.Attribute, ast.Subscript):
        if isinstance(each.ctx, ast.Store) and ast.unparse(each) == name and each.lineno > end:
            return None
    if any(ast.unparse(each.target) == name for each in nodes_in(loop.function, ast.AugAssign)):
        return None
    for each in nodes_in(loop.function, ast.BinOp):
        left = without_conversions(each.left)
        if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mult):
            left = without_conversions(left.right if isinstance(left.left, ast.Constant) else left.left)
        if isinstance(each.op, ast.Div) and each.lineno > end and ast.unparse(left) == name:
            return each
    return None


def _collects(loop: BatchLoop) -> bool:
    """Return True if a loop collects results of all batches in a list or by concatenation."""
    names = {last_name(each.func) for each in nodes_in(loop.node, ast.Call)}
    return bool(names & {"append", "extend", "cat", "concatenate", "hstack", "vstack", "backward"})


def _has_one_batch(source: SourceFile, loop: BatchLoop) -> bool:
    call = created_loader(source, loop.loader)
    size = next((each.value for each in call.keywords if each.arg == "batch_size"), None) if call is not None else None
    if call is not None and size is None and len(call.args) > 1:
        size = call.args[1]
    return (
        (integer(size) or 0) >= 5000
        or isinstance(size, ast.Call)
        or (isinstance(size, ast.Subscript) and "shape" in ast.unparse(size))
    )


def _is_result_of_batch(source: SourceFile, loop: BatchLoop, value: ast.expr) -> bool:
    """Return True for a loss, or a share of right predictions."""
    inner = without_conversions(value)
    if isinstance(inner, ast.Name):
        values = assigned_in(loop.node, inner.id)
        inner = without_conversions(values[0]) if len(values) == 1 else inner
    if is_loss_call(source, inner):
        return True
    is_mean = isinstance(inner, ast.Call) and last_name(inner.func) == "mean"
    return is_mean and any(len(compared_sides(each)) == 2 for each in nodes_in(inner, ast.expr))


def _may_end_early(loop: BatchLoop) -> bool:
    return bool(nodes_in(loop.node, ast.Break, ast.Return))


def _is_only_replaced(source: SourceFile, loop: BatchLoop, name: str) -> bool:
    """Return True for a variable that only this loop assigns, except for an initial constant, and only prints."""
    targets = [
        each.target
        for each in nodes_in(loop.function, ast.AugAssign, ast.NamedExpr, ast.For)
        if dotted_name(each.target) == name
    ]
    values = [each for each in assigned_in(loop.function, name) if not encloses(loop.node, each)]
    initial = [isinstance(each, ast.Constant | ast.UnaryOp | ast.List) or "inf" in ast.unparse(each) for each in values]
    is_assigned_once = len(assigned_in(loop.node, name)) == 1
    return not targets and all(initial) and is_assigned_once and not _is_collected(source, loop, name)


def _is_collected(source: SourceFile, loop: BatchLoop, name: str, text: Callable[[Any], str] = dotted_name) -> bool:
    """Return True if the loop uses a variable for anything else than to print it or to compute gradients."""
    for each in walk(loop.node):
        if not isinstance(getattr(each, "ctx", None), ast.Load) or text(each) != name:
            continue
        parent: Any = source.parents.get(id(each))
        while isinstance(parent, ast.expr | ast.FormattedValue | ast.keyword | ast.JoinedStr):
            if isinstance(parent, ast.Call) and last_name(parent.func) not in _OUTPUT:
                return True
            parent = source.parents.get(id(parent))
        if not isinstance(parent, ast.Expr):
            return True
    return False


def _decision(source: SourceFile, loop: BatchLoop, name: str) -> Any:
    """Return the expression after the loop that decides by a variable; None if there is none."""
    end = loop.node.end_lineno or 0
    for each in walk(loop.function):
        if getattr(each, "lineno", 0) <= end or dotted_name(each) != name:
            continue
        parent: Any = source.parents.get(id(each))
        while isinstance(parent, ast.Call | ast.Attribute) and last_name(getattr(parent, "func", parent)) in _OUTPUT:
            parent = source.parents.get(id(parent))
        if isinstance(parent, ast.Compare) and "best" in name_words(ast.unparse(parent)):
            return parent
        if isinstance(parent, ast.Call) and last_name(parent.func) == "step":
            return parent
        if isinstance(parent, ast.Return | ast.Tuple) and _is_returned(source, parent) and _evaluates(loop):
            return parent
    return None


def _is_returned(source: SourceFile, node: ast.AST) -> bool:
    return isinstance(node, ast.Return) or isinstance(source.parents.get(id(node)), ast.Return)


def _evaluates(loop: BatchLoop) -> bool:
    """Return True for a function that evaluates, by its name, and computes no gradients."""
    trains = any(each.attr == "backward" for each in nodes_in(loop.function, ast.Attribute))
    return not trains and bool(name_words(getattr(loop.function, "name", "")) & _EVALUATING)


RULE = Rule(
    required_words=(
        "for ", f"{LOADER_WORDS}|split(|chunk(|range(", "oss|entropy|mean(|.sum(",
        "backward|no_grad|eval()|inference_mode|crit|entropy|model(",
    ),
    find=find,
)  # fmt: skip

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(224, 8)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(x[160:], y[160:]), batch_size=16)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
best_loss = float("inf")
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        total = 0.0
        for inputs, targets in val_loader:
            val_loss = nn.functional.mse_loss(model(inputs), targets).item()
    if val_loss < best_loss:
        best_loss = val_loss
"""

FAILURE = Failure(
    code="EVL012",
    title="The last batch stands for the whole epoch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "            val_loss = nn.functional.mse_loss(model(inputs), targets).item()\n": (
                "            total += nn.functional.mse_loss(model(inputs), targets).item()\n"
                "        val_loss = total / len(val_loader)\n"
            )
        },
    ),
    fix="Add the values of all batches up, and divide by their number.",
    rule=RULE,
)
