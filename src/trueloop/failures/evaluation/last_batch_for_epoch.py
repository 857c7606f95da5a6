"""A decision about an epoch, or a printed result, rests on the loss or accuracy of its last batch.

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
    - Totals are those of a batch on purpose: they are collected in a list, or printed for each batch.
    - You print the loss of the last training batch to follow the progress.

How it is detected
    Only the linter finds it, from the source code: a loop over a loader that computes a loss, or a share of right
    predictions, assigns it to a variable and uses this variable at most to print or log it. After the loop the variable
    is compared with the best value, given to ``scheduler.step()``, or returned by a function that evaluates, or, after
    an evaluation, printed or logged, even if the loop also collects the values. A total that the loop itself sets to 0
    before it adds to it is reported too, if nothing else uses it in the loop, also as a tensor of zeros, a dictionary
    or a list that is divided, returned or given to a metric after the loop. So is a count of right predictions that is
    added to after the loop, a metric of two variables that the loop sets, and the mean of its probabilities. So is a
    count that the loop sets in each iteration, also by ``record.update(right=...)``, and that is divided after the
    loop. In a loop that trains, the loss of the last batch is reported only where a curve of one point per epoch gets
    it: ``writer.add_scalar("loss", loss, epoch)`` or ``losses.append(loss.item())``. Loaders of a single batch, with a
    ``batch_size`` such as ``len(data)``, are not reported.

References
    PyTorch quickstart, whose test loop adds the losses up,
    https://docs.pytorch.org/tutorials/beginner/basics/quickstart_tutorial.html
"""

import ast
import re
from collections.abc import Callable, Iterator, Set
from itertools import takewhile
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import (
    LOADER_WORDS,
    BatchLoop,
    assigned_in,
    assigned_pairs,
    batch_loops,
    compared_sides,
    hand_made_batch_loops,
    has_one_batch,
    is_loss_call,
    without_conversions,
)
from trueloop.analysis.queries.loops import always_run, assigned_names
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_OUTPUT: Final = frozenset((
    "print", "log", "info", "debug", "set_postfix", "set_description", "set_postfix_str", "add_scalar", "write",
    "isnan", "isfinite", "format", "item", "backward", "scale", "log_scalar", "detach", "cpu",
))  # fmt: skip
"""Functions that do not collect a value."""
_PRINTING: Final = frozenset(("print", "info", "log", "add_scalar", "write"))
_COUNTING: Final = frozenset((
    "sum", "item", "mean", "len", "size", "count_nonzero", "bincount", "histc", "histogram", "confusion_matrix",
))  # fmt: skip
"""Functions that count, or add the values of a batch up."""
_METRIC: Final = re.compile(
    r"score|accuracy|precision|recall|auc|f1|iou|dice|report|matrix|metric|spearman|pearson|^(mean|sum|average)$", re.I
)
_CURVES: Final = frozenset(("loss", "losses", "history", "hist"))
"""Words of the names of lists that hold one value per epoch."""
_PROBABILITIES: Final = frozenset(("softmax", "sigmoid"))
_EVALUATING: Final = frozenset(("val", "valid", "validate", "validation", "eval", "evaluate", "evaluation", "test"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each decision about an epoch that uses the value of its last batch."""
    yield from _totals_of_one_batch(source)
    yield from _judged_after_loop(source)
    yield from _replaced_counts(source)
    for loop in batch_loops(source):
        if has_one_batch(source, loop) or _may_end_early(loop):
            continue
        for statement in nodes_in(loop.node, ast.Assign):
            if len(statement.targets) != 1:
                continue
            name = dotted_name(statement.targets[0])
            if not name or not _is_result_of_batch(source, loop, statement.value):
                continue
            decision = _decision(source, loop, name) if _is_only_replaced(source, loop, name) else None
            decision = decision or _printed(source, loop, name)
            if decision is not None:
                yield Hit(
                    message=f"`{name}` is the value of the last batch here: each iteration of the loop over "
                    f"`{ast.unparse(loop.loader)}` replaces it.",
                    node=decision,
                    related=((statement, "assigned in each iteration"),),
                )


def _totals_of_one_batch(source: SourceFile) -> Iterator[Hit]:
    """Yield the totals that start at zero in every iteration of a loop over batches, and are read after the loop."""
    for loop in (*batch_loops(source), *hand_made_batch_loops(source)):
        if _may_end_early(loop) or has_one_batch(source, loop):
            continue
        found = [
            (total, read)
            for statement in always_run(loop.node.body)
            for total in _totals_set_by(statement)
            for read in _reads_of_total(source, loop, total)
        ]
        if found:
            total, read = found[0]
            others = {id(each.statement): each.statement for each, _ in found if each.statement is not total.statement}
            yield Hit(
                message=f"`{total.name}` is set to {total.start} in each iteration of the loop over "
                f"`{ast.unparse(loop.loader)}`, so it is the value of the last batch only.",
                node=total.statement,
                related=((read, "read here"), *((each, "starts again here too") for each in others.values())),
            )


class _Total(NamedTuple):
    """A variable that a statement sets to 0, to zeros or to an empty container."""

    statement: ast.Assign
    name: str
    start: str
    """How a message names the value: "0", "zeros", "an empty list" or "zero counts"."""


def _totals_set_by(statement: ast.stmt) -> Iterator[_Total]:
    """Yield the variables that a statement sets to 0, to a tensor of zeros, or to an empty container."""
    for target, value in assigned_pairs(statement) if isinstance(statement, ast.Assign) else ():
        targets, made = [target], value
        match target, value:
            case ast.Tuple(elts=targets), ast.GeneratorExp(elt=made) | ast.ListComp(elt=made):
                pass
            case ast.Tuple(elts=targets), ast.BinOp(op=ast.Mult(), left=ast.List(elts=[made]) | ast.Tuple(elts=[made])):
                pass
            case _:
                pass
        start = _zero(made)
        if start and isinstance(statement, ast.Assign):
            yield from (_Total(statement, each.id, start) for each in targets if isinstance(each, ast.Name))


def _zero(value: ast.expr) -> str:
    """Return how a message names a start value; "" for other values."""
    match value:
        case ast.Constant(value=0) if value.value is not False:
            return "0"
        case ast.List(elts=[]):
            return "an empty list"
        case ast.Dict(values=[_, *_] as items):
            return "zero counts" if all(map(_zero, items)) else ""
        case ast.BinOp(op=ast.Mult(), left=ast.List(elts=[item])):
            return _zero(item) and "zeros"
        case ast.Call():
            return _zero_of_call(value)
        case _:
            return ""


def _zero_of_call(call: ast.Call) -> str:
    name = last_name(call.func)
    if isinstance(call.func, ast.Attribute) and name in ("to", "cuda"):
        return _zero(call.func.value)
    if name == "zeros":
        return "zeros"
    if name in ("tensor", "array", "float", "int") and len(call.args) == 1:
        return _zero(call.args[0])
    is_counter = name == "defaultdict" or (name == "Counter" and not call.args and not call.keywords)
    is_dict = name == "dict" and not call.args and call.keywords and all(_zero(each.value) for each in call.keywords)
    return "zero counts" if is_counter or is_dict else ""


def _reads_of_total(source: SourceFile, loop: BatchLoop, total: _Total) -> list[ast.Name]:
    """Return the first read of a total after a loop that adds to it, if nothing uses the total of each batch."""
    nodes = [each for each in nodes_in(loop.function, ast.Name) if each.id == total.name]
    end = loop.node.end_lineno or 0
    later = sorted((each for each in nodes if each.lineno > end), key=lambda each: (each.lineno, each.col_offset))
    reads = list(takewhile(lambda each: isinstance(each.ctx, ast.Load), later))
    inside = [each for each in nodes if encloses(loop.node, each) and not encloses(total.statement, each)]
    additions = [(each, _addition(source, each)) for each in inside]
    added = [value for _, value in additions if value is not None]
    used = [each for each, value in additions if value is None]
    trains = any(each.attr == "backward" for each in nodes_in(loop.node, ast.Attribute))
    if any(trains or not _is_printed(source, each) for each in used) or not _are_counts(source, loop, total, added):
        return []
    if used:  # the value of each batch may be printed, and that of the last batch again
        reads = [each for each in reads if not _is_printed(source, each)]
    return [each for each in reads if total.start == "0" or _is_measured(source, each)][:1]


def _addition(source: SourceFile, node: ast.Name) -> ast.expr | None:
    """Return what a statement adds to a total, or to an item of it; None if it does something else with it."""
    target: Any = node
    while isinstance(source.parents.get(id(target)), ast.Subscript):
        parent: Any = source.parents[id(target)]
        if parent.value is not target:
            return None
        target = parent
    match source.parents.get(id(target)):
        case ast.AugAssign(op=ast.Add(), target=changed_target, value=value) if changed_target is target:
            return value
        case ast.Attribute(attr="append" | "extend" | "add_" | "update") as method:
            call = source.parents.get(id(method))
            is_statement = isinstance(source.parents.get(id(call)), ast.Expr)
            return call.args[0] if is_statement and isinstance(call, ast.Call) and call.args else None
        case _:
            return None


def _are_counts(source: SourceFile, loop: BatchLoop, total: _Total, added: list[ast.expr]) -> bool:
    """Return True if a loop adds to a number or a list, or sums and numbers to a tensor, and no inner loop is one."""
    inner = [each.node for each in batch_loops(source) if each.node is not loop.node and encloses(loop.node, each.node)]
    if not added or any(encloses(each, value) for each in inner for value in added):
        return False
    words = {last_name(e.func) for value in added for e in nodes_in(value, ast.Call)}
    compares = any(isinstance(e, ast.Compare | ast.Constant) for value in added for e in walk(value))
    return total.start != "zeros" or compares or bool(words & _COUNTING)


def _is_printed(source: SourceFile, node: ast.expr) -> bool:
    """Return True if a value is only printed or logged."""
    parent: Any = source.parents.get(id(node))
    while isinstance(parent, ast.expr | ast.FormattedValue | ast.keyword | ast.JoinedStr):
        if isinstance(parent, ast.Call) and last_name(parent.func) not in _OUTPUT:
            return False
        parent = source.parents.get(id(parent))
    return isinstance(parent, ast.Expr)


def _is_measured(source: SourceFile, node: ast.expr) -> bool:
    """Return True if a value is returned, divided, or given to a function that computes a metric."""
    parent: Any = source.parents.get(id(node))
    while isinstance(parent, ast.expr | ast.FormattedValue | ast.keyword | ast.JoinedStr):
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div):
            return True
        if isinstance(parent, ast.Call) and _METRIC.search(last_name(parent.func)):
            return True
        parent = source.parents.get(id(parent))
    return isinstance(parent, ast.Return)


def _judged_after_loop(source: SourceFile) -> Iterator[Hit]:
    """Yield each count or metric that is computed after a loop from what the loop sets, so for the last batch only."""
    for loop in batch_loops(source):
        if has_one_batch(source, loop) or _may_end_early(loop) or _collects(loop):
            continue
        stored = _set_by(loop)
        for statement in _following(source, loop.node):
            stored -= assigned_names(statement) if isinstance(statement, ast.For | ast.While | ast.With) else set()
            judged = next((e for e in nodes_in(statement, ast.expr) if _judges(source, loop, e, stored)), None)
            if judged is not None:
                is_count = isinstance(statement, ast.AugAssign)
                subject = statement.target if isinstance(statement, ast.AugAssign) else judged
                yield Hit(
                    message=f"`{ast.unparse(subject)}` {'counts' if is_count else 'judges'} the last batch only: this "
                    f"line stands after the loop over `{ast.unparse(loop.loader)}`, not in it.",
                    node=statement,
                    related=((loop.node, "the loop over the batches"),),
                )
            stored -= assigned_names(statement)


def _following(source: SourceFile, node: ast.stmt) -> list[ast.stmt]:
    """Return the statements after one in its block, and after the ``with`` that contains it."""
    parent = source.parents.get(id(node))
    return [*source.following(node), *(_following(source, parent) if isinstance(parent, ast.With) else ())]


def _set_by(loop: BatchLoop) -> set[str]:
    """Return the variables that each iteration sets, and does not add to."""
    added = {name for each in nodes_in(loop.node, ast.AugAssign) for name in _targets(each)}
    statements = [each for each in always_run(loop.node.body) if isinstance(each, ast.Assign)]
    own = [each for each in statements if not assigned_names(each) & {e.id for e in nodes_in(each.value, ast.Name)}]
    return (set[str]().union(assigned_names(loop.node.target), *map(assigned_names, own))) - added - {loop.counter}


def _judges(source: SourceFile, loop: BatchLoop, node: ast.expr, stored: Set[str]) -> bool:
    """Return True for a metric of two variables that a loop sets, a count of equal ones, or a mean probability."""
    if not isinstance(node, ast.Call):
        return isinstance(source.parents.get(id(node)), ast.AugAssign) and _are_compared(node, stored)
    name, parts = last_name(node.func), [*node.args, node.func]
    if name in ("sum", "mean") and any(_are_compared(each, stored) for part in parts for each in walk(part)):
        return True
    if name == "mean":
        base = next((each for part in parts for each in nodes_in(part, ast.Name) if each.id in stored), None)
        values = [] if base is None else assigned_in(loop.node, base.id)
        return bool(values) and all(last_name(getattr(each, "func", None)) in _PROBABILITIES for each in values)
    given = [{each.id for each in nodes_in(part, ast.Name)} & stored for part in node.args[:2]]
    return len(given) == 2 and all(given) and given[0] != given[1] and _METRIC.search(name) is not None


def _are_compared(node: Any, stored: Set[str]) -> bool:
    """Return True for ``predicted == labels`` of two variables."""
    sides = [each for inner in nodes_in(node, ast.expr) for each in compared_sides(inner)]
    names = [{name.id for name in nodes_in(each, ast.Name)} for each in sides]
    return len(names) == 2 and all(stored & each for each in names)


def _replaced_counts(source: SourceFile) -> Iterator[Hit]:
    """Yield each assignment of a count in a loop that computes no gradients, if it is divided after the loop."""
    for loop in (*batch_loops(source), *hand_made_batch_loops(source)):
        trains = any(each.attr == "backward" for each in nodes_in(loop.node, ast.Attribute))
        if trains or _may_end_early(loop) or has_one_batch(source, loop):
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


def _is_result_of_batch(source: SourceFile, loop: BatchLoop, value: ast.expr) -> bool:
    """Return True for a loss, or a share of right predictions."""
    inner = without_conversions(value)
    if isinstance(inner, ast.Name):
        values = assigned_in(loop.node, inner.id)
        inner = without_conversions(values[0]) if len(values) == 1 else inner
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div) and not nodes_in(inner.right, ast.Call):
        inner = without_conversions(inner.left)  # loss.item() / batch_size
        values = assigned_in(loop.node, inner.id) if isinstance(inner, ast.Name) else []
        inner = without_conversions(values[0]) if len(values) == 1 else inner
    if is_loss_call(source, inner):
        return True
    is_mean = isinstance(inner, ast.Call) and last_name(inner.func) == "mean"
    return is_mean and any(len(compared_sides(each)) == 2 for each in nodes_in(inner, ast.expr))


def _may_end_early(loop: BatchLoop) -> bool:
    """Return True if a loop may leave out batches, other than by a limit of their number: ``if i == 100: break``."""
    limits = [e for e in loop.node.body if isinstance(e, ast.If) and _is_limit(loop, e.test) and len(e.body) == 1]
    return any(
        isinstance(each, ast.Return) or not any(encloses(limit, each) for limit in limits)
        for each in nodes_in(loop.node, ast.Break, ast.Return)
    )


def _is_limit(loop: BatchLoop, test: ast.expr) -> bool:
    """Return True for a comparison of the number of a batch with a number, which is above 0."""
    match test:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Eq() | ast.Gt() | ast.GtE()], comparators=[number]):
            return name == loop.counter and not (isinstance(number, ast.Constant) and number.value in (0, 1))
        case _:
            return False


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
    reads = (each for each in nodes_in(loop.node, ast.expr) if isinstance(getattr(each, "ctx", None), ast.Load))
    return any(text(each) == name and not _is_printed(source, each) for each in reads)


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


def _printed(source: SourceFile, loop: BatchLoop, name: str) -> ast.Call | None:
    """Return the call after an evaluation that prints or logs the value of its last batch; None if there is none."""
    trains = any(each.attr in ("backward", "step") for each in nodes_in(loop.node, ast.Attribute))
    where = f"{ast.unparse(loop.loader)} {name} {getattr(loop.function, 'name', '')}"
    others = nodes_in(loop.function, ast.AugAssign, ast.NamedExpr, ast.For, ast.withitem)
    targets = [target for each in others for target in _targets(each)]
    is_other = name in targets or len(assigned_in(loop.node, name)) != 1
    if is_other or not (trains or name_words(where) & _EVALUATING):
        return None
    end = loop.node.end_lineno or 0
    later = [each.lineno for each in assigned_in(loop.function, name) if each.lineno > end]
    for call in nodes_in(loop.function, ast.Call):
        is_shown = _logs_per_epoch(call) if trains else last_name(call.func) in _PRINTING
        is_latest = end < call.lineno and not any(line <= call.lineno for line in later)
        if is_latest and is_shown and _is_reached(source, loop, call):
            given = [*call.args, *(each.value for each in call.keywords)]
            if any(dotted_name(each) == name for part in given for each in nodes_in(part, ast.Name, ast.Attribute)):
                return call
    return None


def _logs_per_epoch(call: ast.Call) -> bool:
    """Return True for a curve of one point per epoch: ``losses.append(loss)``, ``add_scalar("loss", loss, epoch)``."""
    match call:
        case (
            ast.Call(func=ast.Attribute(attr=name), args=[_, _, step])
            | ast.Call(func=ast.Attribute(attr=name), args=[_, _], keywords=[ast.keyword(value=step)])
        ):
            return name in ("add_scalar", "log_metric") and last_name(step) in ("epoch", "ep", "e")
        case ast.Call(func=ast.Attribute(attr="append", value=curve)):
            return bool(name_words(last_name(curve)) & _CURVES)
        case _:
            return False


def _targets(node: Any) -> list[str]:
    """Return the variables that a loop, ``with`` or ``+=`` sets."""
    target = getattr(node, "target", None) or getattr(node, "optional_vars", None)
    return [dotted_name(each) for each in nodes_in(target, ast.Name, ast.Attribute)] if target is not None else []


def _is_reached(source: SourceFile, loop: BatchLoop, call: ast.Call) -> bool:
    """Return True for a call after a loop in the same block, perhaps under a condition, but in no other loop."""
    parent: Any = source.parents.get(id(loop.node))
    while isinstance(parent, ast.With):
        parent = source.parents.get(id(parent))
    is_module = isinstance(parent, ast.Module)
    inner = [e for e in nodes_in(parent, ast.For, ast.While, ast.FunctionDef) if e is not parent and encloses(e, call)]
    return (is_module or encloses(parent, call)) and not inner


def _is_returned(source: SourceFile, node: ast.AST) -> bool:
    return isinstance(node, ast.Return) or isinstance(source.parents.get(id(node)), ast.Return)


def _evaluates(loop: BatchLoop) -> bool:
    """Return True for a function that evaluates, by its name, and computes no gradients."""
    trains = any(each.attr == "backward" for each in nodes_in(loop.function, ast.Attribute))
    return not trains and bool(name_words(getattr(loop.function, "name", "")) & _EVALUATING)


RULE = Rule(
    required_words=(
        "for ", f"{LOADER_WORDS}|split(|chunk(|range(", "oss|riterion(|entropy|mean(|.sum(|_score(|_report(",
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
