"""The order of the data: indices per second, seeking, memory, seeding, and what a resume in mid-epoch reads again.

The peers are what a shuffled epoch is made of elsewhere: `torch.randperm`, and torch's `RandomSampler` and
`DistributedSampler` around it, asked for indices one at a time as a `DataLoader` does. Throughput is counted in
processor time of one thread. Memory is the growth of the process's peak from before the sampler is made until it has
given a thousand batches in the middle of the epoch. Reads are counted in memory that the loader's workers share.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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
SAMPLES = 4_000_000  # of an epoch that everybody can hold; torch's samplers keep a list of Python numbers
GOAL_PER_S, GOAL_SEEK_S = 10e6, 1e-3

OURS = "trueloop, as tensors"
OURS_ONE = "trueloop, one at a time"
RANDPERM = "torch.randperm, as a tensor"
RANDOM = "torch RandomSampler, one at a time"
DISTRIBUTED = "torch DistributedSampler, one at a time"


@dataclass(frozen=True, slots=True)
class Sized:
    """A dataset of which only the length is asked."""

    size: int

    def __len__(self) -> int:
        return self.size


def exhaust(items: Iterable[object]) -> None:
    deque(items, maxlen=0)


def timed(work: Callable[[], object], count: int) -> Cost:
    """Run once; return the cost of one of ``count``."""
    wall, cpu = perf_counter(), process_time()
    work()
    return Cost((perf_counter() - wall) / count, (process_time() - cpu) / count)


# Throughput ------------------------------------------------------------------------------------------------------


def walk(size: int, count: int) -> None:
    """Take ``count`` indices from the middle of the order, in blocks as the loader does."""
    shuffled, block, first = order(size, seed=0, epoch=0), 2**16, (size - count) // 2
    for start in range(first, first + count, block):
        shuffled.take(start, min(start + block, first + count))


def throughput(count: int, rounds: int) -> SideBySide:
    """Compare the cost of an index, in an epoch of ``count`` samples and in larger ones."""
    source = Sized(count)
    works: dict[str, Callable[[], object]] = {
        RANDPERM: lambda: torch.randperm(count),
        OURS: lambda: walk(count, count),
        f"{OURS}, N = 2^30 (best)": lambda: walk(2**30, count),
        f"{OURS}, N = 2^30 + 1 (worst)": lambda: walk(2**30 + 1, count),
        f"{OURS}, N = 10^12": lambda: walk(FAR, count),
        OURS_ONE: lambda: exhaust(OrderSampler(source)),
        RANDOM: lambda: exhaust(RandomSampler(source)),
        DISTRIBUTED: lambda: exhaust(DistributedSampler(source, num_replicas=1, rank=0)),
    }
    return interleave({name: lambda work=work: timed(work, count) for name, work in works.items()}, rounds)


# Seeking ---------------------------------------------------------------------------------------------------------


def seeking(times: int) -> dict[str, list[Cost]]:
    """Return the cost of the first batch from a position on, a new epoch each time; nothing is kept in between."""
    middle = SAMPLES // 2

    def ours(size: int, position: int, epoch: int) -> Tensor:
        return order(size, seed=0, epoch=epoch).take(position, position + BATCH)

    def loader(size: int, position: int, epoch: int) -> object:
        return next(WindowSampler(Sized(size), effective_batch=BATCH).micro_batches(epoch, position // BATCH))

    def torchs(size: int, position: int, epoch: int) -> object:
        return next(islice(RandomSampler(Sized(size), generator=torch.Generator().manual_seed(epoch)), position, None))

    works: dict[str, tuple[Callable[[int, int, int], object], int, int, int]] = {
        "trueloop, position 10^12 of 2 * 10^12": (ours, 2 * FAR, FAR, times),
        "trueloop's loader, the same": (loader, 2 * FAR, FAR, times),
        "trueloop, the middle of 4 million": (ours, SAMPLES, middle, times),
        "torch RandomSampler, the same": (torchs, SAMPLES, middle, max(times // 100, 3)),
    }
    found: dict[str, list[Cost]] = {}
    for name, (work, size, position, many) in works.items():
        work(size, position, 0)  # the first call of all imports and allocates
        found[name] = [timed(lambda at=epoch, do=work, n=size, p=position: do(n, p, at), 1) for epoch in range(many)]
    return found


# Memory ----------------------------------------------------------------------------------------------------------


def in_a_child(work: Callable[[int], object], size: int) -> int:
    """Return by how many bytes the peak memory grows while ``work`` runs, in a fork so that nothing is left over."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        work(1000)  # what the first call loads does not count
        Path("/proc/self/clear_refs").write_text("5")  # the peak is now the present
        before = status("VmRSS")
        work(size)
        os.write(writer, str(max(status("VmHWM") - before, 0)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        answer = said.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return int(answer)


def status(field: str) -> int:
    """Read one line of the system's account of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) * 1024


def memory(largest: int) -> dict[str, dict[str, int | None]]:
    """Return the growth for every system and size; None for a peer above ``largest`` or half of the free memory."""

    def ours(size: int) -> None:
        sampler = WindowSampler(Sized(size), effective_batch=BATCH)
        for _ in islice(sampler.micro_batches(0, sampler.updates_per_epoch // 2), 1000):
            pass

    def torchs(sampler: Iterable[int], size: int) -> None:
        exhaust(islice(sampler, size // 2, size // 2 + 1000 * BATCH))

    # bytes per index as measured at 10^6, rounded up, and what is run
    systems: dict[str, tuple[int, Callable[[int], object]]] = {
        "trueloop": (0, ours),
        "torch.randperm": (8, torch.randperm),
        "torch RandomSampler": (48, lambda size: torchs(RandomSampler(Sized(size)), size)),
        "torch DistributedSampler": (
            56,
            lambda size: torchs(DistributedSampler(Sized(size), num_replicas=1, rank=0), size),
        ),
    }
    found: dict[str, dict[str, int | None]] = {}
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name, (bytes_each, work) in systems.items():
        limit = min(free // 2, largest * bytes_each)
        found[name] = {
            f"10^{power}": in_a_child(work, 10**power) if bytes_each * 10**power <= limit else None
            for power in range(3, 13)
        }
    return found


# Seeding ---------------------------------------------------------------------------------------------------------


class Rows(Dataset[Tensor]):
    """The cheapest dataset there is that is read sample by sample."""

    def __init__(self, size: int) -> None:
        self.rows = list(torch.zeros(size, 16))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]


def seeding(samples: int, rounds: int) -> dict[str, SideBySide]:
    """Compare an epoch with and without seeding of every sample, by the batch size; and of tensors in memory."""

    def epoch(data: Dataset[Any], batch: int, *, on: bool) -> Cost:
        loader = Loader(data, effective_batch=batch, seed_samples=on)
        return timed(lambda: exhaust(loader.epoch(0)), samples)

    def both(data: Dataset[Any], batch: int) -> SideBySide:
        return interleave(
            {"off": lambda: epoch(data, batch, on=False), "on": lambda: epoch(data, batch, on=True)}, rounds
        )

    rows, tensors = Rows(samples), TensorDataset(torch.zeros(samples, 16))
    return {
        "samples read one by one, batches of 8": both(rows, 8),
        "samples read one by one, batches of 64": both(rows, 64),
        "tensors in memory, batches of 64": both(tensors, 64),
    }


# Resuming in mid-epoch -------------------------------------------------------------------------------------------

SHARDS, EACH, INTERLEAVE = 16, 256, 4
WINDOWS, SKIPPED = SHARDS * EACH // BATCH, 40


class Counted(Dataset[Tensor]):
    """Sample i is the number i; how often each was read is counted across processes."""

    def __init__(self) -> None:
        self.reads = torch.zeros(SHARDS * EACH, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.reads)

    def __getitem__(self, index: int) -> Tensor:
        self.reads[index] += 1
        return torch.tensor(index)


def counted_shards(*, sizes: bool) -> tuple[Shards, Tensor]:
    """Return the same numbers in shards."""
    samples = Counted()

    def read(shard: int) -> Iterator[Tensor]:
        return (samples[index] for index in range(shard * EACH, (shard + 1) * EACH))

    known = [EACH] * SHARDS if sizes else None
    return Shards(range(SHARDS), read, sizes=known, interleave=INTERLEAVE, buffer=32), samples.reads


def numbers(batches: Iterable[Any]) -> list[int]:
    """Return the numbers of all samples of these batches, in order."""
    return [number for batch in batches for number in getattr(batch, "data", batch).tolist()]


def account(whole: list[int], rest: list[int], reads: Tensor) -> dict[str, int]:
    """Say what was read again, given an undisturbed epoch and the counts and samples of the resumed rest of one."""
    assert rest == whole[SKIPPED * BATCH :], "the resumed epoch is not the rest of the undisturbed one"
    passed = whole[: SKIPPED * BATCH]
    behind = [shard for shard in range(SHARDS) if set(range(shard * EACH, (shard + 1) * EACH)) <= set(passed)]
    return {
        "skipped": len(passed),
        "of those read": int((reads[passed] > 0).sum()),
        "shards behind": len(behind),
        "of those opened": sum(bool(reads[shard * EACH : (shard + 1) * EACH].any()) for shard in behind),
    }


def by_loader(workers: int) -> dict[str, int]:
    samples = Counted()
    whole = numbers(Loader(samples, effective_batch=BATCH).epoch(0))
    samples.reads.zero_()
    rest = numbers(Loader(samples, effective_batch=BATCH, workers=workers).epoch(0, SKIPPED))
    return account(whole, rest, samples.reads)


def by_shards(workers: int, *, sizes: bool) -> dict[str, int]:
    """Resume from what a run saves: nothing where the sizes are known, otherwise the loader's own position."""
    data, reads = counted_shards(sizes=sizes)
    first = ShardLoader(data, effective_batch=BATCH)
    begun = first.epoch(0)
    whole = numbers(islice(begun, SKIPPED))
    position = first.position_state()
    whole += numbers(begun)
    reads.zero_()
    second = ShardLoader(data, effective_batch=BATCH, workers=workers)
    if position is not None:
        second.load_position_state(position)
    return account(whole, numbers(second.epoch(0, SKIPPED)), reads)


def by_dataloader(workers: int, *, skip: Callable[[Any], Iterable[Any]]) -> dict[str, int]:
    """Shuffle with a generator that is seeded alike both times, which is the most a plain DataLoader offers."""
    samples = Counted()

    def batches(count: int) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(0)
        return DataLoader(samples, batch_size=BATCH, shuffle=True, num_workers=count, generator=generator)

    whole = numbers(batches(0))
    samples.reads.zero_()
    return account(whole, numbers(skip(batches(workers))), samples.reads)


def skip_by_accelerate(batches: Any) -> Iterable[Any]:
    from accelerate import skip_first_batches

    return skip_first_batches(batches, SKIPPED)


def resuming() -> dict[str, dict[str, dict[str, int]]]:
    """Count what each way reads to go on after two thirds of an epoch."""
    ways: dict[str, Callable[[int], dict[str, int]]] = {
        "trueloop, dataset": by_loader,
        "trueloop, shards with sizes": lambda workers: by_shards(workers, sizes=True),
        "trueloop, shards without sizes": lambda workers: by_shards(workers, sizes=False),
        "DataLoader, batches dropped": lambda workers: by_dataloader(
            workers, skip=lambda batches: islice(batches, SKIPPED, None)
        ),
    }
    if installed("accelerate"):
        ways["Accelerate skip_first_batches"] = lambda workers: by_dataloader(workers, skip=skip_by_accelerate)
    return {name: {f"{workers} workers": way(workers) for workers in (0, 2)} for name, way in ways.items()}


# All of it -------------------------------------------------------------------------------------------------------


def show(speed: SideBySide, seeks: dict[str, list[Cost]], grown: dict[str, Any], costs: dict[str, SideBySide],
         reads: dict[str, Any]) -> None:  # fmt: skip
    """Print the tables and the verdicts."""
    rows = [[name, f"{per_s(speed, name).median:.1f}", str(speed.ratio(name, RANDPERM, "cpu"))] for name in speed.costs]
    table("Indices", ["", "million/s per core", "time / randperm"], rows)
    rows = [
        [name, *(f"{1e3 * value:.3f}" for clock in ("wall", "cpu") for value in seconds(seen, clock).values())]
        for name, seen in seeks.items()
    ]
    table("Seeking, to the first batch", ["", "median ms", "worst ms", "CPU, median ms", "CPU, worst ms"], rows)
    rows = [[name, *("-" if b is None else f"{b / 2**20:,.1f}" for b in seen.values())] for name, seen in grown.items()]
    table("Growth of the peak memory, MiB, by N", ["", *grown["trueloop"]], rows)
    rows = [[name, f"{1e6 * off:.2f}", f"{1e6 * on:.2f}", f"{extra(side)}"]
            for name, side in costs.items()
            for off, on in [[side.cost(which, "cpu").median for which in ("off", "on")]]]  # fmt: skip
    table("Seeding every sample, us per sample", ["", "off", "on", "difference"], rows)
    rows = [[name, workers, *map(str, seen.values())] for name, ways in reads.items() for workers, seen in ways.items()]
    heads = ["", "", "samples skipped", "of those read", "shards behind", "of those opened"]
    table("Resuming after two thirds of an epoch", heads, rows)
    slowest = min(per_s(speed, name).median for name in speed.costs if name.startswith("trueloop"))
    console.print(
        f"{verdict(GOAL_PER_S / 1e6, slowest)}  slowest: {slowest:.1f} million/s, goal {GOAL_PER_S / 1e6:.0f}"
    )
    far = max(seconds(seen, "wall")["median"] for name, seen in seeks.items() if name.startswith("trueloop"))
    console.print(f"{verdict(far, GOAL_SEEK_S)}  seek to 10^12: {1e3 * far:.3f} ms, goal {1e3 * GOAL_SEEK_S:.0f} ms")
    again = sum(seen["of those read"] for seen in reads["trueloop, dataset"].values())
    again += sum(seen["of those opened"] for name in reads if "shards" in name for seen in reads[name].values())
    console.print(f"{verdict(again, 0)}  skipped samples read, and shards behind opened: {again}, goal 0")


def per_s(speed: SideBySide, name: str) -> Spread:
    """Million indices per second of processor time."""
    return Spread.of([1e-6 / cost.cpu for cost in speed.costs[name]])


def seconds(seen: list[Cost], clock: str) -> dict[str, float]:
    """Median and worst by one of the clocks; the worst by the wall is that of the machine's other tenants as well."""
    values = [getattr(cost, clock) for cost in seen]
    return {"median": median(values), "worst": max(values)}


def extra(side: SideBySide) -> Spread:
    """Microseconds per sample that seeding adds, within a round."""
    pairs = zip(side.costs["on"], side.costs["off"], strict=True)
    return Spread.of([1e6 * (on.cpu - off.cpu) for on, off in pairs])


def main() -> None:
    """Measure throughput, seeking, memory, seeding and resuming."""
    quick = options(__doc__).quick
    count, rounds, times, largest = (400_000, 3, 100, 10**6) if quick else (SAMPLES, 15, 2000, 10**8)
    grown = memory(largest)  # first: the process is smallest now
    speed, seeks = throughput(count, rounds), seeking(times)
    costs, reads = seeding(20_000 // (10 if quick else 1), rounds), resuming()
    show(speed, seeks, grown, costs, reads)
    content = {
        "settings": {"samples": count, "rounds": rounds, "seeks": times, "batch": BATCH},
        "throughput": {
            name: {"million_per_s": per_s(speed, name), "cpu_ratio_to_randperm": speed.ratio(name, RANDPERM, "cpu")}
            for name in speed.costs
        },
        "seek_s": {
            name: {"times": len(seen), **{clock: seconds(seen, clock) for clock in ("wall", "cpu")}}
            for name, seen in seeks.items()
        },
        "memory_bytes": grown,
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
