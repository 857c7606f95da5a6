"""The graphs of past updates are kept alive, so that memory grows with every update.

What you see
    Memory climbs slowly and steadily; hours into the run the process or the GPU is out of it. Training slows down as it
    goes.

Why it happens
    A loss is a tensor like any other: putting it into a list, or adding it to a running total, is allowed. It brings
    along the graph that made it.

Fix
    Keep numbers: ``total += loss.item()``, ``losses.append(loss.detach())``; ``hidden = hidden.detach()`` between the
    windows of a recurrent net; ``torch.no_grad()`` around evaluation, and around the averaging of weights. The
    linter's fix cuts a graph, so it needs ``--unsafe-fixes``.

When this is fine
    ``loss.item()`` and ``loss.detach()`` keep a number only. Truncated backpropagation through time, policy gradients
    over an episode, a deque of the last few losses and the best loss so far keep some graphs for a while, or few for
    ever. Certain because graphs carry a mark that dies with them: the graphs of eight different updates or more, made
    at least twenty updates ago, were all still there after the garbage collector had run, and none had gone. Those
    behind a model's first parameter count in the same way: it has some where a teacher's average of the student is
    taken with gradients on, and the line told is where the teacher is called. The text alone tells it where a backward
    without ``retain_graph`` has gone through what is added to a list, a dictionary or a total in each turn of a loop,
    so that it is of no more use, and where nothing in the file empties it. A list that the same turn has made, such as
    the skip connections of a ``forward``, is gone with the turn.

References
    PyTorch FAQ "My model reports cuda runtime error(2): out of memory", on not accumulating history across the training
    loop, https://docs.pytorch.org/docs/stable/notes/faq.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.memory.graph_kept.growing_containers import detached, growing, holds
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, GraphsAlive, ModelCalled

ENOUGH = 64  # updates: in fewer no graph is old enough to be missed


class Detector(failure.Detector):
    """Graphs that are all alive are told; who holds them is the line at fault."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (ModelCalled, GraphsAlive)

    def __init__(self) -> None:
        self._updates = 0
        self._calls = 0

    def observe(self, event: ModelCalled | GraphsAlive) -> Evidence | None:
        """Return evidence where old graphs are alive."""
        if isinstance(event, GraphsAlive):
            return self._alive(event)
        self._updates = event.update
        self._calls += 1
        return None

    def _alive(self, event: GraphsAlive) -> Evidence:
        if event.parameter:
            return Evidence(
                message=f"{event.parameter} is computed from {event.count} of its earlier values that were looked at, "
                f"the oldest from update {event.oldest_update}: the graph behind it grows with every update.",
                location=event.location,
                fix="Change it under torch.no_grad().",
                first_update=event.oldest_update,
                dedup_key=event.parameter,
            )
        by = f" They are held by {event.holders[0]}." if event.holders else ""
        return Evidence(
            message=f"All {event.count} graphs that were looked at are still in memory, the oldest since update "
            f"{event.oldest_update}: {event.update - event.oldest_update} updates ago.{by}",
            location=event.stored_at or event.location,
            related=((event.location, "the graphs were made here"),) if event.stored_at and event.location else (),
            first_update=event.oldest_update,
            dedup_key="graphs",
        )

    def inconclusive(self) -> str:
        """Return a reason where the run was too short for a graph to be old."""
        if not self._calls:
            return "no model was called"
        return "" if self._updates >= ENOUGH else f"the run had fewer than {ENOUGH} updates"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield what is put into something that grows in a loop, after a backward in that loop has gone through it."""
    passes = source.ops(OpKind.BACKWARD)
    if not passes or any(getattr(each.func, "attr", "") == "detach_" for each in source.all_calls):
        return  # what is detached in place may be kept
    for kept in source.ops(OpKind.STORE_ITEM, OpKind.SET_ATTRIBUTE):
        for loop in reversed(kept.loops):
            if (
                loop.runs_at_most_once()
                or not any(each.is_inside(loop) for each in passes)
                or not growing(source, kept, loop)
            ):
                continue
            backward = _used_up(source, kept, loop)
            if backward is not None:
                yield Hit(
                    message="What is kept here in every turn of the loop brings along the graph that made it, of which "
                    "there is no more use.",
                    node=kept.node,
                    related=((backward.node, "the only backward through that graph"),),
                    fix=detached(source, kept, {id(each) for each in backward.subject.autograd_graph()}),
                )
            break


def _used_up(source: SourceFile, kept: Op, loop: Loop) -> Op | None:
    """Return the backward through what is kept, if there is one, and none through what it is kept in."""
    backwards = [each for each in source.ops_of_run(kept) if each.kind is OpKind.BACKWARD]
    whole = (
        {id(kept.subject), id(kept.result)} if kept.kind is OpKind.STORE_ITEM else {id(each) for each in kept.inputs}
    )
    if any(id(part) in whole for each in backwards for part in each.subject.autograd_graph()):
        return None
    for each in backwards:
        asked = [each.options.get(name) for name in ("retain_graph", "create_graph", "1", "2")]
        retains = any(one is not None and one.constant(default=True) is not False for one in asked)
        if each.is_inside(loop) and not retains and any(holds(one, _ways(source, each, loop)) for one in kept.inputs):
            return each
    return None


def _ways(source: SourceFile, backward: Op, loop: Loop) -> set[int]:
    """Return what a backward surely goes through: its root, and outputs of models and losses made in this turn."""
    found = {id(backward.subject)}
    for each in backward.subject.autograd_graph():
        made = source.created_by.get(id(each))
        if (
            made is not None
            and made.kind in (OpKind.MODEL_CALL, OpKind.LOSS)
            and made.grad is True
            and made.is_inside(loop)
        ):
            found.add(id(each))
    return found


RULE = Rule(required_words=(".backward(",), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.replace(Piece.RECORD_LOSS, "loss.item()", "loss")


FAILURE = Failure(
    code="MEM001",
    title="Graphs of past updates are kept",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for step in range(80):
    rows = torch.randint(256, (32,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
    losses.append(loss)
print(sum(losses) / len(losses))
""",
    good="""
import torch
from torch import nn

x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for step in range(80):
    rows = torch.randint(256, (32,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(sum(losses) / len(losses))
""",
    fix="Keep numbers instead of tensors with a graph: loss.item() or loss.detach().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
