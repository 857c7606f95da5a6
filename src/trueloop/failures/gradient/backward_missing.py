"""An optimizer steps again and again, and no backward is ever run.

What you see
    The loss stays where it began: the weights are those of the initialisation, or of the checkpoint. Learning rate,
    data and model make no difference.

Why it happens
    A parameter without a gradient is passed over by every optimizer, so a step over none that has one is a step that
    does nothing. GradScaler alone asks for gradients.

Fix
    Run ``loss.backward()`` between the loss and the step.

When this is fine
    Stepping through a schedule to plot it or to resume it, where no model is called; an optimizer for a part that is
    trained later, while others are (GRD005 tells of that); gradients written by hand or by ``torch.autograd.grad``;
    closures; an optimizer of one's own that needs no gradients; weights that are moved by hand; batches that are
    skipped at first. So not one backward has been run, in eight steps of an optimizer of torch's, or four where the run
    ends earlier, with a call of a model of its parameters, with gradients on, before each of them; no parameter had a
    gradient, and none has changed. The text tells it where a loop calls a model, computes a loss and steps, and nothing
    in the file has to do with a backward or with gradients, nor gets hold of that loss; ``loss.backward`` without
    parentheses is none.

References
    Optimizing Model Parameters, https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
    Goingqs/PyramidBox#7, "No 'loss.backward()' during training?", https://github.com/Goingqs/PyramidBox/issues/7
    aalto-intelligent-robotics/sivl#2, "No loss.backward()": "I had accidentally deleted that row when cleaning up
    code", https://github.com/aalto-intelligent-robotics/sivl/issues/2
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from trueloop.analysis.abstract_value import MANAGED, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import NONE, Event, ModelCalled, Ref, Refs, StepTaken, WatchEnded
from trueloop.tracing.parameter_snapshot import glimpsed
from trueloop.tracing.program_text.step_calls import gradients_used

ENOUGH = 8  # steps of one optimizer, while the run goes on
FEWEST = 4  # where it ends
LOOKED_AT = 4  # parameters of a model whose values are compared


class Detector(failure.Detector):
    """Counts the steps over nothing that come behind a call of a model, as long as no backward was run."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (ModelCalled, StepTaken, WatchEnded)

    def __init__(self) -> None:
        self._called: Refs = NONE
        """Parameters of the models that made a graph since the latest step."""
        self._steps = Counter[Ref]()
        self._values: dict[Ref, dict[str, tuple[Any, ...]]] = {}
        self._over = False
        """Weights change, or gradients are there, without a backward."""
        self._latest: StepTaken | None = None
        self._told = False

    def observe(self, event: ModelCalled | StepTaken | WatchEnded) -> Evidence | None:
        """Return evidence at a step, or where the run ends."""
        if event.micro or self._over:  # the usual case
            return None
        if isinstance(event, StepTaken):
            return self._stepped(event)
        if isinstance(event, WatchEnded):
            return self._evidence(FEWEST)
        if event.has_graph:
            self._called = event.parameters | self._called
            if self._steps:
                self._look(event)
        return None

    def _look(self, event: ModelCalled) -> None:
        names = {ref.name for ref in sorted(event.parameters, key=lambda ref: ref.name)[:LOOKED_AT]}
        values = glimpsed(event.live, names)
        self._over = self._values.get(event.model, values) != values
        self._values[event.model] = values

    def _stepped(self, event: StepTaken) -> Evidence | None:
        called, self._called = self._called, NONE
        self._over = bool(event.with_gradient) or event.closure or not _of_torch(event.optimizer.kind)
        if self._over or called.isdisjoint(event.parameters):
            return None
        self._steps[event.optimizer] += 1
        self._latest = event
        return self._evidence(ENOUGH)

    def _evidence(self, enough: int) -> Evidence | None:
        step = self._latest
        if step is None or self._told or self._steps[step.optimizer] < enough:
            return None
        self._told = True
        return Evidence(
            message=f"{step.optimizer.name} has stepped {self._steps[step.optimizer]} times, each time after its model "
            "was called, and no backward was run: no parameter has had a gradient.",
            location=step.place,
            update=0,
        )


def _of_torch(kind: str) -> bool:
    """True for the name of an optimizer that does nothing without gradients."""
    import torch

    return hasattr(torch.optim, kind)


def find(source: Source) -> Iterator[Hit]:
    """Yield the first step of a loop that computes a loss, in a file without any backward."""
    steps = [each for each in source.acts(OpKind.STEPPED) if each.loops and _plain(each)]
    if not steps:
        return
    named = [each.value for each in source.nodes if isinstance(each, ast.Expr) and _last(each) == "backward"]
    if _has_backward(source, named) or gradients_used({"this file": source.tree}):
        return
    for step in steps:
        inside = source.within(step.loops[-1], root=step.root)
        loss = next(
            (each for each in inside if each.act is OpKind.LOSS and _of(each, step) and each.beside(step)), None
        )
        if loss is None or any(_gets(each, loss, step) for each in inside):
            continue
        yield Hit(
            message="The optimizer steps, and nothing in this file runs backward: no parameter has a gradient.",
            node=named[0] if named else step.node,
            related=((loss.node, "the loss is computed here"),),
            fix=_called(source, named[0]) if named else _added(source, loss, step),
        )
        return


def _last(statement: ast.Expr) -> str:
    return getattr(statement.value, "attr", "")


def _called(source: Source, named: ast.expr) -> Fix:
    end = source.text.span(named)[1]
    return Fix((Edit(end, end, "()"),), safe=False, words="Call it")


def _plain(step: Op) -> bool:
    optimizer = step.subject
    return (
        optimizer.kind is Kind.OPTIMIZER
        and not step.things
        and step.value is None
        and MANAGED not in optimizer.facts
        and bool(optimizer.models())
    )


def _has_backward(source: Source, named: list[ast.expr]) -> bool:
    """True where anything else in the file has to do with a backward, by whatever name it goes."""
    if "backward" not in source.text.source:
        return False
    nodes = (node for node in source.nodes if all(node is not each for each in named))
    words = (getattr(node, field, None) for node in nodes for field in ("attr", "id", "name", "value", "arg"))
    return any("backward" in word for word in words if isinstance(word, str))


def _of(loss: Op, step: Op) -> bool:
    """True where a loss has a graph that leads to a model the optimizer holds."""
    result = loss.result
    if result is None or loss.grad is not True:
        return False
    return any(each.kind is Kind.MODEL and step.subject.covers(each) for each in result.graph())


def _gets(each: Op, loss: Op, step: Op) -> bool:
    """True where code that is not shown gets the loss, or the model or optimizer, and may run backward."""
    if each.act is not OpKind.ESCAPED:
        return False
    return any(
        given.may_be(step.subject) or given.covers(step.subject) or any(part is loss.result for part in given.lineage())
        for given in each.things
    )


def _added(source: Source, loss: Op, step: Op) -> Fix | None:
    """Return the fix: a backward in front of the step, where the loss has a name."""
    named = loss.statement
    plain = isinstance(named, ast.Assign) and named.value is loss.node and isinstance(named.targets[0], ast.Name)
    behind = step.statement
    if not plain or behind is None or loss.function is not step.function or step.branches != loss.branches:
        return None
    name = source.text.of(named.targets[0]) if isinstance(named, ast.Assign) else ""
    edit = source.text.before(behind, f"{name}.backward()")
    return Fix((edit,), safe=False, words=f"Insert {name}.backward()") if edit else None


RULE = Rule(words=(".step(", "optim", "oss|entropy"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(loop.settings["precision"] != "float16", "A GradScaler wants a gradient.", precision="float32")
    loop.leave_out(Piece.BACKWARD)


FAILURE = Failure(
    code="GRD013",
    title="Steps are taken without any backward",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
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
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
""",
    fix="Run backward from the loss before each step.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
