"""The optimizer steps again and again, but ``backward()`` is never called.

What you see
    The loss stays at its first value, because the weights never change. Another learning rate makes no difference.

Why it happens
    An optimizer skips parameters without a gradient, so a step without any gradients silently does nothing.

Fix
    Call ``backward()`` between the loss and the step.

        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()

When this is fine
    - You step through a learning rate schedule without calling a model, to plot or resume the schedule.
    - The optimizer belongs to a part that is trained later, while other parts are trained (GRD005 reports it).
    - You write gradients by hand, compute them with ``torch.autograd.grad``, or pass a closure to ``step()``.
    - Your own optimizer needs no gradients, or you change the weights by hand.
    - The program skips the first batches.

How it is detected
    In a run, the sanitizer reports a PyTorch optimizer that stepped 8 times (4 times if the run ends earlier), each
    time after a call of its model with gradients enabled, while there was no backward pass, no gradient and no change
    of a weight. The linter reports a loop that calls a model, computes a loss and steps, if nothing in the file calls
    ``backward()``, uses gradients, or passes the loss to other code.

References
    Optimizing Model Parameters, https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
    Goingqs/PyramidBox#7, "No 'loss.backward()' during training?", https://github.com/Goingqs/PyramidBox/issues/7
    aalto-intelligent-robotics/sivl#2, "No loss.backward()": "I had accidentally deleted that row when cleaning up
    code", https://github.com/aalto-intelligent-robotics/sivl/issues/2
"""

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.gradient_uses import uses_gradients
from trueloop.analysis.queries.uncalled_methods import uncalled
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import NO_REFS, ModelCalled, Ref, Refs, StepTaken, WatchEnded
from trueloop.tracing.parameter_snapshot import snapshot_parameters

MIN_STEPS = 8  # steps of one optimizer, while the run continues
MIN_STEPS_AT_END = 4  # steps of one optimizer, when the run ends
MAX_COMPARED = 4  # number of parameters of a model whose values are compared


class Detector(BaseDetector):
    """Counts the steps without gradients that follow a call of a model, until there is a backward pass."""

    def __init__(self) -> None:
        self._called: Refs = NO_REFS
        """Parameters of the models that have built a graph since the latest step."""
        self._steps = Counter[Ref]()
        self._values: dict[Ref, dict[str, tuple[Any, ...]]] = {}
        self._ruled_out = False
        """True once weights change, gradients exist, or an optimizer is not PyTorch's or takes a closure."""
        self._latest: StepTaken | None = None
        self._reported = False

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the call of the model."""
        if event.backward_count or self._ruled_out:  # the usual case
            self.ignore(ModelCalled)
            return
        if event.has_graph:
            self._called = event.parameters | self._called
            if self._steps:
                self._compare_weights(event)

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at a step, or when the run ends."""
        if event.backward_count or self._ruled_out:  # the usual case
            self.ignore(StepTaken)
            return None
        return self._count_step(event)

    def on_watch_ended(self, event: WatchEnded) -> Evidence | None:
        """Return evidence at a step, or when the run ends."""
        if event.backward_count or self._ruled_out:  # the usual case
            return None
        return self._evidence(MIN_STEPS_AT_END)

    def _compare_weights(self, event: ModelCalled) -> None:
        names = {ref.name for ref in sorted(event.parameters, key=lambda ref: ref.name)[:MAX_COMPARED]}
        values = snapshot_parameters(event.live_module, names)
        self._ruled_out = self._values.get(event.model, values) != values
        self._values[event.model] = values

    def _count_step(self, event: StepTaken) -> Evidence | None:
        called, self._called = self._called, NO_REFS
        self._ruled_out = bool(event.with_gradient) or event.closure or not _is_torch_optimizer(event.optimizer.kind)
        if self._ruled_out or called.isdisjoint(event.parameters):
            return None
        self._steps[event.optimizer] += 1
        self._latest = event
        return self._evidence(MIN_STEPS)

    def _evidence(self, min_steps: int) -> Evidence | None:
        step = self._latest
        if step is None or self._reported or self._steps[step.optimizer] < min_steps:
            return None
        self._reported = True
        return Evidence(
            message=f"`{step.optimizer.name}.step()` was called {self._steps[step.optimizer]} times after calls of its "
            "model, but `backward()` was never called: no parameter has had a gradient.",
            location=step.location,
            first_update=0,
        )


def _is_torch_optimizer(kind: str) -> bool:
    """Return True for the name of a PyTorch optimizer: it does nothing without gradients."""
    import torch

    return hasattr(torch.optim, kind)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the first step of a loop that computes a loss, in a file without any backward pass."""
    steps = [each for each in source.ops(OpKind.STEP) if each.loops and _is_candidate(each)]
    if not steps:
        return
    uncalled = [each.value for each in source.nodes_of(ast.Expr) if _last_attribute(each) == "backward"]
    if _has_backward(source, uncalled) or uses_gradients({"this file": source.tree}):
        return
    for step in steps:
        inside = source.ops_in_loop(step.loops[-1], root=step.entry_point)
        loss = next(
            (
                each
                for each in inside
                if each.kind is OpKind.LOSS and _belongs_to(each, step) and each.same_iteration_as(step)
            ),
            None,
        )
        if loss is None or any(_may_run_backward(each, loss, step) for each in inside):
            continue
        yield Hit(
            message=f"`{ast.unparse(step.node)}` has no gradients: nothing in this file calls `backward()`.",
            node=uncalled[0] if uncalled else step.node,
            related=((loss.node, "the loss"),),
            fix=_add_parentheses(source, uncalled[0]) if uncalled else _insert_backward(source, loss, step),
        )
        return


def _last_attribute(statement: ast.Expr) -> str:
    return getattr(statement.value, "attr", "")


def _add_parentheses(source: SourceFile, uncalled: ast.expr) -> Fix:
    end = source.text.span(uncalled)[1]
    return Fix((Edit(end, end, "()"),), safe=False, description="Call `backward()`")


def _is_candidate(step: Op) -> bool:
    optimizer = step.subject
    return (
        optimizer.kind is ValueKind.OPTIMIZER
        and not step.inputs
        and step.value is None
        and MANAGED not in optimizer.facts
        and bool(optimizer.models())
    )


def _has_backward(source: SourceFile, uncalled: list[ast.expr]) -> bool:
    """Return True if any other name or string in the file contains "backward"."""
    if "backward" not in source.text.source:
        return False
    nodes = (node for node in source.nodes if all(node is not each for each in uncalled))
    words = (getattr(node, field, None) for node in nodes for field in ("attr", "id", "name", "value", "arg"))
    return any("backward" in word for word in words if isinstance(word, str))


def _belongs_to(loss: Op, step: Op) -> bool:
    """Return True if the graph of a loss leads to a model whose parameters the optimizer holds."""
    result = loss.result
    if result is None or loss.grad is not True:
        return False
    return any(each.kind is ValueKind.MODEL and step.subject.covers(each) for each in result.autograd_graph())


def _may_run_backward(operation: Op, loss: Op, step: Op) -> bool:
    """Return True if code outside this file gets the loss, the model or the optimizer, and may call ``backward()``."""
    if operation.kind is not OpKind.ESCAPE:
        return False
    return any(
        passed.may_alias(step.subject)
        or passed.covers(step.subject)
        or any(value is loss.result for value in passed.ancestors())
        for passed in operation.inputs
    )


def _insert_backward(source: SourceFile, loss: Op, step: Op) -> Fix | None:
    """Return the fix that calls ``backward()`` before the step; None unless the loss has a name."""
    assign, step_statement = loss.statement, step.statement
    is_plain = isinstance(assign, ast.Assign) and assign.value is loss.node and isinstance(assign.targets[0], ast.Name)
    if not is_plain or step_statement is None or loss.function is not step.function or step.branches != loss.branches:
        return None
    name = source.text.segment(assign.targets[0]) if isinstance(assign, ast.Assign) else ""
    edit = source.text.insert_before(step_statement, f"{name}.backward()")
    return Fix((edit,), safe=False, description=f"Insert `{name}.backward()`") if edit else None


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and each ``loss.backward`` without a call."""
    yield from find(source)
    yield from uncalled(source, "backward", "no gradient is computed")


RULE = Rule(required_words=(".step(|.backward", "optim|.backward", "oss|entropy|.backward"), find=find_all)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(loop.settings["precision"] != "float16", "A GradScaler needs a gradient.", precision="float32")
    loop.leave_out(Piece.BACKWARD)


BAD = """
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD013",
    title="Optimizer steps without any backward pass",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(BAD, {"optimizer.step()": "loss.backward()\n    optimizer.step()"}),
    fix="Call loss.backward() before each step.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
