"""A DistributedSampler repeats some held-out samples so that all processes have the same number of them.

What you see
    The validation score changes slightly with the number of processes. If you gather the predictions of all processes,
    you get more predictions than samples.

Why it happens
    ``DistributedSampler`` repeats the first samples until their number is a multiple of the number of processes. In
    training this does no harm. In an evaluation, the repeated samples count twice.

Fix
    Give each process its own samples without repeating any, then add up the sums and counts with ``all_reduce``.

        part = Subset(held_out, range(rank, len(held_out), world_size))
        loader = DataLoader(part, batch_size=64)

    The processes then have different numbers of batches, so do not call ``all_reduce`` inside the loop. Alternatively,
    gather the predictions and keep only the first ``len(held_out)`` of them.

When this is fine
    - The size of the held-out set is a multiple of the number of processes.
    - You remove the repeated samples after gathering, for example with Accelerate's ``gather_for_metrics``.
    - You evaluate in one process.

How it is detected
    In a run, the sanitizer reports an evaluation in eval mode over a loader whose ``DistributedSampler`` does not
    return exactly as many samples as the dataset has. It cannot see whether the program removes the repeated samples
    later, so this is a note. The linter cannot detect it, because it does not know the size of the dataset.

References
    pytorch/pytorch#25162, "Incorrect Validation Accuracy Due to Distributed Sampler",
    https://github.com/pytorch/pytorch/issues/25162
    roboflow/rf-detr#1507, 21 images of which 22 are counted, https://github.com/roboflow/rf-detr/issues/1507
    RUCAIBox/RecBole#1872, "Incorrect evaluation results due to multi-GPU distributed sampler",
    https://github.com/RUCAIBox/RecBole/pull/1872
    torch.utils.data.distributed.DistributedSampler, https://docs.pytorch.org/docs/stable/data.html
"""

import weakref
from typing import Any, NamedTuple

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import LoaderStarted, Ref
from trueloop.tracing.trackers.evaluation_passes import EvaluationPass, EvaluationPassesEnded


class _Sharding(NamedTuple):
    """How a sampler divides a dataset among processes."""

    samples: int
    yielded: int
    """Total number of samples that the sampler returns in all processes."""
    processes: int
    made_at: CodePosition | None


class Detector(BaseDetector):
    """Counts the samples that the processes of each held-out loader get."""

    def __init__(self) -> None:
        self._shardings: weakref.WeakKeyDictionary[Ref, _Sharding] = weakref.WeakKeyDictionary()
        self._pass_count = 0

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        sharding = _sharding(event) if event.sampler == "DistributedSampler" else None
        if sharding is not None:
            self._shardings[event.loader] = sharding

    def on_evaluation_passes_ended(self, event: EvaluationPassesEnded) -> list[Evidence]:
        """Return evidence when the next update begins, or the run ends."""
        self._pass_count += len(event.passes)
        return [evidence for eval_pass in event.passes if (evidence := self._evidence(eval_pass)) is not None]

    def inconclusive(self) -> str:
        """Return a reason if there was no evaluation pass."""
        return "" if self._pass_count else "no loader was iterated without training"

    def _evidence(self, eval_pass: EvaluationPass) -> Evidence | None:
        sharding = self._shardings.get(eval_pass.loader)
        if sharding is None or not all(call.all_eval for call in eval_pass.calls):
            return None
        repeated = sharding.yielded - sharding.samples
        effect = f", {repeated} of them twice" if repeated > 0 else f" and leaves out {-repeated}"
        return Evidence(
            message=f"This held-out set has {sharding.samples} samples, but its DistributedSampler returns "
            f"{sharding.yielded} to {sharding.processes} processes{effect}.",
            location=sharding.made_at,
            related=((eval_pass.calls[0].location, "evaluated here"),) if eval_pass.calls[0].location else (),
            first_update=eval_pass.update,
        )


def _sharding(event: LoaderStarted) -> _Sharding | None:
    """Return how a sampler divides its dataset; None if it returns each sample once."""
    sampler: Any = getattr(event.live_loader.batch_sampler, "sampler", event.live_loader.sampler)
    yielded, processes = getattr(sampler, "total_size", None), getattr(sampler, "num_replicas", None)
    if not isinstance(yielded, int) or not isinstance(processes, int):  # another class with this name
        return None
    samples = len(sampler.dataset)
    return None if yielded == samples else _Sharding(samples, yielded, processes, event.made_at or event.location)


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank, world_size = 0, 2  # torchrun sets these values
x = torch.randn(85, 8)
y = x.sum(1, keepdim=True)
train_set, held_out_set = TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:])
sampler = DistributedSampler(train_set, world_size, rank)
train = DataLoader(train_set, batch_size=16, sampler=sampler)
held_out = DataLoader(held_out_set, batch_size=16, sampler=DistributedSampler(held_out_set, world_size, rank, False))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    sampler.set_epoch(epoch)
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        errors = torch.cat([model(a) - b for a, b in held_out])
    print(errors.square().mean().item(), len(errors))
"""

FAILURE = Failure(
    code="DST004",
    title="DistributedSampler repeats held-out samples",
    severity=Severity.NOTE,
    bad=BAD,
    good=changed(
        BAD,
        {
            "DistributedSampler, Tensor": "DistributedSampler, Subset, Tensor",
            "DataLoader(held_out_set": "DataLoader(Subset(held_out_set, range(rank, len(held_out_set), world_size))",
            ", sampler=DistributedSampler(held_out_set, world_size, rank, False)": "",
        },
    ),
    fix="Divide the held-out samples without repeating any, and add up sums and counts over the processes.",
    detector=Detector,
)
