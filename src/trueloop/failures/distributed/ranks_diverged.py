"""The ranks of a data-parallel run hold different parameters, although each should hold a copy of one model.

What you see
    The loss looks as usual, since it is that of one process. Validation is worse than on one device and depends on the
    rank that computes it; a checkpoint holds the model of the rank that wrote it. Gradients are averaged over models
    that differ, so each model descends along the slope of another.

Why it happens
    ``DistributedDataParallel`` makes the parameters equal once, when it is built. After that it averages gradients and
    relies on every process to apply the same update. It never compares the parameters again.

Fix
    Change parameters on every rank alike, or before the model is wrapped: load checkpoints on all ranks, use one
    learning rate and one loss scale, and step on all ranks or on none.

        skip = (~loss.isfinite()).float()
        dist.all_reduce(skip)
        if skip == 0:  # the same decision on every rank
            optimizer.step()

When this is fine
    - Shards of FSDP2 and of tensor parallelism, which are not compared.
    - Parameters that the model tells the wrapper to ignore, and buffers such as the statistics of BatchNorm.
    - Models of other process groups, as in a pipeline.
    - Local SGD, which steps between two reductions or averages with a communication hook of its own.
    - Uneven inputs under ``join()``.
    - Rounding, by which hardware of different kinds may differ.

How it is detected
    Two ranks compare their parameters right after the same reduction and the step that follows it, where all copies
    must be equal. Not checked: parameters outside the wrapper, and ranks that are not traced. A run of one process
    cannot have this failure, so the teaching loop has no switch for it: the script below starts a second process.

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

MAX_NAMES: Final = 3  # parameters that a message lists


class Detector(BaseDetector):
    """Reports two ranks that hold different values of one parameter."""

    subscribes_to = (ModelReplicated, RanksCompared)

    def __init__(self) -> None:
        self._compared = 0
        self._max_group_size = 0

    def observe(self, event: ModelReplicated | RanksCompared) -> Evidence | None:
        """Return evidence where something differs by more than rounding."""
        if isinstance(event, ModelReplicated):
            self._max_group_size = max(self._max_group_size, event.group_size)
            return None
        self._compared += 1
        if not event.differing:
            return None
        first, second = sorted(event.ranks)
        names = ", ".join(name for name, _ in event.differing[:MAX_NAMES])
        more = len(event.differing) - MAX_NAMES
        rest = f" and {more} more" if more > 0 else ""
        share = _difference_text(event.differing[0][1])
        last = event.last_equal_update
        since = "" if last is None else f"; after {format_count(last, 'update')} they were equal"
        return Evidence(
            message=f"After {format_count(event.compared_update, 'update')} ranks {first} and {second} hold "
            f"different values of {names}{rest} ({len(event.differing)} of "
            f"{event.parameters} parameters, {share}){since}.",
            location=event.location,
            dedup_key=event.wrapper,
            first_update=max(0, event.compared_update - 1),
        )

    def inconclusive(self) -> str:
        """Return a reason where no two ranks were compared."""
        if self._compared:
            return ""
        return "no two ranks could be compared" if self._max_group_size > 1 else "there was only one process"


def _difference_text(share: float) -> str:
    return f"by up to {share:.1%} of their size" if math.isfinite(share) else "not finite on one of them"


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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * (rank + 1))  # another learning rate on each rank
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
    fix="Load weights, step and set learning rates on every rank alike; all-reduce values that decide.",
    detector=Detector,
)
