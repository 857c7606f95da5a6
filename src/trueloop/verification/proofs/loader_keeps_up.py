"""The data loader keeps up with training: it yields samples at least as fast as updates consume them.

With a slower loader, an expensive GPU waits for data.
"""

from itertools import islice

import torch

from trueloop.core.formatting import format_count, format_duration, format_float, format_percent
from trueloop.verification.batch_tree import batch_size
from trueloop.verification.evidence import Bars, Evidence, NotApplicable, broken, holds
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext
from trueloop.verification.rng_state import seed_all

MIN_MEASURED_S = 0.3
"""Shortest time in which updates are measured."""
MAX_WAITING_SHARE = 0.33
"""If training waits for more than this share of the time, the loader is the bottleneck."""

NEGLIGIBLE_S = 5e-3
"""Seconds per batch that any DataLoader needs to collate a few hundred small samples."""


def loader_keeps_up(context: ProofContext, *, batches: int = 50) -> Evidence:
    """Time the loader alone and updates alone, and compare their samples per second.

    With workers, the loader prefetches while the model computes: an update takes the longer of both times. Without
    workers, the two times add up.

    Args:
        context: context of a target with a loader.
        batches: largest number of batches to read.
    """
    loader = context.target.loader
    if loader is None or not hasattr(loader, "dataset"):
        raise NotApplicable("There is no DataLoader: pass loader=.")
    workers = int(getattr(loader, "num_workers", 0))
    read_s, count, samples = _time_loader(context, batches)
    if count < 2:
        raise NotApplicable(f"The loader yields only {format_count(count, 'batch')} after the first: too few to time.")
    update_s = _time_update(context)
    wait_s = max(0.0, read_s - update_s) if workers else read_s
    share = wait_s / (update_s + wait_s)
    batch_samples = samples / count
    rates = {"loader": batch_samples / read_s, "updates": batch_samples / update_s}
    numbers = {**rates, "waiting": share, "workers": workers}
    picture = Bars(title="Samples per second", values=rates, unit="samples/s")
    message = (
        f"The loader yields {format_float(rates['loader'])} samples/s with {format_count(workers, 'worker')}, "
        f"updates consume {format_float(rates['updates'])} samples/s: training waits {format_percent(share)} of the "
        f"time (per batch, loading takes {format_duration(read_s)} and the update {format_duration(update_s)})"
    )
    if share > MAX_WAITING_SHARE and read_s > NEGLIGIBLE_S:
        return broken(
            f"{message}.",
            cause="the loader",
            fix="Use workers (num_workers), preprocess every sample only once (decode, resize, tokenise), "
            "and read larger pieces of the files.",
            numbers=numbers,
            charts=(picture,),
        )
    remarks = ("That is a large share, but loading a batch takes almost no time.",) if share > MAX_WAITING_SHARE else ()
    return holds(f"{message}.", numbers=numbers, charts=(picture,), notes=remarks)


def _time_loader(context: ProofContext, limit: int) -> tuple[float, int, int]:
    """Return seconds per batch, and numbers of batches and samples, without the first batch, which starts workers."""
    seed_all(context.target.seed)
    stream = iter(context.target.loader)
    next(stream, None)
    started, count, samples = context.clock(), 0, 0
    for batch in islice(stream, limit):
        count += 1
        samples += batch_size(batch)
        if context.clock() - started > context.target.seconds / 2:
            break
    return (context.clock() - started) / max(1, count), count, samples


def _time_update(context: ProofContext) -> float:
    training, batch = context.training_copy(), context.batches(1)[0]
    training.update([batch])  # the first update allocates memory
    _synchronize(context)
    started, count = context.clock(), 0
    while count < 3 or (context.clock() - started < MIN_MEASURED_S and count < 50):
        training.update([batch])
        _synchronize(context)
        count += 1
        if context.clock() - started > context.target.seconds / 2:
            break
    return (context.clock() - started) / count


def _synchronize(context: ProofContext) -> None:
    if context.device.type == "cuda":
        torch.cuda.synchronize(context.device)


PROOF = Proof(title="The loader keeps up", group="data", prove=loader_keeps_up, timed=True)
