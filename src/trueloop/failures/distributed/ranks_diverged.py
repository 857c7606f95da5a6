"""The processes (ranks) of a data-parallel run have different parameters, although their models should be equal.

What you see
    The training loss looks normal. The validation score is worse than on one device and depends on the rank that
    computes it, and a checkpoint holds the model of the rank that saved it. Each model is updated with gradients that
    were partly computed for other weights.

Why it happens
    ``DistributedDataParallel`` makes the parameters equal once, when it is built. Afterwards it averages only the
    gradients, and relies on every process to apply the same update. It never compares the parameters again.

Fix
    Change parameters in the same way on every rank, or before the model is wrapped: load checkpoints on all ranks, use
    the same learning rate and loss scale everywhere, and skip a step on all ranks or on none.

        skip = (~loss.isfinite()).float()
        dist.all_reduce(skip)
        if skip == 0:  # the same decision on every rank
            optimizer.step()

When this is fine
    - You use FSDP2 or tensor parallelism, where each rank has a part of the parameters; these are not compared.
    - The parameters are excluded from ``DistributedDataParallel``, or are buffers such as BatchNorm statistics.
    - The models belong to different process groups, as in pipeline parallelism.
    - You use local SGD, which makes several steps before it averages the models.
    - The ranks have different numbers of batches and run under ``join()``.
    - The GPUs are of different kinds and round differently.

How it is detected
    In a run, the sanitizer compares the parameters of two ranks right after a step that used averaged gradients, when
    all copies must be equal. Parameters outside the wrapper, and ranks that run without the sanitizer, are not checked.
    The failure needs two processes, so the script below starts a second one.

References
    torch.nn.parallel.DistributedDataParallel, "Internal Design",
    https://docs.pytorch.org/docs/stable/notes/ddp.html
    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020, arXiv:2006.15704
"""

import math
from typing import Final

from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_count
from trueloop.failures.failure import BaseDetector, Failure, Severity
from trueloop.tracing.events import ModelReplicated, RanksCompared

MAX_NAMES: Final = 3  # number of parameters that a message lists


class Detector(BaseDetector):
    """Reports two ranks that have different values of one parameter."""

    def __init__(self) -> None:
        self._compared = 0
        """Number of comparisons of two ranks."""
        self._max_group_size = 0

    def on_model_replicated(self, event: ModelReplicated) -> None:
        """Record the number of processes that have a copy of the model."""
        self._max_group_size = max(self._max_group_size, event.group_size)

    def on_ranks_compared(self, event: RanksCompared) -> Evidence | None:
        """Return evidence if parameters differ by more than rounding."""
        self._compared += 1
        if not event.differing:
            return None
        first, second = sorted(event.ranks)
        names = ", ".join(name for name, _ in event.differing[:MAX_NAMES])
        more = len(event.differing) - MAX_NAMES
        others = f" and {more} more" if more > 0 else ""
        share = _difference_text(event.differing[0][1])
        last = event.last_equal_update
        since = "" if last is None else f"; they were equal after {format_count(last, 'update')}"
        return Evidence(
            message=f"Ranks {first} and {second} have different values of {names}{others} after "
            f"{format_count(event.compared_update, 'update')} ({len(event.differing)} of {event.parameters} "
            f"parameters differ, {share}){since}.",
            location=event.location,
            dedup_key=event.wrapper,
            first_update=max(0, event.compared_update - 1),
        )

    def inconclusive(self) -> str:
        """Return a reason if no two ranks were compared."""
        if self._compared:
            return ""
        return "no two ranks could be compared" if self._max_group_size > 1 else "there was only one process"


def _difference_text(share: float) -> str:
    return f"by up to {share:.1%} of their size" if math.isfinite(share) else "with NaN or infinity on one rank"


FAILURE = Failure(
    code="DST001",
    title="Ranks hold different parameters",
    severity=Severity.ERROR,
    bad="""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def train(rank, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * (rank + 1))  # a different learning rate on each rank
    for step in range(16):
        x = torch.randn(16, 6)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    del model
    dist.destroy_process_group()

if __name__ == "__main__":
    rendezvous = os.path.join(tempfile.mkdtemp(), "rendezvous")
    other = mp.get_context("fork").Process(target=train, args=(1, rendezvous))
    other.start()
    train(0, rendezvous)
    other.join()
""",
    good="""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def train(rank, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(16):
        x = torch.randn(16, 6)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    del model
    dist.destroy_process_group()

if __name__ == "__main__":
    rendezvous = os.path.join(tempfile.mkdtemp(), "rendezvous")
    other = mp.get_context("fork").Process(target=train, args=(1, rendezvous))
    other.start()
    train(0, rendezvous)
    other.join()
""",
    fix="Load the same weights, use the same learning rate and take the same steps on every rank; all-reduce values "
    "that decide about a step.",
    detector=Detector,
)
