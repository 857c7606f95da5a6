"""A step uses a gradient that a step has used already, and nothing was added since.

What you see
    As with a learning rate that is too high: the loss falls faster at first, and then no further; with two optimizers
    one part of the model is unstable. Adam's averages weigh one batch twice.

Why it happens
    A step leaves the gradients as they are, and a second one finds them. Often one step stands in a helper or behind
    ``scaler.step(optimizer)`` and one in the loop, or two optimizers were built over a shared encoder.

Fix
    Step once for each window. Where two optimizers share parameters, give them to one, or clear and run backward
    between the steps.

When this is fine
    A backward, a change by hand or clearing between two steps makes it another gradient; a gradient that is zero
    everywhere moves nothing, and initialises an optimizer's state; a step with a closure computes anew; frozen
    parameters with an old gradient are OPT003. It is told the second time a line does it: some people let two
    optimizers share a gradient on purpose, who silence it there.

References
    Optimizer.step, https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.step.html
    MishaLaskin/curl#28, "encoder updated twice for curl loss": "the parameters of critic.encoder are carried by both
    optimizer", "updated twice using the same gradient", https://github.com/MishaLaskin/curl/issues/28
    mzolfaghari/ECO-pytorch#1, "fixes duplicate optimizer step": "Original code performed step even outside the
    iter_size 'if' clause. Accuracy improves", https://github.com/mzolfaghari/ECO-pytorch/pull/1
"""

from __future__ import annotations

import ast
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from trueloop.analysis.abstract_value import MANAGED, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, CodePosition
from trueloop.core.formatting import format_count
from trueloop.core.source_text import Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import NONE, Event, ModelCalled, Ref, Refs, StepTaken
from trueloop.tracing.object_facts import Facts

TIMES: Final = 2  # once might be a probe
LATEST: Final = 4  # steps that are remembered: two rounds of two optimizers
WAITING: Final = (
    OpKind.ESCAPED,
    OpKind.BACKWARD,
    OpKind.CLEARED,
    OpKind.GRADIENTS,
    OpKind.STATE_LOADED,
    OpKind.CLIPPED,
    OpKind.UNSCALED,
)
"""Between two steps: the second one may use something else."""


class Detector(failure.Detector):
    """Every step tells which of its gradients nothing was added to since they were used."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (ModelCalled, StepTaken)

    def __init__(self) -> None:
        self._again: Counter[CodePosition | None] = Counter()
        self._latest: deque[tuple[tuple[Ref, ...], tuple[float, ...]]] = deque(maxlen=LATEST)
        """Parameters and the norms of their gradients, at the latest steps."""
        self._models = Facts[Any, Refs]()
        """Parameters of each model that was called and is there still."""

    def observe(self, event: ModelCalled | StepTaken) -> Evidence | None:
        """Return evidence where a line has done so again and again."""
        if isinstance(event, ModelCalled):
            if self._models.get(event.live) is not event.parameters:
                self._models.put(event.live, event.parameters)
            return None
        moved = event.used - event.zero - event.frozen if event.used and not event.closure else NONE
        if moved and event.norms:
            moved -= self._others(event)
        if moved:
            called = NONE.union(*self._models.facts())
            moved &= called if called & event.parameters else moved  # what no model has any longer: OPT002
        self._latest.append((event.graded, event.norms))
        if not moved:
            return None
        self._again[event.place] += 1
        if self._again[event.place] < TIMES:
            return None
        return Evidence(
            message=f"This step used {format_count(len(moved), 'gradient')} that a step had used before, with nothing added "
            f"since, {self._again[event.place]} times.",
            location=event.place,
            related=((event.used_at, "used here before"),) if event.used_at else (),
        )

    def _others(self, event: StepTaken) -> Refs:
        """Return the parameters whose gradient has another norm than before: by ``grad.data``, without a trace."""
        before: dict[Ref, float] = {}
        for parameters, norms in self._latest:
            before.update(zip(parameters, norms, strict=False))
        now = zip(event.graded, event.norms, strict=False)
        return frozenset(each for each, norm in now if before.get(each, norm) != norm)


def find(source: Source) -> Iterator[Hit]:
    """Yield each step of an optimizer that comes right behind one of the same optimizer, in the same turn."""
    last: dict[tuple[int, int], Op] = {}
    for each in source.operations:
        if each.act in WAITING:
            last.clear()
        if each.act is not OpKind.STEPPED or each.value is not None or not _known(each):
            continue
        key = each.root, id(each.subject)
        first, last[key] = last.get(key), each
        if first is None or not first.beside(each) or not first.implied_by(each) or first.node is each.node:
            continue
        if not any(done.act is OpKind.BACKWARD and done.beside(first) for done in source.run_of(each)[: each.index]):
            continue
        yield Hit(
            message="The optimizer steps a second time with the gradients it has just used.",
            node=each.node,
            related=((first.node, "they are used here"),),
            fix=_stepped_once(source, each),
        )


def _known(step: Op) -> bool:
    optimizer, plain = step.subject, isinstance(step.statement, ast.Expr) and step.statement.value is step.node
    return plain and optimizer.kind is Kind.OPTIMIZER and MANAGED not in optimizer.facts and not optimizer.either


def _stepped_once(source: Source, step: Op) -> Fix | None:
    """Return the fix: the line goes."""
    gone = None if step.things else source.taken_out(step)
    return Fix((gone,), safe=False, words="Step once") if gone else None


RULE = Rule(words=("backward(", ".step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    step = "scaler.update()" if loop.settings["precision"] == "float16" else "optimizer.step()"
    loop.replace(Piece.UPDATE, step, f"{step}\noptimizer.step()")


FAILURE = Failure(
    code="OPT005",
    title="A gradient is stepped twice",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.step()
    optimizer.zero_grad()
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    fix="Step once for each window, and let no two optimizers step the same gradient.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
