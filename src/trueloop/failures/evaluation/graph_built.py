"""Evaluation builds autograd graphs that nothing uses.

What you see
    Evaluation needs as much memory as training, may run out of memory, and is slower than necessary.

Why it happens
    ``model.eval()`` changes dropout and BatchNorm layers but does not turn autograd off.

Fix
    Run the evaluation under ``torch.no_grad()``, or under ``torch.inference_mode()`` if training uses no result of it:

        model.eval()
        with torch.no_grad():
            losses = [criterion(model(a), b).item() for a, b in held_out]

When this is fine
    - You need gradients in the evaluation, for saliency maps or adversarial examples.
    - You add up the loss of all batches and call ``backward()`` after the loop.

How it is detected
    In a run, the sanitizer reports a trained model in eval mode that built an autograd graph for every batch of an
    evaluation loader, if no backward pass used any of these graphs. The linter reports a loop over a loader in eval
    mode, outside of ``no_grad``, that uses no gradients. The results are correct but slow, so this is a note.

References
    PyTorch documentation "Autograd mechanics", section on locally disabling gradient computation,
    https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

from collections.abc import Iterator

from trueloop.analysis.queries.evaluation_loops import no_grad_fix, unused_graphs
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_count
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.trackers.evaluation_passes import EvaluationPass, EvaluationPassesEnded


class Detector(BaseDetector):
    """Checks every evaluation pass for unused graphs."""

    def __init__(self) -> None:
        self._passes = 0

    def on_evaluation_passes_ended(self, event: EvaluationPassesEnded) -> list[Evidence]:
        """Return evidence at the start of the next update or the end of the run."""
        self._passes += len(event.passes)
        return [evidence for eval_pass in event.passes if (evidence := _check(eval_pass)) is not None]

    def inconclusive(self) -> str:
        """Return the reason if there was no evaluation pass."""
        return "" if self._passes else "no evaluation pass over a DataLoader was traced"


def _check(eval_pass: EvaluationPass) -> Evidence | None:
    first = eval_pass.calls[0]
    if len(eval_pass.calls) < 2 or eval_pass.graph_used:
        return None
    if not all(call.has_graph and call.all_eval and not call.previous_graph_used for call in eval_pass.calls):
        return None
    return Evidence(
        message=f"{first.model.name} built autograd graphs for {format_count(eval_pass.batches, 'held-out batch')} in "
        "eval mode, but no backward pass used them.",
        location=first.location,
        first_update=eval_pass.update,
    )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls that evaluate a model in eval mode with gradients enabled."""
    for call in unused_graphs(source):
        yield Hit(
            message=f"`{source.text.segment(call.node.func)}()` builds an autograd graph for every evaluation batch, "
            "but no backward pass uses it.",
            node=call.node,
            fix=no_grad_fix(source, call),
        )


RULE = Rule(required_words=("eval(", "DataLoader"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(loop.settings["no_grad"], "The evaluation builds graphs already.", no_grad=True)
    loop.unwrap(Piece.EVALUATION, "with torch.no_grad():")


SCRIPT = """
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
    {no_grad}losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
"""

FAILURE = Failure(
    code="EVL003",
    title="Evaluation runs without torch.no_grad()",
    severity=Severity.NOTE,
    bad=SCRIPT.replace("{no_grad}", ""),
    good=SCRIPT.replace("{no_grad}", "with torch.no_grad():\n        "),
    fix="Run the evaluation under torch.no_grad() or torch.inference_mode().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
