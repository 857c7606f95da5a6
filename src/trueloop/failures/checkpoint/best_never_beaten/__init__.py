"""The best value so far is never updated, reset in every epoch, or compared the wrong way round.

What you see
    The "best" checkpoint is the one of the last epoch, or of the worst one, or no checkpoint is ever written. Early
    stopping stops at once or never.

Why it happens
    Nothing checks a comparison. If ``best_loss`` stays infinite, every epoch counts as an improvement. If an infinite
    ``best_loss`` is compared with ``>``, no epoch does.

Fix
    Compare in the direction in which the value improves, and store the new best value in the same branch:

        best_loss = float("inf")  # for an accuracy: best_accuracy = 0.0 and ">"
        for epoch in range(epochs):
            ...
            if val_loss < best_loss:
                best_loss = val_loss
                torch.save(model.state_dict(), "best.pt")

When this is fine
    - The best value is updated somewhere else: in another branch, with ``min(best, loss)``, in a callback.
    - The comparison is with a fixed limit, such as a share of games to win: name it so, or write it as a constant.
    - The branch does not store anything, and the other one does: ``if loss >= best: waited += 1``.
    - A search for the worst case maximises a loss.

How it is detected
    Only the linter finds it, from the source code: an ``if`` that compares a value with a variable called "best" and
    saves the model or stores the value. It reports a variable that nothing in the file assigns after its initial
    value, or that the loop of the ``if`` sets back, unless its name (in capitals, a threshold) or the annotation
    ``Final`` marks a fixed limit between 0 and 999. It reports a comparison that no value can satisfy: ``>`` with an
    infinite initial value, ``<`` with minus infinity, or with 0 for a loss or an accuracy. It also reports a comparison
    that contradicts the names, such as ``val_acc < best_acc`` or ``val_loss > best``, and an object of a class of the
    program, such as ``EarlyStopping(patience=5)``, that keeps the lowest value by its comparison and its ``mode``, but
    is given a value called an accuracy, or keeps the highest and is given a loss. And it reports a best value that gets
    another metric than the one that was compared, one that ``max`` or ``min`` has replaced before the comparison, and
    one that is a parameter of the function which updates it, if the loop that calls the function never gets it back.

References
    delip/PyTorchNLPBook#20: the best value "is not updated (except in the first epoch)",
    https://github.com/delip/PyTorchNLPBook/issues/20
    torch.save, https://docs.pytorch.org/docs/stable/generated/torch.save.html
"""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.best_values import (
    LARGE,
    BestCheck,
    best_checks,
    initial_number,
    is_huge,
    is_parameter,
    is_same,
    saves_model,
    stores,
)
from trueloop.analysis.queries.metric_names import better_direction, metric_name, name_words
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, encloses, nodes_in
from trueloop.failures.checkpoint.best_never_beaten.kept_direction import find_kept_worst
from trueloop.failures.checkpoint.best_never_beaten.other_value_kept import (
    find_other_value,
    find_updated_before,
    find_updated_locally,
)
from trueloop.failures.failure import Failure, Rule, Severity, changed

LOOPS = ast.For | ast.AsyncFor | ast.While
_LIMIT_WORDS = frozenset(("threshold", "thresh", "limit"))
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each comparison with a best value that never changes, that nothing beats, or that prefers worse ones."""
    checks = list(best_checks(source))
    stored = list(stores(source.nodes)) if checks else []
    for check in checks:
        yield from find_other_value(source, check)
        yield from find_updated_before(source, check)
        yield from find_updated_locally(source, check)
        own = [(target, value) for target, value in stored if is_same(target, check.best)]
        initial = [(target, value) for target, value in own if initial_number(value) is not None]
        later = [target for target, value in own if initial_number(value) is None]
        if is_parameter(source, check.node, check.best) or not initial:
            yield from _compared_against_names(source, check)
        elif not later:
            yield from _never_updated(source, check, initial)
        elif check.takes_first:
            continue
        elif all(any(encloses(each, target) for each in check.node.body) for target in later):
            yield from _reset_or_never_beaten(source, check, initial)
        else:
            yield from _compared_against_names(source, check)
    yield from find_kept_worst(source)


def _never_updated(source: SourceFile, check: BestCheck, initial: list[Any]) -> Iterator[Hit]:
    loop, function = _innermost_loop(source, check.node), function_of(source, check.node)
    is_repeated = loop is not None and not any(encloses(loop, target) for target, _ in initial)
    is_called_again = isinstance(function, FUNCTIONS) and not any(encloses(function, target) for target, _ in initial)
    if (not is_repeated and not is_called_again) or _is_set_by_name(source, check.best) or _is_limit(source, initial):
        return
    best, value = ast.unparse(check.best), ast.unparse(check.value)
    is_number = isinstance(check.value, ast.Name | ast.Attribute | ast.Subscript)
    edit = source.text.insert_before(check.node.body[0], f"{best} = {value}") if is_number else None
    yield Hit(
        message=f"`{best}` keeps its initial value: nothing assigns it, so `{ast.unparse(check.node.test)}` compares "
        "every value with the initial one.",
        node=check.node.test,
        related=((initial[0][0], "the initial value"),),
        fix=Fix((edit,), safe=False, description="Store the new best value") if edit else None,
    )


def _is_limit(source: SourceFile, initial: list[Any]) -> bool:
    """Return True for a fixed limit, by its name or annotation, whose number no first value would certainly beat."""
    for target, value in initial:
        name = getattr(target.slice, "value", "") if isinstance(target, ast.Subscript) else last_name(target)
        statement = source.parents.get(id(target))
        is_final = isinstance(statement, ast.AnnAssign) and "Final" in ast.unparse(statement.annotation)
        is_fixed = is_final or str(name).isupper() or not _LIMIT_WORDS.isdisjoint(name_words(str(name)))
        if not is_fixed or not 0 < float(initial_number(value) or 0.0) < LARGE:
            return False
    return True


def _is_set_by_name(source: SourceFile, best: ast.expr) -> bool:
    """Return True if a call may set a best value: ``setattr(self, "best", loss)`` or ``state.update(best=loss)``."""
    name = getattr(best.slice, "value", None) if isinstance(best, ast.Subscript) else last_name(best)
    for call in source.all_calls:
        called = last_name(call.func)
        if called in ("setattr", "__setattr__"):
            names = [each.value for each in call.args if isinstance(each, ast.Constant)]
            if name in names or not any(isinstance(each, str) for each in names):
                return True
        elif called in ("update", "replace", "_replace"):
            keys = [each.value for each in nodes_in(call, ast.Constant)]
            if name in keys or name in [word.arg for word in call.keywords]:
                return True
    return False


def _reset_or_never_beaten(source: SourceFile, check: BestCheck, initial: list[Any]) -> Iterator[Hit]:
    best, test = ast.unparse(check.best), ast.unparse(check.node.test)
    numbers = [float(initial_number(value) or 0.0) for _, value in initial]
    loop = _innermost_loop(source, check.node)
    if loop is not None and all(_innermost_loop(source, target) is loop for target, _ in initial):
        if all(target.lineno < check.node.lineno for target, _ in initial) and not _is_conditional(
            source, initial, loop
        ):
            yield Hit(
                message=f"`{best}` is set back in every iteration of the loop, before `{test}` is evaluated: every "
                "value counts as the best one.",
                node=check.node.test,
                related=((initial[0][0], "set back here"),),
            )
        return
    is_natural = better_direction(metric_name(check.value) or metric_name(check.best)) != ""
    never_above = check.sign == ">" and all(map(is_huge, numbers))
    never_below = check.sign == "<" and all(is_huge(-number) for number in numbers)
    below_zero = check.sign == "<" and is_natural and all(number == 0 for number in numbers)
    if never_above or never_below or below_zero:
        yield Hit(
            message=f"`{test}` is never true: `{best}` starts at {numbers[0]:g}, and nothing else changes it.",
            node=check.node.test,
            related=((initial[0][0], "the initial value"),),
            fix=None if below_zero else _mirrored(source, check, []),
        )
    else:
        yield from _compared_against_names(source, check, initial)


def _compared_against_names(source: SourceFile, check: BestCheck, initial: list[Any] | None = None) -> Iterator[Hit]:
    """Yield a comparison that prefers the worse value, by the names of both of its sides."""
    names = [metric_name(check.value), metric_name(check.best)]
    parts = [] if names[0] else [ast.unparse(each) for each in nodes_in(check.value, ast.Name, ast.Attribute)]
    directions = {better_direction(name) for name in [*names, *parts]} - {""}
    if check.updates and saves_model(check.node.body) and directions == {"max" if check.sign == "<" else "min"}:
        better, name = "higher" if check.sign == "<" else "lower", names[0] or names[1]
        yield Hit(
            message=f"`{ast.unparse(check.node.test)}` keeps the worst value: by its name, `{name}` is better when it "
            f"is {better}.",
            node=check.node.test,
            fix=_mirrored(source, check, initial or []),
        )


def _mirrored(source: SourceFile, check: BestCheck, initial: list[Any]) -> Fix | None:
    """Return the fix that turns the comparison round, and sets initial values that nothing would beat then."""
    infinite = "-float('inf')" if check.sign == "<" else "float('inf')"
    numbers = [(value, float(initial_number(value) or 0.0)) for _, value in initial]
    unbeaten = [value for value, number in numbers if (is_huge(number) if check.sign == "<" else number <= 0)]
    edits = [source.text.replace(value, infinite) for value in unbeaten]
    tests = check.node.test.values if isinstance(check.node.test, ast.BoolOp) else [check.node.test]
    for test in tests:
        if isinstance(test, ast.Compare) and (test.left is check.value or test.left is check.best):
            start, end = source.text.span(test.left)[1], source.text.span(test.comparators[0])[0]
            text = source.text.content[start:end].decode("utf-8", "surrogatepass")
            if text.strip() in ("<", "<=", ">", ">="):
                new = text.translate(str.maketrans("<>", "><"))
                return Fix((*edits, Edit(start, end, new)), safe=False, description="Turn the comparison round")
    return None


def _innermost_loop(source: SourceFile, node: ast.AST) -> Any:
    """Return the innermost loop around a node within its function; None if there is none."""
    return next((each for each in enclosing_nodes(source, node) if isinstance(each, LOOPS)), None)


def _is_conditional(source: SourceFile, initial: list[Any], loop: ast.AST) -> bool:
    """Return True if an initial value is assigned only in some iterations of a loop."""
    parents = [source.parents.get(id(source.parents.get(id(target)))) for target, _ in initial]
    return any(each is not loop for each in parents)


RULE = Rule(required_words=("best|lowest|min_|_min", "if "), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
best_loss = float("inf")
for epoch in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[:96]), y[:96])
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        val_loss = nn.functional.mse_loss(model(x[96:]), y[96:]).item()
    if val_loss < best_loss:
        best_state = {name: value.clone() for name, value in model.state_dict().items()}
model.load_state_dict(best_state)
"""

FAILURE = Failure(
    code="CKP009",
    title="Best value is never updated or never beaten",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD, {"    if val_loss < best_loss:\n": "    if val_loss < best_loss:\n        best_loss = val_loss\n"}
    ),
    fix="Store the new best value where it is compared, and compare in the direction in which it improves.",
    rule=RULE,
)
