"""The data loader keeps up with training: it gives samples at least as fast as updates take them.

A model that waits for its data is the dearest way to read files.
"""

from __future__ import annotations

from itertools import islice

import torch

from trueloop.core.formatting import format_count, format_duration, format_float, format_percent
from trueloop.verification.batch_tree import batch_size
from trueloop.verification.evidence import Bars, Evidence, NotApplicable, Verdict
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext
from trueloop.verification.rng_state import seed_all

LEAST_S = 0.3
"""Measured for so long at least, if there are enough batches."""
WAITS = 0.33
"""Share of waiting from which on the loader is what limits."""

QUICK_S = 5e-3
"""Per batch: what any DataLoader takes to put a few hundred small samples together. A model that is faster is small."""


def loader_keeps_up(bench: ProofContext, *, batches: int = 50) -> Evidence:
    """Times the loader alone and updates alone, and compares samples per second.

    With workers the loader reads ahead while the model computes, and only the slower of both counts; without, the two
    times add up.

    Args:
        bench: of a subject with a loader.
        batches: to read, at most.
    """
    loader = bench.target.loader
    if loader is None or not hasattr(loader, "dataset"):
        raise NotApplicable("There is no DataLoader: give loader=.")
    workers = int(getattr(loader, "num_workers", 0))
    read_s, count, samples = _read(bench, batches)
    if count < 2:
        raise NotApplicable(f"The loader gives {format_count(count, 'batch')}, too few to be timed.")
    update_s = _update(bench)
    wait_s = max(0.0, read_s - update_s) if workers else read_s
    share = wait_s / (update_s + wait_s)
    per_batch = samples / count
    rates = {"loader": per_batch / read_s, "updates": per_batch / update_s}
    numbers = {**rates, "waiting": share, "workers": workers}
    picture = Bars(title="Samples per second", values=rates, unit="samples/s")
    told = (
        f"The loader gives {format_float(rates['loader'])} samples/s with {format_count(workers, 'worker')}, updates take "
        f"{format_float(rates['updates'])}: training waits {format_percent(share)} of the time ({format_duration(read_s)} and "
        f"{format_duration(update_s)} per batch)"
    )
    if share > WAITS and read_s > QUICK_S:
        return Evidence(
            verdict=Verdict.BROKEN,
            message=f"{told}.",
            cause="the loader",
            fix="Give it workers (num_workers), do once what is done for every sample (decode, resize, "
            "tokenise), and read "
            "in larger pieces.",
            numbers=numbers,
            charts=(picture,),
        )
    remarks = ("That is much, but the batches themselves take next to no time.",) if share > WAITS else ()
    return Evidence(verdict=Verdict.HOLDS, message=f"{told}.", numbers=numbers, charts=(picture,), notes=remarks)


def _read(bench: ProofContext, most: int) -> tuple[float, int, int]:
    """Return seconds per batch after the first (which starts workers), batches and samples read."""
    seed_all(bench.target.seed)
    stream = iter(bench.target.loader)
    next(stream, None)
    started, count, samples = bench.clock(), 0, 0
    for batch in islice(stream, most):
        count += 1
        samples += batch_size(batch)
        if bench.clock() - started > bench.target.seconds / 2:
            break
    return (bench.clock() - started) / max(1, count), count, samples


def _update(bench: ProofContext) -> float:
    work, batch = bench.training_copy(), bench.batches(1)[0]
    work.update([batch])  # the first one allocates
    _wait(bench)
    started, count = bench.clock(), 0
    while count < 3 or (bench.clock() - started < LEAST_S and count < 50):
        work.update([batch])
        _wait(bench)
        count += 1
        if bench.clock() - started > bench.target.seconds / 2:
            break
    return (bench.clock() - started) / count


def _wait(bench: ProofContext) -> None:
    if bench.device.type == "cuda":
        torch.cuda.synchronize(bench.device)


PROOF = Proof(title="The loader keeps up", group="data", prove=loader_keeps_up, timed=True)
