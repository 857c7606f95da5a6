"""Each backward pass also goes through the graphs of all earlier updates, because a state is not detached.

What you see
    Each update takes longer than the one before, and memory grows. Without ``retain_graph=True`` PyTorch raises
    "Trying to backward through the graph a second time", so the argument was added to avoid the error.

Why it happens
    The hidden state that an RNN returned for one batch is passed in with the next one. It still has the graph of its
    batch, which contains the graph of the batch before it, and so on. Each backward pass goes through all of them, with
    weights that have changed in the meantime.

Fix
    Detach the state between two updates, and remove ``retain_graph=True``.

        output, hidden = rnn(batch, hidden)
        ...
        hidden = tuple(each.detach() for each in hidden)

When this is fine
    - The state is detached after every few batches, as in truncated backpropagation through time.
    - Several losses of one update share a graph.
    - A graph that was built once is used in every update.
    - The size of the graph varies because sequences have different lengths.

How it is detected
    The sanitizer counts the nodes of the graphs that are retained. It reports a line whose graph grew by the same
    number of nodes in 8 updates in a row, if that number is at least half the size of the first graph.

References
    PyTorch tutorial "Sequence Models and LSTM Networks",
    https://docs.pytorch.org/tutorials/beginner/nlp/sequence_models_tutorial.html
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.analysis.program_files import parse_files
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardStarted, Event
from trueloop.tracing.running_code import user_modules


@dataclass(slots=True, kw_only=True, eq=False)
class GraphsGrowing(Event):
    """RARE. The graph of a line's backward pass grew by the same number of nodes in several updates in a row."""

    first: int
    """Nodes of the graph in the first of these updates."""
    last: int
    """Nodes of the graph in the last of these updates."""
    updates: int


class Detector(BaseDetector):
    """Reports each line whose graph grows from update to update."""

    def __init__(self) -> None:
        self._retained = False

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Record whether a graph is retained."""
        self._retained |= event.retain_graph

    def on_graphs_growing(self, event: GraphsGrowing) -> Evidence:
        """Return the evidence of one line."""
        file = event.location.source_location.path if event.location else ""
        state = next(_carried_states([*user_modules().values(), file]), None)
        what = f": `{state[1]}` is passed on with its graph" if state else ""
        return Evidence(
            message=f"Each backward pass also goes through the graphs of all earlier updates{what}. In {event.updates} "
            f"updates the graph grew from {event.first} to {event.last} operations.",
            location=state[0] if state else event.location,
            related=((event.location, "retain_graph=True keeps the graphs"),) if event.location and state else (),
        )

    def inconclusive(self) -> str:
        """Return a reason if no graph was retained."""
        return "" if self._retained else "no backward pass retained its graph"


def _carried_states(files: list[str]) -> Iterator[tuple[SourceLocation, str]]:
    """Yield each state that a call takes and returns: ``out, self.hidden = self.lstm(x, self.hidden)``."""
    for file in dict.fromkeys(filter(None, files)):
        for tree in (parse_files([file]) or {}).values():
            for node in nodes_in(tree, ast.Assign):
                if not isinstance(node.value, ast.Call):
                    continue
                targets = [part for target in node.targets for part in getattr(target, "elts", [target])]
                for name in map(ast.unparse, targets):
                    if any(name in _names(each) for each in node.value.args):
                        yield SourceLocation(file, node.lineno), name


def _names(node: ast.expr) -> set[str]:
    return {ast.unparse(each) for each in nodes_in(node, ast.Name, ast.Attribute)}


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
rnn, head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 1)
parameters = [*rnn.parameters(), *head.parameters()]
hidden = torch.zeros(1, 16, 8)
for step in range(20):
    x = torch.randn(16, 5, 4)
    output, hidden = rnn(x, hidden)
    loss = nn.functional.mse_loss(head(output[:, -1]), x.sum((1, 2)).unsqueeze(1))
    for p in parameters:
        p.grad = None
    loss.backward(retain_graph=True)
    for p in parameters:
        p.data = p.data - 0.01 * p.grad
"""

FAILURE = Failure(
    code="GRD018",
    title="Backward passes go through all earlier updates",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"loss.backward(retain_graph=True)": "loss.backward()\n    hidden = hidden.detach()"}),
    fix="Detach the state after each update: `hidden = hidden.detach()`, and remove `retain_graph=True`.",
    detector=Detector,
)
