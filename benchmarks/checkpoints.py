"""Measure the cost of a checkpoint: how long training waits, and the speed compared with plain safetensors files.

The state is that of a model trained with AdamW: weights, and two moments of each weight. Training waits until a
blocking save is complete; for an asynchronous save, it waits only for the copy. Plain safetensors means `save_file` of
everything into one file: unsynced (the file is in the page cache) or synced (it is on the disk, as every checkpoint).
Loading copies into existing tensors, as `load_state_dict` does, with the files in the page cache or only on the disk.
Plain safetensors maps the file and verifies nothing; a checkpoint is read, and its SHA-256 is verified.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, process_time

import torch
from measure import Cost, SideBySide, console, interleave, options, table, verdict, write
from safetensors.torch import load_file, save_file
from torch import Tensor

from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.checkpoint.saver import Saver

MIB = 2**20
LAYERS = 24
State = dict[str, dict[str, Tensor]]

BLOCKING = "blocking save"
WAITED = "asynchronous save, training waits"
COMPLETE = "asynchronous save, until complete"
TRUELOOP = "trueloop"
PLAIN = "safetensors"
SYNCED = "safetensors, synced"

# task, system, reference, and goal: the largest ratio of their times
GOALS = (
    ("stall", WAITED, BLOCKING, 0.10),
    ("save", TRUELOOP, SYNCED, 1 / 0.8),
    ("load from disk", TRUELOOP, PLAIN, 1 / 0.8),
)


def state_of(size_mib: int) -> State:
    """Return weights and moments with a total size of ``size_mib``."""
    numel = size_mib * MIB // 4 // LAYERS // 3
    generator = torch.Generator().manual_seed(0)

    def tensor() -> Tensor:
        return torch.randn(numel, generator=generator)

    model = {f"layers.{layer}.weight": tensor() for layer in range(LAYERS)}
    moments = {f"{layer}.{name}": tensor() for layer in range(LAYERS) for name in ("exp_avg", "exp_avg_sq")}
    return {"model": model, "optimizer": moments}


def flatten_state(state: State) -> dict[str, Tensor]:
    """Return all tensors by name, as one flat mapping."""
    return {f"{part}.{name}": tensor for part, tensors in state.items() for name, tensor in tensors.items()}


def measure(work: Callable[[], object]) -> Cost:
    """Run ``work`` once, after all pending writes to the disk, so that no save waits for the data of another one."""
    os.sync()
    wall, cpu = perf_counter(), process_time()
    work()
    return Cost(perf_counter() - wall, process_time() - cpu)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def drop_from_page_cache(folder: Path) -> None:
    """Remove the files of a folder from the page cache."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        sync(path)
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def stall(state: State, folder: Path, rounds: int) -> SideBySide:
    """Compare how long training waits for a blocking and an asynchronous save."""
    blocking = Saver(CheckpointFolder(folder / "blocking", keep_last=1), blocking=True)
    background = Saver(CheckpointFolder(folder / "background", keep_last=1))
    complete: dict[Saver, list[Cost]] = {blocking: [], background: []}

    def save(saver: Saver) -> Cost:
        cost = measure(lambda: saver.save(state, update=1, epoch=0, metrics={}))
        saver.wait()
        complete[saver].append(Cost(saver.drain_events()[0].seconds, 0.0))  # type: ignore[union-attr]
        return cost

    found = interleave({BLOCKING: lambda: save(blocking), WAITED: lambda: save(background)}, rounds)
    blocking.close()
    background.close()
    return SideBySide(costs={**found.costs, COMPLETE: complete[background][-rounds:]})


def saving(state: State, folder: Path, rounds: int) -> SideBySide:
    """Compare writing a checkpoint that replaces the previous one."""
    checkpoints, tensors, file = (
        CheckpointFolder(folder / "ours", keep_last=1),
        flatten_state(state),
        folder / "plain.safetensors",
    )
    new = file.with_suffix(".new")

    def save_plain(*, synced: bool) -> Cost:
        def work() -> None:
            save_file(tensors, new)
            if synced:
                sync(new)
            new.replace(file)

        return measure(work)

    return interleave(
        {
            PLAIN: lambda: save_plain(synced=False),
            SYNCED: lambda: save_plain(synced=True),
            TRUELOOP: lambda: measure(lambda: checkpoints.save(state, update=1, epoch=0, metrics={})),
        },
        rounds,
    )


def loading(state: State, folder: Path, rounds: int, *, from_disk: bool) -> SideBySide:
    """Compare loading the files that `saving` wrote into existing tensors."""
    checkpoints, file = CheckpointFolder(folder / "ours", writing=False), folder / "plain.safetensors"
    target = {name: torch.zeros_like(tensor) for name, tensor in flatten_state(state).items()}
    checkpoint = checkpoints.latest()
    assert checkpoint

    def load(read: Callable[[], Mapping[str, Tensor]]) -> Cost:
        def work() -> None:
            for name, tensor in read().items():
                target[name].copy_(tensor)

        if from_disk:
            drop_from_page_cache(folder)
        cost = measure(work)
        assert all(map(torch.equal, target.values(), flatten_state(state).values()))
        return cost

    return interleave(
        {
            PLAIN: lambda: load(lambda: load_file(file)),
            TRUELOOP: lambda: load(lambda: flatten_state(checkpoints.load(checkpoint))),
        },
        rounds,
    )


def main() -> None:
    """Measure waiting, saving and loading."""
    quick = options(__doc__).quick
    rounds, small, big = (3, 25, 100) if quick else (15, 100, 500)
    found: dict[str, SideBySide] = {}
    with tempfile.TemporaryDirectory(prefix="trueloop-bench-") as name:
        folder = Path(name)
        found["stall"] = stall(state_of(small), folder / "stall", rounds)
        state = state_of(big)
        found["save"] = saving(state, folder, rounds)
        found["load from memory"] = loading(state, folder, rounds, from_disk=False)
        found["load from disk"] = loading(state, folder, rounds, from_disk=True)
    for task, side in found.items():
        reference = next(iter(side.costs))
        rows = [
            [system, f"{side.cost(system).median * 1e3:,.1f}", str(side.ratio(system, reference))]
            for system in side.costs
        ]
        table(f"{task}, {small if task == 'stall' else big} MiB", ["", "ms", f"/ {reference}"], rows)
    for task, system, reference, goal in GOALS:
        ratio = found[task].ratio(system, reference)
        console.print(f"{verdict(ratio.median, goal)}  {task}: {system} / {reference} = {ratio}, goal {goal:.2f}")
    content = {
        task: {
            system: {
                "seconds": side.cost(system),
                "cpu_seconds": side.cost(system, "cpu"),
                "ratio_to": {other: side.ratio(system, other) for other in side.costs if other != system},
            }
            for system in side.costs
        }
        for task, side in found.items()
    }
    settings = {"rounds": rounds, "mib": {"stall": small, "save and load": big}}
    write("checkpoints", {"settings": settings, "found": content}, quick=quick)


if __name__ == "__main__":
    main()
