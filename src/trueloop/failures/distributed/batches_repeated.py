"""All ranks of a data-parallel run train on the same batches, so the work of all but one of them is wasted.

What you see
    The run is no faster than on one device: an epoch takes as many updates as with one process, and the loss curve is
    that of one process. The effective batch is one batch.

Why it happens
    ``DistributedDataParallel`` averages gradients and does not touch the data. Each process has its own loader. With
    the same order, or the same seed, these give the same samples, and the mean of equal gradients is a valid gradient.

Fix
    Give each rank its own part of the data.

        sampler = DistributedSampler(data)  # and sampler.set_epoch(epoch) before each epoch
        loader = DataLoader(data, batch_size=16, sampler=sampler)

    For a stream, take every ``world_size``-th sample from ``rank`` on (Hugging Face: ``split_dataset_by_node``). For
    random draws, seed with ``seed + rank``.

When this is fine
    - A global batch of which each process takes its part.
    - Another seed on each process with ``shuffle=True``, which draws with replacement across processes.
    - One batch that is overfitted, or all of the data in each update.
    - Parallelism within a layer or along the sequence, where all processes get the same input and compute a part each.
    - A separate task on each process.

How it is detected
    The gradients that two ranks compute are compared before the wrapper averages them, in the 1st, 2nd, 4th, 8th, ...
    round. In all of them the gradients were equal, and so were the inputs of the model, which were not always the same.
    Not detected: runs whose dropout differs between processes, and gradients that are averaged by hand. A check that
    processes agree on equal data is reported too: hence a warning. Lint cannot tell which seed or which part of the
    data a process has. A run of one process cannot have this failure, so the teaching loop has no switch for it: the
    script below starts a second process.

References
    stanford-crfm/mistral#194, "Distributed Training: Data seem to be identical across processes",
    https://github.com/stanford-crfm/mistral/issues/194
    k2-fsa/icefall#1616, "Identical Batches Across Multiple GPUs", https://github.com/k2-fsa/icefall/issues/1616
    pixeli99/SVD_Xtend#75, the same seed in each process, https://github.com/pixeli99/SVD_Xtend/issues/75
    huggingface/datasets#5360, "IterableDataset returns duplicated data using PyTorch DDP",
    https://github.com/huggingface/datasets/issues/5360
    torch.utils.data.distributed.DistributedSampler, https://docs.pytorch.org/docs/stable/data.html
"""

from dataclasses import dataclass, field
from typing import Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.failures.failure import BaseDetector, Failure, Severity
from trueloop.tracing.events import LoaderStarted, ModelReplicated, RanksCompared, Ref

MIN_UPDATES: Final = 4  # the first few may be a warm-up, or a check that both ranks compute the same
MIN_DISTINCT_INPUTS: Final = 3  # fewer are a batch that is overfitted
MAX_LOADERS: Final = 64


@dataclass(slots=True)
class _Model:
    """A replicated model."""

    wrapped_at: CodePosition | None
    compared: int = 0
    inputs: set[tuple[float, ...]] = field(default_factory=set[tuple[float, ...]])
    decided: bool = False
    """Reported, or two ranks differed."""


class Detector(BaseDetector):
    """Counts the different inputs for which two ranks computed equal gradients."""

    subscribes_to = (ModelReplicated, RanksCompared, LoaderStarted)

    def __init__(self) -> None:
        self._models: dict[Ref, _Model] = {}
        self._made_at: dict[Ref, CodePosition | None] = {}
        self._max_group_size = 0

    def observe(self, event: ModelReplicated | RanksCompared | LoaderStarted) -> Evidence | None:
        """Return evidence once two ranks were equal in every update compared, for enough different inputs."""
        if isinstance(event, ModelReplicated):
            self._models[event.wrapper] = _Model(event.location)
            self._max_group_size = max(self._max_group_size, event.group_size)
        elif isinstance(event, RanksCompared):
            return self._on_comparison(event)
        elif len(self._made_at) < MAX_LOADERS:
            self._made_at[event.loader] = event.made_at
        return None

    def _on_comparison(self, event: RanksCompared) -> Evidence | None:
        model = self._models.setdefault(event.wrapper, _Model(None))
        if event.input_digest is None:
            return None
        model.compared += 1
        model.decided |= not event.same_inputs_and_gradients
        model.inputs.add(event.input_digest)
        if model.decided or model.compared < MIN_UPDATES or len(model.inputs) < MIN_DISTINCT_INPUTS:
            return None
        model.decided = True
        return self._evidence(event, model)

    def _evidence(self, event: RanksCompared, model: _Model) -> Evidence:
        loader = None if event.loader is None else self._made_at.get(event.loader)
        first, second = sorted(event.ranks)
        location = loader or model.wrapped_at or event.location
        related = [(model.wrapped_at, "the model is wrapped here"), (event.location, "the optimizer steps here")]
        return Evidence(
            message=f"Ranks {first} and {second} train on the same batches: in all "
            f"{format_count(model.compared, 'update')} that were compared, the latest being number "
            f"{event.compared_update}, their inputs and their gradients before averaging were equal.",
            location=location,
            related=tuple((line, label) for line, label in related if line is not None and line != location),
            dedup_key=event.wrapper,
            first_update=max(0, event.compared_update - 1),
        )

    def inconclusive(self) -> str:
        """Return a reason where no two ranks were compared."""
        if any(model.compared for model in self._models.values()):
            return ""
        return "no two ranks could be compared" if self._max_group_size > 1 else "there was only one process"


BAD = """
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def train(rank, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    torch.manual_seed(0)
    x = torch.randn(256, 6)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    del model
    dist.destroy_process_group()

if __name__ == "__main__":
    rendezvous = os.path.join(tempfile.mkdtemp(), "rendezvous")
    other = mp.get_context("fork").Process(target=train, args=(1, rendezvous))
    other.start()
    train(0, rendezvous)
    other.join()
"""

FAILURE = Failure(
    code="DST005",
    title="Every rank trains on the same batches",
    severity=Severity.WARNING,
    bad=BAD,
    good=BAD.replace("shuffle=True", "sampler=DistributedSampler(data)"),
    fix="Give each rank its own part: DataLoader(data, sampler=DistributedSampler(data)).",
    detector=Detector,
)
