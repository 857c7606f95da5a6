"""The autograd graphs of past updates stay in memory, so memory grows with every update.

What you see
    Memory grows slowly and steadily, until the process or the GPU runs out of memory. Training becomes slower.

Why it happens
    A loss refers to the graph of its operations. If you store the loss or add it to a sum, the graph stays in memory.

Fix
    Store numbers instead of tensors with a graph.

        total += loss.item()
        losses.append(loss.detach())
        hidden = hidden.detach()  # between two parts of a long sequence

    Evaluate, and average weights, under ``torch.no_grad()``. The linter's fix needs ``--unsafe-fixes``.

When this is fine
    - You store ``loss.item()`` or ``loss.detach()``, which have no graph.
    - You need the graphs for a while, for truncated backpropagation through time or the policy gradient of an episode.
    - You store only the last few losses in a deque, or only the best loss.
    - A meter converts each value to a number, or detaches its average, or starts again after some updates.
    - The list is created in the same update, such as the skip connections in a ``forward``, or the losses of the
      micro-batches of one update.

How it is detected
    In a run, the sanitizer checks whether the graphs of eight or more updates, all at least twenty updates old, are
    still in memory after a garbage collection: the graphs of model outputs or, without a model, of losses. It also
    finds a parameter that has a graph, because a teacher model averages the student's weights with gradients enabled;
    it then reports the line that calls the teacher. The linter reports a tensor that is added to a list, a dictionary
    or a sum, or mixed into an average, in every iteration after ``backward()`` has used its graph, if nothing in the
    file empties the list, dictionary, sum or average. It follows a loss into meters, also through keyword arguments
    and into other files. The result of an evaluation between updates, with gradients enabled, is reported where a
    container keeps one of every epoch.

References
    PyTorch FAQ "My model reports cuda runtime error(2): out of memory", on not accumulating history across the training
    loop, https://docs.pytorch.org/docs/stable/notes/faq.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.evaluation_loops import find_loader
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.memory.graph_kept.evaluation_results import kept_results, results_of
from trueloop.failures.memory.graph_kept.growing_containers import (
    detach_fix,
    goes_over_networks,
    has_few_iterations,
    holds_graph,
    is_growing,
    is_within_update,
)
from trueloop.failures.memory.graph_kept.mixed_values import keeps_old_value
from trueloop.failures.memory.graph_kept.running_sums import running_sums
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import GraphsAlive, ModelCalled

MIN_UPDATES = 64  # in shorter runs no graph is old enough


class Detector(BaseDetector):
    """Reports old graphs that are all still in memory, at the line that stores them."""

    def __init__(self) -> None:
        self._updates = 0
        self._calls = 0

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the call of the model."""
        self._updates = event.update
        self._calls += 1

    def on_graphs_alive(self, event: GraphsAlive) -> Evidence:
        """Return evidence if old graphs are still in memory."""
        if event.parameter:
            return Evidence(
                message=f"The graph of {event.parameter} grows with every update: it still contains {event.count} "
                f"earlier values of the parameter, the oldest from update {event.oldest_update}.",
                location=event.location,
                fix="Update the parameter under torch.no_grad().",
                first_update=event.oldest_update,
                dedup_key=event.parameter,
            )
        owner = f" They are stored in {event.holders[0]}." if event.holders else ""
        return Evidence(
            message=f"{event.count} autograd graphs of past updates are still in memory; the oldest was built "
            f"at update {event.oldest_update}, {event.update - event.oldest_update} updates ago.{owner}",
            location=event.stored_at or event.location,
            related=((event.location, "the graphs were built here"),) if event.stored_at and event.location else (),
            first_update=event.oldest_update,
            dedup_key="graphs",
        )

    def inconclusive(self) -> str:
        """Return a reason if the run was too short to have old graphs."""
        if not self._calls:
            return "no model was called"
        return "" if self._updates >= MIN_UPDATES else f"the run had fewer than {MIN_UPDATES} updates"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each tensor that a loop adds to a growing container although a backward pass has used its graph."""
    backwards, steps = source.ops(OpKind.BACKWARD), source.ops(OpKind.STEP)
    if not backwards or any(getattr(each.func, "attr", "") == "detach_" for each in source.all_calls):
        return  # a tensor that is detached in place may be stored
    for store in source.ops(OpKind.STORE_ITEM, OpKind.SET_ATTRIBUTE):
        for loop in reversed(store.loops):
            if (
                loop.runs_at_most_once()
                or is_within_update(loop, store.loops, steps)
                or goes_over_networks(loop.node)
                or has_few_iterations(source, loop.node)
                or not any(each.is_inside(loop) for each in backwards)
                or not is_growing(source, store, loop)
            ):
                continue
            backward = _last_backward(source, store, loop)
            if backward is not None and not _is_once_per_epoch(store, backward, loop):
                yield Hit(
                    message=f"`{ast.unparse(store.node)}` keeps another autograd graph in memory in every iteration, "
                    "although no later `backward()` uses it.",
                    node=store.node,
                    related=((backward.node, "only this `backward()` uses the graph"),),
                    fix=detach_fix(source, store, {id(each) for each in backward.subject.autograd_graph()}),
                )
            break


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, kept results of evaluations, and sums of losses each of which gets a ``backward()``."""
    found = list(find(source))
    for store, call in kept_results(source):
        if all(each.node is not store.node for each in found):
            found.append(_kept_result(source, store, call))
    yield from found
    for total, losses, backward in running_sums(source):
        if all(each.node.lineno != total.lineno for each in found):
            ends = [source.text.span(each)[1] for each in losses]
            yield Hit(
                message=f"`{ast.unparse(total)}` keeps another autograd graph in memory in every iteration, although "
                "no later `backward()` uses it.",
                node=total,
                related=((backward, "only this `backward()` uses the graph"),),
                fix=Fix(tuple(Edit(end, end, ".detach()") for end in ends), safe=False, description="Detach the loss"),
            )


def _kept_result(source: SourceFile, store: Op, call: Op) -> Hit:
    return Hit(
        message=f"`{ast.unparse(store.node)}` keeps the autograd graph of every evaluation in memory, which no "
        "`backward()` uses: the model is evaluated with gradients enabled.",
        node=store.node,
        related=((call.node, "the model is evaluated here, outside of `torch.no_grad()`"),),
        fix=detach_fix(source, store, results_of(source, call)),
    )


def _is_once_per_epoch(store: Op, backward: Op, loop: Loop) -> bool:
    """Return True for a ``for`` loop that stores once after all batches: few graphs, which ``backward()`` freed."""
    inner = backward.loops[len(store.loops) :]
    is_own = isinstance(loop.node, ast.For) and loop.node is store.loops[-1].node
    return is_own and any(find_loader(each) is not None for each in inner)


def _last_backward(source: SourceFile, store: Op, loop: Loop) -> Op | None:
    """Return the backward pass of the stored tensor; None if there is none, or one goes through the container."""
    backwards = [each for each in source.ops_of_run(store) if each.kind is OpKind.BACKWARD]
    container = {id(each) for each in store.inputs} if keeps_old_value(source, store) else set[int]()
    container |= {id(store.subject), id(store.result)} if store.kind is OpKind.STORE_ITEM else set()
    if any(id(part) in container for each in backwards for part in each.subject.autograd_graph()):
        return None
    for each in backwards:
        arguments = [each.arguments.get(name) for name in ("retain_graph", "create_graph", "1", "2")]
        retains = any(value is not None and value.constant(default=True) is not False for value in arguments)
        if (
            each.is_inside(loop)
            and not retains
            and any(holds_graph(value, _values_in_graph(source, each, loop)) for value in store.inputs)
        ):
            return each
    return None


def _values_in_graph(source: SourceFile, backward: Op, loop: Loop) -> set[int]:
    """Return the ids of the loss of a backward pass, and of the outputs and losses of this iteration in its graph."""
    ids = {id(backward.subject)}
    for each in backward.subject.autograd_graph():
        op = source.created_by.get(id(each))
        if op is not None and op.kind in (OpKind.MODEL_CALL, OpKind.LOSS) and op.grad is True and op.is_inside(loop):
            ids.add(id(each))
    return ids


RULE = Rule(required_words=(".backward(",), find=find_all)


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
