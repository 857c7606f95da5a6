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

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.tracing.events import Event, LoaderStarted, ModelReplicated, RanksCompared, Ref

FEWEST: Final = 4  # rounds: the first few may be a warm-up, or a check that both compute the same
FEWEST_INPUTS: Final = 3  # different ones: fewer are a batch that is overfitted
MOST_LOADERS: Final = 64


@dataclass(slots=True)
class _Model:
    """A replicated model."""

    wrapped_at: CodePosition | None
    compared: int = 0
    inputs: set[tuple[float, ...]] = field(default_factory=set[tuple[float, ...]])
    over: bool = False
    """It was told, or two ranks did different things."""


class Detector(failure.Detector):
    """Counts the different inputs for which two ranks found one gradient."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (ModelReplicated, RanksCompared, LoaderStarted)

    def __init__(self) -> None:
        self._models: dict[Ref, _Model] = {}
        self._made_at: dict[Ref, CodePosition | None] = {}
        self._largest = 0

    def observe(self, event: ModelReplicated | RanksCompared | LoaderStarted) -> Evidence | None:
        """Return evidence once two ranks did the same in every round compared, and that often enough."""
        if isinstance(event, ModelReplicated):
            self._models[event.wrapper] = _Model(event.location)
            self._largest = max(self._largest, event.group_size)
        elif isinstance(event, RanksCompared):
            return self._compared(event)
        elif len(self._made_at) < MOST_LOADERS:
            self._made_at[event.loader] = event.made_at
        return None

    def _compared(self, event: RanksCompared) -> Evidence | None:
        model = self._models.setdefault(event.wrapper, _Model(None))
        if event.input_digest is None:
            return None
        model.compared += 1
        model.over |= not event.same_inputs_and_gradients
        model.inputs.add(event.input_digest)
        if model.over or model.compared < FEWEST or len(model.inputs) < FEWEST_INPUTS:
            return None
        model.over = True
        return self._tell(event, model)

    def _tell(self, event: RanksCompared, model: _Model) -> Evidence:
        loader = None if event.loader is None else self._made_at.get(event.loader)
        first, second = sorted(event.ranks)
        place = loader or model.wrapped_at or event.location
        related = [(model.wrapped_at, "the model is wrapped here"), (event.location, "stepped here")]
        return Evidence(
            message=f"Ranks {first} and {second} train on the same batches: in all {format_count(model.compared, 'update')} "
            f"that were compared, the latest being number {event.compared_update}, they gave the model the same, and each found the "
            "same gradient before it was averaged.",
            location=place,
            related=tuple((where, words) for where, words in related if where is not None and where != place),
            dedup_key=event.wrapper,
            first_update=max(0, event.compared_update - 1),
        )

    def inconclusive(self) -> str:
        """Say so where nothing was compared."""
        if any(model.compared for model in self._models.values()):
            return ""
        return "no two ranks could be compared" if self._largest > 1 else "there was one process only"


BAD = """
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def train(rank, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
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
    meeting = os.path.join(tempfile.mkdtemp(), "meeting")
    other = mp.get_context("fork").Process(target=train, args=(1, meeting))
    other.start()
    train(0, meeting)
    other.join()
"""

FAILURE = Failure(
    code="DST005",
    title="Every rank trains on the same batches",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=BAD.replace("shuffle=True", "sampler=DistributedSampler(data)"),
    fix="Give each rank its own part: DataLoader(data, sampler=DistributedSampler(data)).",
    detector=Detector,
)
