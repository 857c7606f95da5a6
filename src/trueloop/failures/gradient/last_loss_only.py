"""Only the loss of the last batch is differentiated: ``backward()`` and ``step()`` run after the loop over the batches.

What you see
    One epoch takes as long as it should, but the loss hardly falls: there is one update per epoch, made on one batch.

Why it happens
    ``backward()`` is indented one level too little, or ``loss =`` stands where ``loss +=`` was meant. Each iteration of
    the loop assigns a new loss to the same variable, and the graph of the previous one is dropped without a word.

Fix
    Call ``backward()`` and ``step()`` for each batch.

        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()

When this is fine
    - You add the losses up, and call ``backward()`` on the sum or mean.
    - You collect the outputs of all batches, and compute one loss of them.
    - The loop runs over time steps, and the last output depends on all of them.
    - You search for the hardest batch, and train on this one.

How it is detected
    The sanitizer reports two successive passes over one loader with at least 3 batches, in each of which the model
    was called once per batch in train mode with gradients, no backward pass ran within the pass, and the backward pass
    after it starts from one loss whose targets are those of the last batch, by their values on the CPU. Models with a
    recurrent layer are not judged.
    The linter reports ``loss.backward()`` after a loop over batches, or over the terms of a loss such as several heads,
    that assigns ``loss`` in every iteration and uses it at most to print or log it. Both report ``functools.reduce``
    over losses with a function that ignores its first argument, the sum so far.

References
    Optimizing Model Parameters, https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
"""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from trueloop.analysis.program_files import parse_files
from trueloop.analysis.queries.assignments import is_assigned_between
from trueloop.analysis.queries.batch_loops import (
    assigned_in,
    batch_loops,
    function_of,
    is_loss_call,
    without_conversions,
)
from trueloop.analysis.queries.loops import always_run
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import dotted_name, encloses, nodes_in, read_source, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import (
    BackwardStarted,
    BatchLoaded,
    LoaderExhausted,
    LoaderStarted,
    ModelCalled,
    Ref,
    StepTaken,
    TracingGap,
)
from trueloop.tracing.running_code import user_modules

MIN_BATCHES: Final = 3
MIN_PASSES: Final = 2
MAX_VALUES: Final = 64  # of a tensor of a batch, that are compared


@dataclass(slots=True)
class _Pass:
    """A pass over a loader in which nothing was differentiated so far."""

    loader: Ref
    model: Ref | None = None
    calls: int = 0
    values: frozenset[tuple[float, ...]] = frozenset()
    """First values of each tensor in the latest batch."""
    ended: bool = False
    differentiated: bool = False
    """Whether the backward pass after it started from the loss of its last batch."""


class Detector(BaseDetector):
    """Counts passes over a loader of which only the last batch is differentiated."""

    def __init__(self) -> None:
        self._pass: _Pass | None = None
        self._steps = 0
        self._counts: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._reported = False
        self._trained_within: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Loaders of which a pass was used in another way."""

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Start a pass."""
        if self._pass is not None and not self._pass.differentiated:
            self._forget()
        if self._reported or event.loader in self._trained_within:
            self._pass = None
            return
        self._pass = _Pass(event.loader)
        event.needs_batches.add(self)

    def on_batch_loaded(self, event: BatchLoaded) -> None:
        """Record the batch."""
        current = self._pass
        if current is None or event.loader is not current.loader:
            event.needs_batches.discard(self)
            return
        from trueloop.tracing.loader_pass import batch_columns
        from trueloop.tracing.parameter_snapshot import first_values

        current.values = frozenset(first_values(part, MAX_VALUES) for _, part in batch_columns(event.batch)) - {()}

    def on_model_called(self, event: ModelCalled) -> None:
        """Count the call; forget the pass if the call is not an ordinary one of training."""
        current = self._pass
        if current is None or current.differentiated:
            return
        is_plain = event.training and event.has_graph and event.loader is current.loader and not current.ended
        same = current.model is None or current.model is event.model
        if not is_plain or not same or (current.model is None and _is_recurrent(event.live_module)):
            self._forget()
            return
        current.model, current.calls = event.model, current.calls + 1

    def on_loader_exhausted(self, event: LoaderExhausted) -> None:
        """End the pass."""
        current = self._pass
        if current is None or current.differentiated or event.loader is not current.loader:
            return
        current.ended = True
        if event.backwards or current.calls != event.batches or event.batches < MIN_BATCHES:
            self._forget()

    def on_backward_started(self, event: BackwardStarted) -> Evidence | None:
        """Return evidence at the second pass of which only the last batch is differentiated."""
        from trueloop.tracing.parameter_snapshot import first_values

        current = self._pass
        if current is None or current.differentiated or not current.ended or len(event.losses) != 1:
            self._forget()
            return None
        if first_values(event.losses[0].targets, MAX_VALUES) not in current.values:
            self._forget()
            return None
        current.differentiated = True
        count = self._counts[current.loader] = self._counts.get(current.loader, 0) + 1
        if count < MIN_PASSES:
            return None
        self._reported = True
        return Evidence(
            message=f"Only the last of {current.calls} batches was differentiated in each of {count} passes over "
            "the loader: `backward()` runs after the loop, and the losses of the other batches were dropped.",
            location=event.location,
            first_update=0,
        )

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Forget a pass during which an optimizer steps; at the second step, read the source of the program."""
        if self._pass is not None and not self._pass.differentiated:
            self._forget()
        self._steps += 1
        return _reduction_in_program(event) if self._steps == CHECKED_STEP else None

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Forget the pass."""
        self._forget()

    def _forget(self) -> None:
        if self._pass is not None:
            self._trained_within.add(self._pass.loader)
        self._pass = None


def _reduction_in_program(event: StepTaken) -> Evidence | None:
    location = event.location and event.location.source_location
    files = {*([location.path] if location else ()), *user_modules().values()}
    trees = parse_files(each for each in files if "reduce(" in read_source(each)) or {}
    found = next(((file, each) for file, tree in trees.items() for each in _forgetful_reductions(tree)), None)
    if found is None:
        return None
    file, call = found
    return Evidence(
        message=_describe(call),
        location=SourceLocation(file, call.lineno),
        fix="Return the sum so far plus the new term: `lambda total, k: total + loss(k)`.",
    )


def _forgetful_reductions(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield each ``reduce`` over losses with a function that does not use the result so far."""
    functions = {each.name: each for each in nodes_in(tree, ast.FunctionDef)}
    for call in nodes_in(tree, ast.Call):
        if last_name(call.func) != "reduce" or len(call.args) < 2:
            continue
        function = functions.get(call.args[0].id) if isinstance(call.args[0], ast.Name) else call.args[0]
        if not isinstance(function, ast.Lambda | ast.FunctionDef) or len(function.args.args) != 2:
            continue
        so_far = function.args.args[0].arg
        body = function.body if isinstance(function.body, list) else [function.body]
        names = {each.id for part in body for each in nodes_in(part, ast.Name)}
        calls = [last_name(each.func) for part in body for each in nodes_in(part, ast.Call)]
        if not so_far.startswith("_") and so_far not in names and any(_LOSS.search(each) for each in calls):
            yield call


def _describe(call: ast.Call) -> str:
    function: Any = call.args[0]
    so_far = f"`{function.args.args[0].arg}`" if isinstance(function, ast.Lambda) else "its first argument"
    return (
        f"Only the last term counts: the function of `reduce` does not use {so_far}, the sum of the terms before, so "
        "it returns the latest loss alone."
    )


def _is_recurrent(module: Any) -> bool:
    from torch import nn

    return any(isinstance(each, nn.RNNBase | nn.RNNCellBase) for each in module.modules())


CHECKED_STEP: Final = 2  # when the source of the program is read
_LOSS: Final = re.compile(r"loss|crit|entropy|mse|nll|kl_div|bce", re.IGNORECASE)
_NUMBERS: Final = frozenset(("item", "detach", "data", "cpu", "float", "tolist"))
"""Methods of a loss whose result is a number without a graph."""
_OUTPUT: Final = frozenset((
    "print", "log", "info", "debug", "set_postfix", "set_description", "write", "add_scalar", "isnan", "isfinite",
    "float", "format",
))  # fmt: skip
_ENDING: Final = ast.Break | ast.Return | ast.Yield


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each backward pass after a loop over batches or terms that replaces its loss in every iteration."""
    for call in _forgetful_reductions(source.tree):
        yield Hit(message=_describe(call), node=call)
    backwards = [each for each in source.all_calls if last_name(each.func) == "backward"]
    for node in source.nodes_of(ast.For):
        is_batch_loop = _is_batch_loop(source, node)
        if not is_batch_loop and not _is_loop_over_terms(node):
            continue
        function = function_of(source, node)
        if any(encloses(node, each) for each in backwards) or _differentiates(node):
            continue
        for statement in always_run(node.body):
            name = dotted_name(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
            if not isinstance(statement, ast.Assign) or not (is_batch_loop or _shares_names(node.target, statement)):
                continue
            if name and _is_only_replaced(source, node, statement, name):
                for hit in _backwards_after(source, node, function, statement, name):
                    yield hit if is_batch_loop else replace(hit, severity=Severity.WARNING)


def _is_batch_loop(source: SourceFile, loop: ast.For) -> bool:
    """Return True for a loop over a loader, over a split tensor, or over ``range(0, n, k)``."""
    if any(each.node is loop for each in batch_loops(source)):
        return True
    calls = list(nodes_in(loop.iter, ast.Call))
    return any(
        (last_name(each.func) == "range" and len(each.args) == 3) or last_name(each.func) == "split" for each in calls
    )


def _is_loop_over_terms(loop: ast.For) -> bool:
    """Return True for a loop over pairs of outputs and targets, or over a dictionary of heads, tasks or losses."""
    match loop.iter:
        case (
            ast.Call(func=ast.Name(id="zip")) | ast.Call(func=ast.Attribute(attr="items" | "keys" | "values"), args=[])
        ):
            return True
        case ast.Call(func=ast.Name(id="enumerate"), args=[ast.Call(func=ast.Name(id="zip"))]):
            return True
        case _:
            return False


def _shares_names(target: ast.expr, statement: ast.Assign) -> bool:
    names = {each.id for each in nodes_in(target, ast.Name)}
    return any(each.id in names for each in nodes_in(statement.value, ast.Name))


def _differentiates(loop: ast.For) -> bool:
    """Return True if a loop ends early, computes gradients or updates, or carries a state to its next iteration."""
    stored: dict[str, int] = {}
    for each in walk(loop):
        if isinstance(each, _ENDING):
            return True
        if isinstance(each, ast.Attribute) and each.attr in ("grad", "no_grad", "inference_mode", "step"):
            return True
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            stored[each.id] = min(each.lineno, stored.get(each.id, each.lineno))
    return any(
        isinstance(each, ast.Name) and each.lineno <= stored.get(each.id, 0)
        for call in nodes_in(loop, ast.Call)
        if call is not loop.iter
        for argument in call.args
        for each in walk(argument)
    )


def _is_only_replaced(source: SourceFile, loop: ast.For, statement: ast.Assign, name: str) -> bool:
    """Return True for a loss that a loop assigns once, and uses at most to print or log it."""
    value = without_conversions(statement.value)
    computes_loss = any(is_loss_call(source, each) for each in nodes_in(value, ast.expr))
    is_loss = value is statement.value and (
        computes_loss or (isinstance(value, ast.UnaryOp | ast.Call | ast.BinOp) and "loss" in name)
    )
    return is_loss and len(assigned_in(loop, name)) == 1 and not _is_kept(source, loop, name)


def _is_kept(source: SourceFile, loop: ast.For, name: str) -> bool:
    """Return True if a loop uses a loss for anything else than to print or log it."""
    for each in walk(loop):
        if dotted_name(each) != name:
            continue
        if isinstance(source.parents.get(id(each)), ast.AugAssign):
            return True
        parent: Any = source.parents.get(id(each))
        is_output = not isinstance(getattr(each, "ctx", None), ast.Load)
        while isinstance(parent, ast.expr | ast.FormattedValue | ast.keyword) and not is_output:
            attribute = parent.attr if isinstance(parent, ast.Attribute) else ""
            called = last_name(parent.func) if isinstance(parent, ast.Call) else ""
            is_output = attribute in _NUMBERS or called in _OUTPUT
            parent = source.parents.get(id(parent))
        if not is_output:
            return True
    return False


def _backwards_after(
    source: SourceFile, loop: ast.For, function: Any, statement: ast.Assign, name: str
) -> Iterator[Hit]:
    """Yield the backward pass after a loop that starts from a variable, also where the function returns it."""
    starts = [(function, name, loop.end_lineno or 0)]
    if any(isinstance(each, ast.Return) and dotted_name(each.value) == name for each in source.block(loop)):
        for call in source.all_calls:
            parent = source.parents.get(id(call))
            if last_name(call.func) == getattr(function, "name", "") and isinstance(parent, ast.Assign):
                starts.append((function_of(source, call), dotted_name(parent.targets[0]), call.lineno))
    for where, variable, start in starts:
        for call in nodes_in(where, ast.Call):
            if last_name(call.func) == "backward" and call.lineno > start:
                roots = [*call.args[:1], *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
                is_root = any(dotted_name(each) == variable != "" for root in roots for each in walk(root))
                if is_root and not is_assigned_between(where, {variable}, start, call.lineno):
                    yield Hit(
                        message=f"`{ast.unparse(call)}` runs once after the loop: `{variable}` is the loss of the last "
                        "iteration, and the losses of all others are dropped.",
                        node=call,
                        related=((statement, "each iteration replaces the loss here"),),
                    )
                    break


RULE = Rule(required_words=("backward(", "for |reduce(", "oss|rit|err"), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.MSELoss()
for epoch in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD020",
    title="Only the loss of the last batch is differentiated",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD, {"    loss.backward()\n    optimizer.step()": "        loss.backward()\n        optimizer.step()"}
    ),
    fix="Indent `loss.backward()` and `optimizer.step()` into the loop over the batches.",
    rule=RULE,
    detector=Detector,
)
