"""All processes (ranks) of a data-parallel run train on the same batches, so only one of them does useful work.

What you see
    The run is no faster than on one device: an epoch takes as many updates as with one process, and the loss curve is
    the same. More processes do not increase the number of samples per update.

Why it happens
    ``DistributedDataParallel`` averages gradients but does not divide the data. Each process has its own loader. If all
    loaders have the same order or the same seed, all processes get the same samples, and the average of their equal
    gradients is the gradient of one process.

Fix
    Give each rank its own part of the data.

        sampler = DistributedSampler(data)  # and sampler.set_epoch(epoch) before each epoch
        loader = DataLoader(data, batch_size=16, sampler=sampler)

    For a stream, take every ``world_size``-th sample, starting with sample ``rank`` (Hugging Face:
    ``split_dataset_by_node``). If samples are generated at random, seed each process with ``seed + rank``.

When this is fine
    - Each process loads the same global batch and trains on its own part of it.
    - Each process has its own seed with ``shuffle=True``, so the processes get different samples by chance.
    - You overfit one batch on purpose, or each update uses all of the data.
    - You use tensor or sequence parallelism: all processes get the same input, and each computes a part of the model.
    - Each process has its own task.

How it is detected
    In a run, the sanitizer compares the inputs of the model and the gradients of two ranks before
    ``DistributedDataParallel`` averages them, in the 1st, 2nd, 4th, 8th, ... update. It reports two ranks that were
    equal in each of these updates, while the inputs changed from update to update. Not detected: runs whose dropout
    differs between processes, and gradients that are averaged by hand. A program that gives all processes equal data as
    a test is reported too, so this is a warning. The linter cannot detect it, because it does not know which seed or
    which part of the data a process has. The failure needs two processes, so the script below starts a second one.

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

MIN_UPDATES: Final = 4  # the first updates may be a warm-up, or a test that all ranks compute the same
MIN_DISTINCT_INPUTS: Final = 3  # a program with fewer inputs overfits one batch
MAX_LOADERS: Final = 64


@dataclass(slots=True)
class _Model:
    """A replicated model."""

    wrapped_at: CodePosition | None
    compared: int = 0
    """Number of updates in which it was compared with that of another rank."""
    inputs: set[tuple[float, ...]] = field(default_factory=set[tuple[float, ...]])
    """Digests of its inputs in these updates."""
    decided: bool = False
    """Whether the model was reported or its ranks differed."""


class Detector(BaseDetector):
    """Counts the different inputs for which two ranks computed equal gradients."""

    def __init__(self) -> None:
        self._models: dict[Ref, _Model] = {}
        self._made_at: dict[Ref, CodePosition | None] = {}
        self._max_group_size = 0

    def on_model_replicated(self, event: ModelReplicated) -> None:
        """Record the replicated model."""
        self._models[event.wrapper] = _Model(event.location)
        self._max_group_size = max(self._max_group_size, event.group_size)

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        if len(self._made_at) < MAX_LOADERS:
            self._made_at[event.loader] = event.made_at

    def on_ranks_compared(self, event: RanksCompared) -> Evidence | None:
        """Return evidence once two ranks were equal in every compared update, for enough different inputs."""
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
            message=f"Ranks {first} and {second} train on the same batches: their inputs and their gradients were "
            f"equal in all {format_count(model.compared, 'update')} that were compared up to update "
            f"{event.compared_update}.",
            location=location,
            related=tuple((line, label) for line, label in related if line is not None and line != location),
            dedup_key=event.wrapper,
            first_update=max(0, event.compared_update - 1),
        )

    def inconclusive(self) -> str:
        """Return a reason if no two ranks were compared."""
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
