"""Held-out data are measured with graphs that nobody uses.

What you see
    Evaluation takes as much memory as training, sometimes more than there is, and is slower than it need be.

Why it happens
    Eval mode and gradients are two things: ``model.eval()`` does not switch graphs off.

Fix
    Put the sweep under ``torch.no_grad()``, or ``torch.inference_mode()`` where nothing of it is used in training.

When this is fine
    Saliency maps, adversarial evaluation and second-order quantities need the graph, by ``torch.autograd.grad`` or
    backward; and a loss summed over a whole epoch is run backward after the loader's end. Told where a trained model
    in eval mode built a graph for every batch of a loader that is never trained on, and none of them was run backward
    by the time the next one was built. A note, since it is slow, not wrong. The text alone shows a loop over a loader
    in eval mode, outside of ``no_grad``, that asks for no gradients.

References
    PyTorch documentation "Autograd mechanics", section on locally disabling gradient computation,
    https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.queries.evaluation_loops import graphs_for_nothing, without_graphs
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_count
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.evaluation_passes import Sweep, SweepsEnded
from trueloop.tracing.events import Event


class Detector(failure.Detector):
    """Looks for graphs in every sweep."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (SweepsEnded,)

    def __init__(self) -> None:
        self._seen = 0

    def observe(self, event: SweepsEnded) -> list[Evidence]:
        """Return evidence when the next update begins, or the run ends."""
        self._seen += len(event.sweeps)
        return [evidence for sweep in event.sweeps if (evidence := _judge(sweep)) is not None]

    def inconclusive(self) -> str:
        """Return a reason where there was no sweep."""
        return "" if self._seen else "no loader was swept without training"


def _judge(sweep: Sweep) -> Evidence | None:
    first = sweep.calls[0]
    if len(sweep.calls) < 2 or sweep.graph_used:
        return None
    if not all(call.has_graph and call.all_eval and not call.graph_used for call in sweep.calls):
        return None
    return Evidence(
        message=f"{first.model.name} went through {format_count(sweep.batches, 'held-out batch')} in eval mode and built "
        "a graph for each, which nobody used.",
        location=first.place,
        update=sweep.update,
    )


def find(source: Source) -> Iterator[Hit]:
    """Yield the calls that measure a model in eval mode with gradients on."""
    for call in graphs_for_nothing(source):
        yield Hit(
            message="A graph is built for every batch that is measured here, and nothing uses it.",
            node=call.node,
            fix=without_graphs(source, call),
        )


RULE = Rule(words=("eval(", "DataLoader"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(loop.settings["no_grad"], "The evaluation builds graphs already.", no_grad=True)
    loop.unwrap(Piece.EVALUATION, "with torch.no_grad():")


FAILURE = Failure(
    code="EVL003",
    title="Evaluation builds graphs",
    severity=Severity.NOTE,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
""",
    fix="Put the sweep under torch.no_grad() or torch.inference_mode().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
