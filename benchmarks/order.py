"""Measure the data order: indices per second, seeking, memory, seeding, and the data that a resume in mid-epoch reads.

The peers are PyTorch's ways to shuffle an epoch: `torch.randperm`, and the samplers built on it, `RandomSampler` and
`DistributedSampler`, from which indices are requested one at a time, as a `DataLoader` does. Throughput is measured in
CPU time of one thread. Memory is the growth of the process's peak from the creation of the sampler until it has yielded
a thousand batches in the middle of the epoch. Reads are counted in memory that the loader's workers share.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from measure import Cost, SideBySide, Spread, console, installed, interleave, options, table, verdict, write
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, TensorDataset

from trueloop.data import Loader, OrderSampler, ShardLoader, Shards, WindowSampler, order

FAR = 10**12
BATCH = 64
SAMPLES = 4_000_000  # per epoch; fits into memory even for torch's samplers, which keep a list of Python integers
GOAL_PER_S, GOAL_SEEK_S = 10e6, 1e-3

TRUELOOP = "trueloop, as tensors"
TRUELOOP_ONE = "trueloop, one at a time"
RANDPERM = "torch.randperm, as a tensor"
RANDOM = "torch RandomSampler, one at a time"
DISTRIBUTED = "torch DistributedSampler, one at a time"


@dataclass(frozen=True, slots=True)
class Sized:
    """A dataset that only has a length."""

    size: int

    def __len__(self) -> int:
        return self.size


def consume(items: Iterable[object]) -> None:
    deque(items, maxlen=0)


def time_per_item(work: Callable[[], object], count: int) -> Cost:
    """Run ``work`` once, and return its cost per item if it processes ``count`` items."""
    wall, cpu = perf_counter(), process_time()
    work()
    return Cost((perf_counter() - wall) / count, (process_time() - cpu) / count)


# Throughput ------------------------------------------------------------------------------------------------------


def take_middle(size: int, count: int) -> None:
    """Take ``count`` indices from the middle of the order, in blocks as the loader does."""
    shuffled, block, first = order(size, seed=0, epoch=0), 2**16, (size - count) // 2
    for start in range(first, first + count, block):
        shuffled.take(start, min(start + block, first + count))


def throughput(count: int, rounds: int) -> SideBySide:
    """Compare the cost of an index, in an epoch of ``count`` samples and in larger ones."""
    source = Sized(count)
    tasks: dict[str, Callable[[], object]] = {
        RANDPERM: lambda: torch.randperm(count),
        TRUELOOP: lambda: take_middle(count, count),
        f"{TRUELOOP}, N = 2^30 (best)": lambda: take_middle(2**30, count),
        f"{TRUELOOP}, N = 2^30 + 1 (worst)": lambda: take_middle(2**30 + 1, count),
        f"{TRUELOOP}, N = 10^12": lambda: take_middle(FAR, count),
        TRUELOOP_ONE: lambda: consume(OrderSampler(source)),
        RANDOM: lambda: consume(RandomSampler(source)),
        DISTRIBUTED: lambda: consume(DistributedSampler(source, num_replicas=1, rank=0)),
    }
    return interleave({name: lambda task=task: time_per_item(task, count) for name, task in tasks.items()}, rounds)


# Seeking ---------------------------------------------------------------------------------------------------------


def seeking(times: int) -> dict[str, list[Cost]]:
    """Return the costs of reading the first batch at a position, each time in a new epoch and with a new order."""
    middle = SAMPLES // 2

    def by_order(size: int, position: int, epoch: int) -> Tensor:
        return order(size, seed=0, epoch=epoch).take(position, position + BATCH)

    def by_loader(size: int, position: int, epoch: int) -> object:
        return next(WindowSampler(Sized(size), effective_batch=BATCH).micro_batches(epoch, position // BATCH))

    def by_torch(size: int, position: int, epoch: int) -> object:
        return next(islice(RandomSampler(Sized(size), generator=torch.Generator().manual_seed(epoch)), position, None))

    systems: dict[str, tuple[Callable[[int, int, int], object], int, int, int]] = {
        "trueloop, position 10^12 of 2 * 10^12": (by_order, 2 * FAR, FAR, times),
        "trueloop's loader, the same": (by_loader, 2 * FAR, FAR, times),
        "trueloop, the middle of 4 million": (by_order, SAMPLES, middle, times),
        "torch RandomSampler, the same": (by_torch, SAMPLES, middle, max(times // 100, 3)),
    }
    costs: dict[str, list[Cost]] = {}
    for name, (work, size, position, tries) in systems.items():
        work(size, position, 0)  # the very first call imports modules and allocates memory
        costs[name] = [time_per_item(partial(work, size, position, epoch), 1) for epoch in range(tries)]
    return costs


# Memory ----------------------------------------------------------------------------------------------------------


def peak_growth(work: Callable[[int], object], size: int) -> int:
    """Return the growth of peak memory in bytes while ``work`` runs, in a forked process, whose memory is released."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        work(1000)  # memory for modules that the first call imports is not counted
        Path("/proc/self/clear_refs").write_text("5")  # resets the recorded peak to the current memory
        before = memory_status("VmRSS")
        work(size)
        os.write(writer, str(max(memory_status("VmHWM") - before, 0)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        growth = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return int(growth)


def memory_status(field: str) -> int:
    """Read one value of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) * 1024


def memory(largest: int) -> dict[str, dict[str, int | None]]:
    """Return the growth for every system and size; None for a peer above ``largest`` or half of the free memory."""

    def by_trueloop(size: int) -> None:
        sampler = WindowSampler(Sized(size), effective_batch=BATCH)
        for _ in islice(sampler.micro_batches(0, sampler.updates_per_epoch // 2), 1000):
            pass

    def by_torch(sampler: Iterable[int], size: int) -> None:
        consume(islice(sampler, size // 2, size // 2 + 1000 * BATCH))

    # bytes per index, measured at 10^6 samples and rounded up, and the function that is measured
    systems: dict[str, tuple[int, Callable[[int], object]]] = {
        "trueloop": (0, by_trueloop),
        "torch.randperm": (8, torch.randperm),
        "torch RandomSampler": (48, lambda size: by_torch(RandomSampler(Sized(size)), size)),
        "torch DistributedSampler": (
            56,
            lambda size: by_torch(DistributedSampler(Sized(size), num_replicas=1, rank=0), size),
        ),
    }
    growths: dict[str, dict[str, int | None]] = {}
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name, (bytes_each, work) in systems.items():
        limit = min(free // 2, largest * bytes_each)
        growths[name] = {
            f"10^{power}": peak_growth(work, 10**power) if bytes_each * 10**power <= limit else None
            for power in range(3, 13)
        }
    return growths


# Seeding ---------------------------------------------------------------------------------------------------------


class Rows(Dataset[Tensor]):
    """The cheapest possible dataset that is read sample by sample."""

    def __init__(self, size: int) -> None:
        self.rows = list(torch.zeros(size, 16))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]


def seeding(samples: int, rounds: int) -> dict[str, SideBySide]:
    """Compare epochs with and without seeding of every sample, for two batch sizes and for tensors in memory."""

    def epoch(data: Dataset[Any], batch: int, *, seed_samples: bool) -> Cost:
        loader = Loader(data, effective_batch=batch, seed_samples=seed_samples)
        return time_per_item(lambda: consume(loader.epoch(0)), samples)

    def compare(data: Dataset[Any], batch: int) -> SideBySide:
        return interleave(
            {
                "off": lambda: epoch(data, batch, seed_samples=False),
                "on": lambda: epoch(data, batch, seed_samples=True),
            },
            rounds,
        )

    rows, tensors = Rows(samples), TensorDataset(torch.zeros(samples, 16))
    return {
        "samples read one by one, batches of 8": compare(rows, 8),
        "samples read one by one, batches of 64": compare(rows, 64),
        "tensors in memory, batches of 64": compare(tensors, 64),
    }


# Resuming in mid-epoch -------------------------------------------------------------------------------------------

SHARDS, SHARD_SAMPLES, INTERLEAVE = 16, 256, 4
WINDOWS, SKIPPED = SHARDS * SHARD_SAMPLES // BATCH, 40


class CountedReads(Dataset[Tensor]):
    """A dataset whose sample i is the number i; it counts the reads of each sample in all processes."""

    def __init__(self) -> None:
        self.reads = torch.zeros(SHARDS * SHARD_SAMPLES, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.reads)

    def __getitem__(self, index: int) -> Tensor:
        self.reads[index] += 1
        return torch.tensor(index)


def counted_shards(*, sizes: bool) -> tuple[Shards, Tensor]:
    """Return the samples of `CountedReads` in shards, and their read counts."""
    samples = CountedReads()

    def read(shard: int) -> Iterator[Tensor]:
        return (samples[index] for index in range(shard * SHARD_SAMPLES, (shard + 1) * SHARD_SAMPLES))

    shard_sizes = [SHARD_SAMPLES] * SHARDS if sizes else None
    return Shards(range(SHARDS), read, sizes=shard_sizes, interleave=INTERLEAVE, buffer=32), samples.reads


def numbers(batches: Iterable[Any]) -> list[int]:
    """Return the samples of all batches as numbers, in order."""
    return [number for batch in batches for number in getattr(batch, "data", batch).tolist()]


def count_reads(whole: list[int], rest: list[int], reads: Tensor) -> dict[str, int]:
    """Count what a resume read again.

    Args:
        whole: samples of an uninterrupted epoch.
        rest: samples that the resumed epoch yielded.
        reads: number of reads of each sample by the resumed epoch.
    """
    assert rest == whole[SKIPPED * BATCH :], "the resumed epoch is not the rest of the uninterrupted one"
    skipped = whole[: SKIPPED * BATCH]
    skipped_shards = [
        shard
        for shard in range(SHARDS)
        if set(range(shard * SHARD_SAMPLES, (shard + 1) * SHARD_SAMPLES)) <= set(skipped)
    ]
    return {
        "skipped": len(skipped),
        "of those read": int((reads[skipped] > 0).sum()),
        "shards behind": len(skipped_shards),
        "of those opened": sum(
            bool(reads[shard * SHARD_SAMPLES : (shard + 1) * SHARD_SAMPLES].any()) for shard in skipped_shards
        ),
    }


def by_loader(workers: int) -> dict[str, int]:
    samples = CountedReads()
    whole = numbers(Loader(samples, effective_batch=BATCH).epoch(0))
    samples.reads.zero_()
    rest = numbers(Loader(samples, effective_batch=BATCH, workers=workers).epoch(0, SKIPPED))
    return count_reads(whole, rest, samples.reads)


def by_shards(workers: int, *, sizes: bool) -> dict[str, int]:
    """Resume from what a run saves: nothing if the shard sizes are known, otherwise the loader's position."""
    data, reads = counted_shards(sizes=sizes)
    first = ShardLoader(data, effective_batch=BATCH)
    epoch = first.epoch(0)
    whole = numbers(islice(epoch, SKIPPED))
    position = first.position_state()
    whole += numbers(epoch)
    reads.zero_()
    second = ShardLoader(data, effective_batch=BATCH, workers=workers)
    if position is not None:
        second.load_position_state(position)
    return count_reads(whole, numbers(second.epoch(0, SKIPPED)), reads)


def by_dataloader(workers: int, *, skip: Callable[[Any], Iterable[Any]]) -> dict[str, int]:
    """Shuffle with a generator that has the same seed both times; a plain DataLoader offers nothing better."""
    samples = CountedReads()

    def batches(count: int) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(0)
        return DataLoader(samples, batch_size=BATCH, shuffle=True, num_workers=count, generator=generator)

    whole = numbers(batches(0))
    samples.reads.zero_()
    return count_reads(whole, numbers(skip(batches(workers))), samples.reads)


def skip_by_accelerate(batches: Any) -> Iterable[Any]:
    from accelerate import skip_first_batches

    return skip_first_batches(batches, SKIPPED)


def resuming() -> dict[str, dict[str, dict[str, int]]]:
    """Count what each system reads to resume after 40 of the 64 batches of an epoch."""
    systems: dict[str, Callable[[int], dict[str, int]]] = {
        "trueloop, dataset": by_loader,
        "trueloop, shards with sizes": lambda workers: by_shards(workers, sizes=True),
        "trueloop, shards without sizes": lambda workers: by_shards(workers, sizes=False),
        "DataLoader, batches dropped": lambda workers: by_dataloader(
            workers, skip=lambda batches: islice(batches, SKIPPED, None)
        ),
    }
    if installed("accelerate"):
        systems["Accelerate skip_first_batches"] = lambda workers: by_dataloader(workers, skip=skip_by_accelerate)
    return {name: {f"{workers} workers": resume(workers) for workers in (0, 2)} for name, resume in systems.items()}


# Everything ------------------------------------------------------------------------------------------------------


def show(speed: SideBySide, seeks: dict[str, list[Cost]], growths: dict[str, Any], costs: dict[str, SideBySide],
         reads: dict[str, Any]) -> None:  # fmt: skip
    """Print the tables and the verdicts."""
    rows = [[name, f"{per_s(speed, name).median:.1f}", str(speed.ratio(name, RANDPERM, "cpu"))] for name in speed.costs]
    table("Indices", ["", "million/s per core", "time / randperm"], rows)
    rows = [
        [name, *(f"{1e3 * value:.3f}" for clock in ("wall", "cpu") for value in seconds(measured, clock).values())]
        for name, measured in seeks.items()
    ]
    table("Seeking, to the first batch", ["", "median ms", "worst ms", "CPU, median ms", "CPU, worst ms"], rows)
    rows = [
        [name, *("-" if b is None else f"{b / 2**20:,.1f}" for b in measured.values())]
        for name, measured in growths.items()
    ]
    table("Growth of the peak memory, MiB, by N", ["", *growths["trueloop"]], rows)
    rows = [[name, f"{1e6 * off:.2f}", f"{1e6 * on:.2f}", f"{extra(side)}"]
            for name, side in costs.items()
            for off, on in [[side.cost(mode, "cpu").median for mode in ("off", "on")]]]  # fmt: skip
    table("Seeding every sample, µs per sample", ["", "off", "on", "difference"], rows)
    rows = [
        [name, workers, *map(str, measured.values())]
        for name, by_workers in reads.items()
        for workers, measured in by_workers.items()
    ]
    heads = ["", "", "samples skipped", "of those read", "shards behind", "of those opened"]
    table("Resuming after two thirds of an epoch", heads, rows)
    slowest = min(per_s(speed, name).median for name in speed.costs if name.startswith("trueloop"))
    console.print(
        f"{verdict(GOAL_PER_S / 1e6, slowest)}  slowest: {slowest:.1f} million/s, goal {GOAL_PER_S / 1e6:.0f}"
    )
    slowest_s = max(
        seconds(measured, "wall")["median"] for name, measured in seeks.items() if name.startswith("trueloop")
    )
    console.print(
        f"{verdict(slowest_s, GOAL_SEEK_S)}  seek to 10^12: {1e3 * slowest_s:.3f} ms, goal {1e3 * GOAL_SEEK_S:.0f} ms"
    )
    read_again = sum(measured["of those read"] for measured in reads["trueloop, dataset"].values())
    read_again += sum(
        measured["of those opened"] for name in reads if "shards" in name for measured in reads[name].values()
    )
    console.print(f"{verdict(read_again, 0)}  skipped samples read, and shards behind opened: {read_again}, goal 0")


def per_s(speed: SideBySide, name: str) -> Spread:
    """Return millions of indices per second of CPU time."""
    return Spread.of([1e-6 / cost.cpu for cost in speed.costs[name]])


def seconds(costs: list[Cost], clock: str) -> dict[str, float]:
    """Return the median and the worst time by one clock; other processes also affect the worst wall time."""
    values = [getattr(cost, clock) for cost in costs]
    return {"median": median(values), "worst": max(values)}


def extra(side: SideBySide) -> Spread:
    """Return the microseconds per sample that seeding adds, within a round."""
    pairs = zip(side.costs["on"], side.costs["off"], strict=True)
    return Spread.of([1e6 * (on.cpu - off.cpu) for on, off in pairs])


def main() -> None:
    """Measure throughput, seeking, memory, seeding and resuming."""
    quick = options(__doc__).quick
    count, rounds, times, largest = (400_000, 3, 100, 10**6) if quick else (SAMPLES, 15, 2000, 10**8)
    growths = memory(largest)  # measured first, while the process is smallest
    speed, seeks = throughput(count, rounds), seeking(times)
    costs, reads = seeding(20_000 // (10 if quick else 1), rounds), resuming()
    show(speed, seeks, growths, costs, reads)
    content = {
        "settings": {"samples": count, "rounds": rounds, "seeks": times, "batch": BATCH},
        "throughput": {
            name: {"million_per_s": per_s(speed, name), "cpu_ratio_to_randperm": speed.ratio(name, RANDPERM, "cpu")}
            for name in speed.costs
        },
        "seek_s": {
            name: {"times": len(seek_costs), **{clock: seconds(seek_costs, clock) for clock in ("wall", "cpu")}}
            for name, seek_costs in seeks.items()
        },
        "memory_bytes": growths,
        "seeding_us": {
            name: {
                "off": 1e6 * side.cost("off", "cpu").median, "on": 1e6 * side.cost("on", "cpu").median,
                "difference": extra(side),
            }
            for name, side in costs.items()
        },
        "resume": reads,
    }  # fmt: skip
    write("order", content, quick=quick)


if __name__ == "__main__":
    main()
