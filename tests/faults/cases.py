"""List the cases: each fault at all its instants, files, bits and sizes, or a sample that runs at every commit."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from kinds import (
    TRUNCATIONS,
    Act,
    all_damaged,
    best_damaged,
    clock_jumps,
    disk_full,
    file_limit,
    flip,
    in_the_way,
    journal_damaged,
    killed,
    killed_at_disk_access,
    newest_damaged,
    pickle_planted,
    read_only,
    remove,
    signalled,
    truncate,
    two_processes,
)


class Case(NamedTuple):
    """One fault in one run."""

    fault: str
    act: Act
    arguments: tuple[str, ...] = ()
    draws_curves: bool = False


def cases(files: Sequence[str], *, seed: int, sample: bool) -> Iterator[Case]:
    """List every case; the sample has a few of each fault.

    Args:
        files: names of the files of one checkpoint.
        seed: seed of all random choices.
        sample: True for a sample that takes about a minute on two cores.
    """
    generator = random.Random(seed)
    yield from _kills(generator, sample=sample)
    yield from _damage(files, sample=sample)
    yield from _damage_elsewhere(files, sample=sample)
    yield from _disks(sample=sample)
    for argument in ("", "--fresh") if sample else ("", "--fresh") * 5:
        yield Case("two processes, one folder", partial(two_processes, argument=argument))
    for number in range(1 if sample else 8):
        yield Case("clock jumps by hours", partial(clock_jumps, seed=number, kill=sample or number % 2 == 1))


def _kills(generator: random.Random, *, sample: bool) -> Iterator[Case]:
    def instants(count: int) -> list[float]:
        return sorted(generator.uniform(0, 0.95) for _ in range(count))

    for workers, sample_count in ((0, 2), (2, 1)):
        arguments = ("--workers", str(workers))
        for _ in range(sample_count if sample else 100):
            act = partial(killed, instants=instants(1), workers=workers)
            yield Case(f"SIGKILL, {workers} workers", act, arguments)
        for _ in range(1 if sample else 20):
            act = partial(killed, instants=instants(generator.choice([2, 3])), workers=workers)
            yield Case(f"repeated SIGKILL, {workers} workers", act, arguments)
    for _ in range(1 if sample else 60):
        yield Case("SIGKILL, slow disk", partial(killed, instants=instants(1), slow_s=0.003))
    for access in (3, 33) if sample else range(1, 201):
        yield Case("SIGKILL at each disk access", partial(killed_at_disk_access, access=access))
    for number, name in ((signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")):
        for turn in range(2 if sample else 40):
            workers = 2 * (turn % 2)
            options = {"workers": workers, "group": turn % 4 > 1 or sample, "instant": generator.uniform(0, 0.95)}
            yield Case(name, partial(signalled, number=number, **options), ("--workers", str(workers)))


def _damage(files: Sequence[str], *, sample: bool) -> Iterator[Case]:
    for index, file in enumerate(files):
        for step in [9 * index][index % 2 :] if sample else range(TRUNCATIONS):
            harm = partial(truncate, sixty_fourths=step)
            yield Case("checkpoint file truncated", partial(newest_damaged, file=file, harm=harm))
        for turn in range(1 if sample else 24):
            harm = partial(flip, seed=100 * index + turn)
            yield Case("checkpoint bit flipped", partial(newest_damaged, file=file, harm=harm))
        if index % 3 == 0 or not sample:
            yield Case("checkpoint file missing", partial(newest_damaged, file=file, harm=remove))
    planted = ("model.pt", "optimizer.pkl", "data.pkl", ".metadata", "model.safetensors", "state.json", "manifest.json")
    outside = ("/model.pt", "/checkpoints/data.pkl", "/final.pkl")
    for file in planted[1::4] if sample else planted + outside:
        yield Case("hostile pickle", partial(pickle_planted, file=file))


def _damage_elsewhere(files: Sequence[str], *, sample: bool) -> Iterator[Case]:
    harms = (partial(flip, seed=1), partial(truncate, sixty_fourths=32), remove)
    for file in ("model.safetensors",) if sample else files:
        for harm in harms:
            yield Case("best checkpoint damaged", partial(best_damaged, file=file, harm=harm))
    yield Case("best checkpoint damaged", partial(best_damaged, file="", harm=remove))
    for harm in harms[:1] if sample else harms:
        yield Case("every checkpoint damaged", partial(all_damaged, harm=harm))
    for turn in range(1 if sample else 8):
        torn = partial(truncate, sixty_fourths=63 - turn)
        for harm in (torn,) if sample else (torn, partial(flip, seed=turn)):
            yield Case("journal damaged", partial(journal_damaged, harm=harm))
    yield Case("journal damaged", partial(journal_damaged, harm=remove))


def _disks(*, sample: bool) -> Iterator[Case]:
    for kib in (140,) if sample else range(20, 900, 40):
        yield Case("disk full", partial(disk_full, kib=kib), draws_curves=True)
    for limit in (5000,) if sample else (100, 900, 5000, 9000, 20_000, 100_000, 300_000):
        yield Case("file size limit", partial(file_limit, limit=limit), draws_curves=True)
    for below in ("",) if sample else ("", "checkpoints"):
        for stopped in (True,) if sample else (False, True):
            yield Case("read-only folder", partial(read_only, below=below, stopped=stopped))
    obstacles = (("", "file"), ("checkpoints", "file"), ("final", "file"), ("journal.jsonl", "folder"))
    obstacles += (("config.json", "folder"), ("final/model.safetensors", "folder"), ("curves.png", "folder"))
    for name, kind in obstacles[1:3] if sample else obstacles:
        yield Case("path already taken", partial(in_the_way, name=name, kind=kind), draws_curves=True)
