"""The list of cases: each fault at all its instants, files, bits and sizes, or a few of them for every commit."""

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
    killed_at_touch,
    newest_damaged,
    pickle_planted,
    read_only,
    remove,
    signalled,
    truncate,
    two_processes,
)


class Case(NamedTuple):
    """One thing done to one run."""

    fault: str
    act: Act
    words: tuple[str, ...] = ()
    pictures: bool = False


def cases(files: Sequence[str], *, seed: int, sample: bool) -> Iterator[Case]:
    """List every case; the sample has a few of each fault.

    Args:
        files: of one checkpoint.
        seed: of all chance.
        sample: for every commit, in about a minute on two cores.
    """
    chance = random.Random(seed)
    yield from _kills(chance, sample=sample)
    yield from _damage(files, sample=sample)
    yield from _damage_elsewhere(files, sample=sample)
    yield from _disks(sample=sample)
    for word in ("", "--fresh") if sample else ("", "--fresh") * 5:
        yield Case("two processes, one folder", partial(two_processes, word=word))
    for number in range(1 if sample else 8):
        yield Case("clock jumps by hours", partial(clock_jumps, seed=number, kill=sample or number % 2 == 1))


def _kills(chance: random.Random, *, sample: bool) -> Iterator[Case]:
    def instants(count: int) -> list[float]:
        return sorted(chance.uniform(0, 0.95) for _ in range(count))

    for workers, few in ((0, 3), (2, 2)):
        words = ("--workers", str(workers))
        for _ in range(few if sample else 100):
            act = partial(killed, instants=instants(1), workers=workers)
            yield Case(f"SIGKILL, {workers} workers", act, words)
        for _ in range(1 if sample else 20):
            act = partial(killed, instants=instants(chance.choice([2, 3])), workers=workers)
            yield Case(f"SIGKILL again and again, {workers} workers", act, words)
    for _ in range(2 if sample else 60):
        yield Case("SIGKILL, slow disk", partial(killed, instants=instants(1), slow_s=0.003))
    for touch in (3, 20, 33, 47) if sample else range(1, 201):
        yield Case("SIGKILL at each touch of the disk", partial(killed_at_touch, touch=touch))
    for number, name in ((signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")):
        for turn in range(2 if sample else 40):
            workers = 2 * (turn % 2)
            options = {"workers": workers, "group": turn % 4 > 1 or sample, "instant": chance.uniform(0, 0.95)}
            yield Case(name, partial(signalled, number=number, **options), ("--workers", str(workers)))


def _damage(files: Sequence[str], *, sample: bool) -> Iterator[Case]:
    for place, file in enumerate(files):
        for step in [9 * place][place % 2 :] if sample else range(TRUNCATIONS):
            harm = partial(truncate, sixty_fourths=step)
            yield Case("checkpoint file truncated", partial(newest_damaged, file=file, harm=harm))
        for turn in range(1 if sample else 24):
            harm = partial(flip, seed=100 * place + turn)
            yield Case("checkpoint bit flipped", partial(newest_damaged, file=file, harm=harm))
        if place % 3 == 0 or not sample:
            yield Case("checkpoint file missing", partial(newest_damaged, file=file, harm=remove))
    planted = ("model.pt", "optimizer.pkl", "data.pkl", ".metadata", "model.safetensors", "state.json", "manifest.json")
    elsewhere = ("/model.pt", "/checkpoints/data.pkl", "/final.pkl")
    for file in planted[1::4] if sample else planted + elsewhere:
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
        yield Case("disk full", partial(disk_full, kib=kib), pictures=True)
    for limit in (5000,) if sample else (100, 900, 5000, 9000, 20_000, 100_000, 300_000):
        yield Case("file size limit", partial(file_limit, limit=limit), pictures=True)
    for below in ("",) if sample else ("", "checkpoints"):
        for stopped in (True,) if sample else (False, True):
            yield Case("read-only folder", partial(read_only, below=below, stopped=stopped))
    obstacles = (("", "file"), ("checkpoints", "file"), ("final", "file"), ("journal.jsonl", "folder"))
    obstacles += (("config.json", "folder"), ("final/model.safetensors", "folder"), ("curves.png", "folder"))
    for name, kind in obstacles[1:3] if sample else obstacles:
        yield Case("something in the way", partial(in_the_way, name=name, kind=kind), pictures=True)
