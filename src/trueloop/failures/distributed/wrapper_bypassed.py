"""Training calls the plain model instead of its DistributedDataParallel wrapper, so gradients are never averaged.

What you see
    More processes do not improve loss or accuracy: each process trains its own model on its own batches. From the first
    update on the models differ, and the checkpoint of rank 0 holds a model that was trained on a part of the data.

Why it happens
    Calling the wrapper prepares it to average the gradients in the backward pass. ``model.module(x)`` calls the plain
    model instead, so the backward pass computes only the gradients of this process, and no error is raised.

Fix
    Call the wrapper. If training needs another method of the model, call that method inside ``forward``.

        loss = loss_fn(model(x), y)  # not model.module(x)

When this is fine
    - You call ``model.module`` for an evaluation, without a backward pass.
    - You average the gradients yourself between ``backward()`` and ``step()``.
    - You accumulate gradients under ``no_sync()``, and run the last micro-batch outside ``no_sync()``.
    - You call the wrapper, and call ``model.module`` in addition, for example for a penalty on the weights.
    - In a GAN, you train the generator through the plain discriminator and discard the discriminator's gradients.

How it is detected
    In a run, the sanitizer looks for optimizer steps before which there was a backward pass, but no call of the wrapper
    and no communication between the processes. It reports the second such step. A program that averages the parameters
    instead of the gradients is reported too, so this is a warning. Bypassing the wrapper is also reported in a run of
    one process, where it makes no difference yet.

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

MIN_STEPS: Final = 2  # a single step may be a trial
MAX_CALLS: Final = 64  # number of models whose calls are recorded between two steps


class Detector(BaseDetector):
    """Counts steps with gradients of replicated parameters that were not averaged over the processes."""

    activated_by = (ModelReplicated,)

    def __init__(self) -> None:
        self._wrapped: dict[Ref, ModelReplicated] = {}
        self._calls: dict[Ref, ModelCalled] = {}
        """Latest call of each model that built a graph, since the latest step of a replicated model."""
        self._received: Refs = NO_REFS
        self._unreduced_steps: dict[Ref, int] = {}
        self._steps = 0

    def on_model_replicated(self, event: ModelReplicated) -> None:
        """Record the replicated model."""
        self._wrapped[event.wrapper] = event

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the call of the model."""
        if event.has_graph and not event.recomputed and len(self._calls) < MAX_CALLS:
            self._calls[event.model] = event

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the backward pass."""
        self._received |= event.reached_parameters

    def on_replica_stepped(self, event: ReplicaStepped) -> Evidence | None:
        """Return evidence at the second step that used gradients that were not averaged."""
        wrapped = self._wrapped.get(event.wrapper)
        received, calls = event.parameters & self._received, list(self._calls.values())
        self._received -= event.parameters
        self._calls.clear()
        self._steps += 1
        if wrapped is None or not received or event.forwards or event.collectives != 0:
            return None
        self._unreduced_steps[event.wrapper] = count = self._unreduced_steps.get(event.wrapper, 0) + 1
        if count < MIN_STEPS:
            return None
        own_calls = [each for each in calls if each.parameters & received]
        return self._evidence(event, wrapped, own_calls[-1] if own_calls else None, len(received))

    def _evidence(
        self, event: ReplicaStepped, wrapped: ModelReplicated, call: ModelCalled | None, used: int
    ) -> Evidence:
        note = " (with one process this makes no difference yet)" if wrapped.group_size == 1 else ""
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
        """Return a reason if no step of a wrapped model was traced."""
        if self._steps:
            return ""
        return "no step of a wrapped model was traced" if self._wrapped else "no model was wrapped"


WRAPPING: Final = """

if not dist.is_initialized():
    alone = {} if "WORLD_SIZE" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)  # torchrun sets the address, rank and world size
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
    fix="Call the wrapper, model(x), wherever a backward pass follows.",
    detector=Detector,
    inject=inject,
)
