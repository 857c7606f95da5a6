"""``retain_graph=True`` keeps the autograd graph of every update for a second ``backward()`` that never follows.

What you see
    The peak memory is up to twice as large as necessary, because the graph of the previous update is still in memory
    while the next graph is built. The memory does not grow from update to update.

Why it happens
    PyTorch cannot know whether a second ``backward()`` will follow. Often the argument was added because of the error
    "Trying to backward through the graph a second time" and is no longer needed.

Fix
    Pass ``retain_graph=True`` only if another ``backward()`` through the same graph follows.

        loss.backward()  # not loss.backward(retain_graph=True)

When this is fine
    - Several losses use the same layers, and all ``backward()`` calls except the last retain the graph.
    - In a GAN, the discriminator and the generator both use the graph of the generated samples.
    - You use truncated backpropagation through time, and the parts of the sequence overlap.
    - You build a graph once and use it in every update.
    - Only some updates need the graph a second time, for a penalty.
    - You pass ``create_graph=True``, which also retains the graph.

How it is detected
    In a run, the sanitizer reports a line that retained graphs in twelve different updates, if all of them were freed
    without a second backward pass. The linter reports a loop that builds the full graph again in every iteration, from
    models in the file, if nothing else runs a backward pass through it.

References
    torch.Tensor.backward, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix, dotted_name, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.memory.graph_retained.graph_lifetime import is_built_each_iteration, share_graph
from trueloop.failures.teaching_script import Piece, replacement_injector
from trueloop.tracing.events import BackwardStarted, Event

MIN_GRAPHS: Final = 12  # unused graphs of a line, in as many updates: a penalty may use a graph every few updates only


@dataclass(slots=True, kw_only=True, eq=False)
class GraphsRetained(Event):
    """RARE. A line always calls ``backward(retain_graph=True)``, but no graph was run backward a second time."""

    count: int
    """Number of graphs that were freed without a second backward pass, at least `MIN_GRAPHS`."""


class Detector(BaseDetector):
    """Reports each line whose retained graphs were freed without a second backward pass."""

    def __init__(self) -> None:
        self._updates: set[int] = set()

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Record the start of the backward pass."""
        if event.retain_graph and not event.create_graph and len(self._updates) <= MIN_GRAPHS:
            self._updates.add(event.update)

    def on_graphs_retained(self, event: GraphsRetained) -> Evidence:
        """Return the evidence of a line that retains graphs which no second backward pass used."""
        return Evidence(
            message=f"This line retained {event.count} autograd graphs for a second `backward()`, but none "
            "followed before they were freed.",
            location=event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if graphs were retained in too few updates."""
        too_few = 0 < len(self._updates) <= MIN_GRAPHS  # the next update judges the last of these graphs
        return f"graphs were retained in fewer than {MIN_GRAPHS + 1} fully traced updates" if too_few else ""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each backward pass that retains a graph which is new in every iteration and not used again."""
    for backward in source.ops(OpKind.BACKWARD):
        if not backward.loops or not _retains_graph(source, backward) or _is_one_of_several(backward):
            continue
        if _is_used_again(source, backward) or not is_built_each_iteration(
            source, backward.subject, backward, backward.loops[-1]
        ):
            continue
        yield Hit(
            message=f"`{ast.unparse(backward.node)}` retains the autograd graph, but no other `backward()` uses it "
            "before the next iteration builds a new graph.",
            node=backward.node,
            fix=_remove_retain_graph(source, backward),
        )


def _is_one_of_several(backward: Op) -> bool:
    """Return True for an item of the values that a loop iterates over, which may have one graph in common."""
    root = dotted_name(getattr(backward.node.func, "value", None))
    targets = [each.node.target for each in backward.loops if isinstance(each.node, ast.For)]
    return any(root == dotted_name(each) != "" for target in targets for each in walk(target))


def _retains_graph(source: SourceFile, backward: Op) -> bool:
    position = "2" if source.qualified_name(backward.node.func) == "torch.autograd.backward" else "1"
    arguments = backward.arguments
    retain = arguments.get("retain_graph") or (arguments.get(position) if len(backward.node.args) > 1 else None)
    create = arguments.get("create_graph") or arguments.get(str(int(position) + 1))
    return retain is not None and retain.constant() is True and (create is None or create.constant() is False)


def _is_used_again(source: SourceFile, backward: Op) -> bool:
    """Return True if a later operation may run a backward pass through the same graph."""
    for each in source.ops_of_run(backward):
        may_run = each.kind in (OpKind.BACKWARD, OpKind.ESCAPE) or each.name in (
            "torch.autograd.grad",
            "torch.autograd.backward",
        )
        if may_run and each.index > backward.index:
            values = (each.subject, *each.inputs, *each.arguments.values())
            if share_graph(backward.subject, values, source):
                return True
    return False


def _remove_retain_graph(source: SourceFile, backward: Op) -> Fix | None:
    """Return the fix that removes ``retain_graph`` from the call."""
    call = backward.node
    label = "Remove retain_graph"
    if not isinstance(call, ast.Call):
        return None
    text, content = source.text, source.text.content
    if not call.keywords and [getattr(each, "value", "") for each in call.args] == [None, True]:
        start, end = text.span(call.args[0])[0], text.span(call.args[1])[1]
        return Fix((Edit(start, end, ""),), safe=True, description=label) if content[end : end + 1] == b")" else None
    retain = next((each for each in call.keywords if each.arg == "retain_graph"), None)
    if retain is None:
        return None
    start, end = text.span(retain)
    before = [end for each in (*call.args, *call.keywords) if (end := text.span(each)[1]) <= start]
    after = content[end : end + 1] == b")"
    if before and after and b"#" not in content[max(before) : start]:
        return Fix((Edit(max(before), end, ""),), safe=True, description=label)
    is_only = not before and after and content[start - 1 : start] == b"("
    return Fix((Edit(start, end, ""),), safe=True, description=label) if is_only else None


RULE = Rule(required_words=(".backward(", "retain_graph|None, True"), find=find)

BAD = """
import torch
from torch import nn

x = torch.rand(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward(retain_graph=True)
    optimizer.step()
"""

FAILURE = Failure(
    code="MEM002",
    title="retain_graph=True without a second backward",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"loss.backward(retain_graph=True)": "loss.backward()"}),
    fix="Remove retain_graph=True, or pass it only if another backward() through the same graph follows.",
    rule=RULE,
    detector=Detector,
    inject=replacement_injector(Piece.BACKWARD, "backward()", "backward(retain_graph=True)"),
)
