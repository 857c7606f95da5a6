"""An evaluation within the training loop overwrites the training batch, so the step trains on held-out samples.

What you see
    The validation loss falls as fast as the training loss, and the test score is worse. Some training batches are never
    used.

Why it happens
    Python has one variable per name in a function. ``for x, y in val_loader`` within ``for x, y in train_loader``
    assigns the same ``x`` and ``y``. After the inner loop they are the last validation batch, and the step that follows
    trains on it.

Fix
    Give the evaluated batch other names, or evaluate in a function, which has variables of its own.

        for x, y in train_loader:
            if step % 100 == 0:
                for val_x, val_y in val_loader:
                    ...

When this is fine
    - The evaluation comes after the step, at the end of the loop's body.
    - The inner loop trains itself, on parts of the batch.
    - The batch is drawn again after the evaluation.

How it is detected
    In a run, the sanitizer compares the samples on the CPU that a model is trained on with those of the evaluation
    before. It reports the third step on the last batch of an evaluation of two or more batches, if no training happened
    in between, and the evaluation used a loader to its end, or put the model into eval mode.
    The linter reports an inner loop over a loader without a backward pass that assigns a variable of the batch of the
    outer loop, if a statement between the inner loop and the next backward pass reads this variable.

References
    Python, "The for statement", https://docs.python.org/3/reference/compound_stmts.html#the-for-statement
    torch.utils.data, https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trueloop.analysis.queries.batch_loops import LOADER_WORDS, BatchLoop, batch_loops
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BackwardEnded, LoaderExhausted, ModelCalled, Ref, TracingGap
from trueloop.tracing.weak_id_dict import WeakIdDict

if TYPE_CHECKING:
    from torch import Tensor

MIN_BATCHES: Final = 2
MIN_STEPS: Final = 3


@dataclass(slots=True)
class _Model:
    """The latest evaluation of a model, and the steps on its last batch."""

    rows: Tensor | None = None
    """Hashes of the samples of the last batch."""
    location: CodePosition | None = None
    loader: Ref | None = None
    batches: int = 0
    used_to_end: bool = False
    all_eval: bool = True
    trained_at: CodePosition | None = None
    """The call on the same samples that a backward pass may follow; None if there is none."""
    steps: int = 0
    other_steps: int = 0

    def evaluate(self, event: ModelCalled, rows: Tensor) -> None:
        """Record an evaluated batch."""
        is_same = self.location == event.location and self.batches
        self.batches, self.all_eval = (self.batches + 1, self.all_eval) if is_same else (1, True)
        self.loader = event.loader or (self.loader if is_same else None)
        self.rows, self.location, self.used_to_end = rows, event.location, False
        self.all_eval &= event.all_eval

    def is_last(self, event: ModelCalled, rows: Tensor) -> bool:
        """Return True for a call on the last batch of the evaluation, which has ended."""
        import torch

        if self.rows is None or self.batches < MIN_BATCHES or event.loader is not None:
            return False
        has_ended = self.used_to_end or (self.all_eval and event.training and self.other_steps > 0)
        return has_ended and torch.equal(rows, self.rows)


class Detector(BaseDetector):
    """Compares each training batch with the last batch of the evaluation before it."""

    def __init__(self) -> None:
        self._models = WeakIdDict[Ref, _Model]()
        self._judged = False

    def on_model_called(self, event: ModelCalled) -> None:
        """Record an evaluated batch, or recognise it in training."""
        from trueloop.tracing.row_digests import row_digests

        inputs = event.inputs
        if event.recomputed or inputs is None or not inputs.is_cpu or inputs.ndim < 2:
            return
        model = self._models.get(event.model) or self._models.put(event.model, _Model())
        if event.has_graph and not model.batches:
            model.trained_at, model.other_steps = None, model.other_steps + 1
        elif (rows := row_digests(event)) is not None:
            if not event.has_graph:
                model.evaluate(event, rows)
                return
            model.trained_at = event.location if model.is_last(event, rows) else None
            model.other_steps += model.trained_at is None
            model.batches = 0

    def on_loader_exhausted(self, event: LoaderExhausted) -> None:
        """Record that an evaluation used its loader to the end."""
        for model in self._models.values():
            if model.loader is event.loader and not event.backwards:
                model.used_to_end = self._judged = True

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Forget the evaluations."""
        for model in self._models.values():
            model.batches = 0

    def on_backward_ended(self, event: BackwardEnded) -> Evidence | None:
        """Count the steps on the last batch of an evaluation; return evidence for the third one."""
        for model in self._models.values():
            trained_at, model.trained_at = model.trained_at, None
            if trained_at is not None:
                model.steps += 1
                if model.steps == MIN_STEPS:
                    return Evidence(
                        message=f"{MIN_STEPS} steps trained on the last batch of an evaluation that came before the "
                        "step: the loop of the evaluation has overwritten the training batch.",
                        location=model.location,
                        related=((trained_at, "trained on the same samples"),),
                    )
        return None

    def inconclusive(self) -> str:
        """Return a reason if nothing was evaluated."""
        return "" if self._judged else "no evaluation used a loader to its end"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loop over batches that overwrites the batch of the training loop around it."""
    loops = batch_loops(source)
    for outer in loops:
        for inner in loops:
            is_inside = encloses(outer.node, inner.node) and outer.node is not inner.node
            if not is_inside or inner.function is not outer.function or _backwards(inner.node):
                continue
            name = _overwritten(outer, inner)
            if name:
                yield Hit(
                    message=f"The loop over `{ast.unparse(inner.loader)}` overwrites `{name}`, a part of the batch of "
                    f"`{ast.unparse(outer.loader)}`: the next backward pass trains on the last batch of the inner "
                    "loop.",
                    node=inner.node.target,
                    related=((outer.node.target, "the training batch"),),
                )


def _backwards(node: ast.AST) -> list[int]:
    return sorted(each.lineno for each in nodes_in(node, ast.Call) if last_name(each.func) == "backward")


def _overwritten(outer: BatchLoop, inner: BatchLoop) -> str:
    """Return a variable of the outer batch that the inner loop assigns, and a later backward pass uses; "" if none."""
    last = inner.node.end_lineno or 0
    backward = next((line for line in _backwards(outer.node) if line > last), 0)
    after = [
        each for each in nodes_in(outer.node, ast.Name) if last < each.lineno <= backward and each.id != outer.counter
    ]
    stored = {each.id for each in after if isinstance(each.ctx, ast.Store)}
    for name in sorted(_names(outer.node.target) & _names(inner.node.target) - {"_", outer.counter}):
        reads = any(each.id == name and isinstance(each.ctx, ast.Load) for each in after)
        if reads and (name not in stored or _is_converted(outer.node, name, last)):
            return name
    return ""


def _names(target: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(target, ast.Name)}


def _is_converted(loop: ast.For, name: str, last: int) -> bool:
    """Return True if all later assignments of a variable follow from its own value: ``x = x.to(device)``."""
    later = [each for each in nodes_in(loop, ast.Assign) if each.lineno > last]
    stores = [each for each in later if name in _names(ast.Tuple(each.targets))]
    return all(name in _names(each.value) for each in stores)


RULE = Rule(required_words=(LOADER_WORDS, "backward"), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(200, 8)
y = x.sum(1, keepdim=True)
train_loader = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(x[160:], y[160:]), batch_size=10)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for step, (inputs, targets) in enumerate(train_loader):
        if step % 4 == 0:
            model.eval()
            with torch.no_grad():
                error = 0.0
                for inputs, targets in val_loader:
                    error += nn.functional.mse_loss(model(inputs), targets, reduction="sum").item()
            print(epoch, step, error / 40)
        model.train()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT043",
    title="An evaluation overwrites the training batch",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(
        BAD,
        {
            "for inputs, targets in val_loader": "for val_inputs, val_targets in val_loader",
            "mse_loss(model(inputs), targets, reduction": "mse_loss(model(val_inputs), val_targets, reduction",
        },
    ),
    fix="Give the batch of the evaluation other names, or evaluate in a function of its own.",
    rule=RULE,
    detector=Detector,
)
