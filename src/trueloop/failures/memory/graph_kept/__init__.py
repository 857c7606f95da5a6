"""Graphs of past updates stay in memory, so memory grows with every update.

What you see
    Memory climbs slowly and steadily; hours into the run the process or the GPU runs out of it. Training slows down as
    it goes.

Why it happens
    A loss is a tensor like any other: storing it in a list, or adding it to a running total, is allowed. It keeps the
    graph that computed it alive.

Fix
    Store numbers instead of tensors with a graph.

        total += loss.item()
        losses.append(loss.detach())
        hidden = hidden.detach()  # between the windows of a recurrent net

    Put evaluation and the averaging of weights under ``torch.no_grad()``. The fix of the linter cuts a graph, so it
    needs ``--unsafe-fixes``.

When this is fine
    - ``loss.item()`` and ``loss.detach()``, which store only a number.
    - Truncated backpropagation through time, and policy gradients over an episode, which keep graphs for a while.
    - A deque of the last few losses, or the best loss so far, which keep few graphs.
    - A list that the same iteration creates, such as the skip connections of a ``forward``.

How it is detected
    At run time, by markers that are freed with each graph: the graphs of eight or more different updates, made at least
    twenty updates ago, were all still there after a garbage collection, and none had been freed. Graphs behind the
    first parameter of a model count as well: it has them where a teacher averages its student with gradients enabled,
    and the reported line is the call of the teacher. In the text: a tensor is added to a list, a dictionary or a total
    in every iteration after a backward without ``retain_graph`` has used its graph, and nothing in the file empties the
    container.

References
    PyTorch FAQ "My model reports cuda runtime error(2): out of memory", on not accumulating history across the training
    loop, https://docs.pytorch.org/docs/stable/notes/faq.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.memory.graph_kept.growing_containers import detach_fix, holds_graph, is_growing
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import GraphsAlive, ModelCalled

MIN_UPDATES = 64  # in fewer no graph is old enough


class Detector(BaseDetector):
    """Reports old graphs that are all alive, at the line that stores them."""

    subscribes_to = (ModelCalled, GraphsAlive)

    def __init__(self) -> None:
        self._updates = 0
        self._calls = 0

    def observe(self, event: ModelCalled | GraphsAlive) -> Evidence | None:
        """Return evidence where old graphs are alive."""
        if isinstance(event, GraphsAlive):
            return self._evidence(event)
        self._updates = event.update
        self._calls += 1
        return None

    def _evidence(self, event: GraphsAlive) -> Evidence:
        if event.parameter:
            return Evidence(
                message=f"{event.parameter} is computed from {event.count} of its earlier values that were checked, "
                f"the oldest from update {event.oldest_update}: the graph behind it grows with every update.",
                location=event.location,
                fix="Update it under torch.no_grad().",
                first_update=event.oldest_update,
                dedup_key=event.parameter,
            )
        holder = f" They are held by {event.holders[0]}." if event.holders else ""
        return Evidence(
            message=f"All {event.count} graphs that were checked are still in memory, the oldest since update "
            f"{event.oldest_update}: {event.update - event.oldest_update} updates ago.{holder}",
            location=event.stored_at or event.location,
            related=((event.location, "the graphs were built here"),) if event.stored_at and event.location else (),
            first_update=event.oldest_update,
            dedup_key="graphs",
        )

    def inconclusive(self) -> str:
        """Return a reason where the run was too short for a graph to be old."""
        if not self._calls:
            return "no model was called"
        return "" if self._updates >= MIN_UPDATES else f"the run had fewer than {MIN_UPDATES} updates"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each tensor that a loop adds to a growing container although a backward has used its graph."""
    backwards = source.ops(OpKind.BACKWARD)
    if not backwards or any(getattr(each.func, "attr", "") == "detach_" for each in source.all_calls):
        return  # a tensor that is detached in place may be stored
    for store in source.ops(OpKind.STORE_ITEM, OpKind.SET_ATTRIBUTE):
        for loop in reversed(store.loops):
            if (
                loop.runs_at_most_once()
                or not any(each.is_inside(loop) for each in backwards)
                or not is_growing(source, store, loop)
            ):
                continue
            backward = _last_backward(source, store, loop)
            if backward is not None:
                yield Hit(
                    message=f"`{ast.unparse(store.node)}` keeps a graph in memory in every iteration of the "
                    "loop, although no later backward uses it.",
                    node=store.node,
                    related=((backward.node, "the only backward through that graph"),),
                    fix=detach_fix(source, store, {id(each) for each in backward.subject.autograd_graph()}),
                )
            break


def _last_backward(source: SourceFile, store: Op, loop: Loop) -> Op | None:
    """Return the backward through the stored tensor; None if there is none, or one goes through the container."""
    backwards = [each for each in source.ops_of_run(store) if each.kind is OpKind.BACKWARD]
    container = (
        {id(store.subject), id(store.result)}
        if store.kind is OpKind.STORE_ITEM
        else {id(each) for each in store.inputs}
    )
    if any(id(part) in container for each in backwards for part in each.subject.autograd_graph()):
        return None
    for each in backwards:
        arguments = [each.options.get(name) for name in ("retain_graph", "create_graph", "1", "2")]
        retains = any(one is not None and one.constant(default=True) is not False for one in arguments)
        if (
            each.is_inside(loop)
            and not retains
            and any(holds_graph(one, _values_in_graph(source, each, loop)) for one in store.inputs)
        ):
            return each
    return None


def _values_in_graph(source: SourceFile, backward: Op, loop: Loop) -> set[int]:
    """Return the values that a backward certainly goes through: its root, and outputs and losses of this iteration."""
    found = {id(backward.subject)}
    for each in backward.subject.autograd_graph():
        op = source.created_by.get(id(each))
        if op is not None and op.kind in (OpKind.MODEL_CALL, OpKind.LOSS) and op.grad is True and op.is_inside(loop):
            found.add(id(each))
    return found


RULE = Rule(required_words=(".backward(",), find=find)


def inject(loop: TeachingLoop) -> None:
    """Store the loss tensors instead of numbers."""
    loop.replace(Piece.RECORD_LOSS, "loss.item()", "loss")


BAD = """
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
"""

FAILURE = Failure(
    code="MEM001",
    title="Graphs of past updates are kept in memory",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(BAD, {"losses.append(loss)": "losses.append(loss.item())"}),
    fix="Store numbers instead of tensors with a graph: loss.item() or loss.detach().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
