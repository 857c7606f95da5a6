"""Training calls the plain model instead of its DistributedDataParallel wrapper, so gradients are never averaged.

What you see
    Adding processes changes nothing: loss and accuracy are those of one process with its own batches. The ranks drift
    apart from the first update on, and the checkpoint of rank 0 has seen a fraction of the data.

Why it happens
    The wrapper averages gradients with hooks that a call of the wrapper prepares. ``model.module(x)`` calls the plain
    model: its backward fills the gradients of this process, and the hooks do nothing.

Fix
    Call the wrapper. Where training needs another method of the model, call that method in ``forward``.

        loss = loss_fn(model(x), y)  # not model.module(x)

When this is fine
    - Evaluation through ``model.module``, which has no backward.
    - Gradients that the program reduces by itself between backward and step.
    - ``no_sync()`` for all micro-batches but the last.
    - A loss on the weights, or a second network on the plain module, in addition to a call of the wrapper.
    - A GAN that trains its generator through the plain discriminator, whose own gradients are dropped.

How it is detected
    Two steps used gradients that backward passes gave to replicated parameters, although since the previous step the
    wrapper was not called, and its process group began no collective from the first of those backward passes on. A
    program that now and then averages the parameters themselves needs no wrapper and is reported too: hence a warning.
    With one process it makes no difference yet.

References
    torch.nn.parallel.DistributedDataParallel, and its notes on forward and no_sync,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from typing import Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import NO_REFS, BackwardEnded, ModelCalled, ModelReplicated, Ref, Refs, ReplicaStepped

MIN_STEPS: Final = 2  # once may be a trial
MAX_CALLS: Final = 64  # of different models between two steps


class Detector(BaseDetector):
    """Counts steps that used gradients of replicated parameters that no rank reduced."""

    subscribes_to = (ModelReplicated, ModelCalled, BackwardEnded, ReplicaStepped)
    activated_by = (ModelReplicated,)

    def __init__(self) -> None:
        self._wrapped: dict[Ref, ModelReplicated] = {}
        self._calls: dict[Ref, ModelCalled] = {}
        """Latest call of each model that built a graph, since the latest step of a replicated model."""
        self._received: Refs = NO_REFS
        self._unreduced_steps: dict[Ref, int] = {}
        self._steps = 0

    def observe(self, event: ModelReplicated | ModelCalled | BackwardEnded | ReplicaStepped) -> Evidence | None:
        """Return evidence at the second step that used unreduced gradients."""
        if isinstance(event, ModelReplicated):
            self._wrapped[event.wrapper] = event
        elif isinstance(event, ModelCalled):
            if event.has_graph and not event.recomputed and len(self._calls) < MAX_CALLS:
                self._calls[event.model] = event
        elif isinstance(event, BackwardEnded):
            self._received |= event.reached_parameters
        else:
            return self._on_step(event)
        return None

    def _on_step(self, event: ReplicaStepped) -> Evidence | None:
        wrapped = self._wrapped.get(event.wrapper)
        used, calls = event.parameters & self._received, list(self._calls.values())
        self._received -= event.parameters
        self._calls.clear()
        self._steps += 1
        if wrapped is None or not used or event.forwards or event.collectives != 0:
            return None
        self._unreduced_steps[event.wrapper] = count = self._unreduced_steps.get(event.wrapper, 0) + 1
        if count < MIN_STEPS:
            return None
        own_calls = [each for each in calls if each.parameters & used]
        return self._evidence(event, wrapped, own_calls[-1] if own_calls else None, len(used))

    def _evidence(
        self, event: ReplicaStepped, wrapped: ModelReplicated, call: ModelCalled | None, used: int
    ) -> Evidence:
        note = " (no difference yet with one process)" if wrapped.group_size == 1 else ""
        location: CodePosition | None = (call.location if call is not None else None) or event.location
        related = [(wrapped.location, "the model is wrapped here"), (event.location, "the optimizer steps here")]
        return Evidence(
            message=f"Training calls {wrapped.module.name} instead of its {wrapped.wrapper.kind} wrapper: the "
            f"gradients of {format_count(used, 'parameter')} were not averaged over "
            f"{format_count(wrapped.group_size, 'process')} before the step{note}.",
            location=location,
            related=tuple((line, label) for line, label in related if line is not None and line != location),
            dedup_key=event.wrapper,
        )

    def inconclusive(self) -> str:
        """Return a reason where no step of a wrapped model was traced."""
        if self._steps:
            return ""
        return "no step of a wrapped model was traced" if self._wrapped else "no model was wrapped"


WRAPPING: Final = """

if not dist.is_initialized():
    alone = {} if "WORLD_SIZE" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)  # or as torchrun says
replicated = DistributedDataParallel(model)
"""


def inject(loop: TeachingLoop) -> None:
    """Wrap the model, and continue to call the plain model."""
    loop.imports += [
        "import os", "import torch.distributed as dist", "from torch.nn.parallel import DistributedDataParallel",
    ]  # fmt: skip
    loop.replace(Piece.MODEL, "model = Network()", f"model = Network(){WRAPPING.rstrip()}")
    loop.after_training = f"{loop.after_training}\ndel replicated\ndist.destroy_process_group()".strip()


BAD = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# under torchrun: dist.init_process_group("gloo")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(16):
    x = torch.randn(16, 6)
    optimizer.zero_grad()
    nn.functional.mse_loss(model.module(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
del model
dist.destroy_process_group()
"""

FAILURE = Failure(
    code="DST002",
    title="Training calls model.module instead of the DDP wrapper",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "nn.functional.mse_loss(model.module(x), x.sum(1, keepdim=True)).backward()": (
                "nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()"
            )
        },
    ),
    fix="Call the wrapper, model(x), wherever a backward follows.",
    detector=Detector,
    inject=inject,
)
