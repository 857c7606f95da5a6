"""Measure the programs of the lab's production page as the page shows them: time, memory and disk of each component."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import Clock, Cost, SideBySide, interleave, machine
from torch.profiler import ProfilerActivity, profile

from trueloop.lab.teaching.production.distributed import distributed_program
from trueloop.lab.teaching.production.program import Program, production_program
from trueloop.lab.teaching.production.selection import NAMES, Selection, select
from trueloop.lab.teaching.production.snippets import DATA

MINIMAL = "minimal loop"
EPOCHS, BATCH, REPEATED = 2, 64, 4
LOAD = DATA.replace("digits.data / 16", f"digits.data.repeat({REPEATED}, 0) / 16").replace(
    "digits.target)", f"digits.target.repeat({REPEATED}))"
)
"""Repeats the digits, so that an epoch is as long as in small real tasks and contains many updates per checkpoint."""
CNN = """
model = nn.Sequential(
    nn.Unflatten(1, (1, 8, 8)),
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10),
).to(device)
"""
MODELS: Mapping[str, Mapping[str, str]] = {"mlp": {}, "cnn": {"model": CNN}}
SELECTIONS: Mapping[str, Selection] = {
    MINIMAL: Selection(),
    **{name: select(name) for name in NAMES if name != "precision"},
    "precision bf16": select("precision"),
    "precision fp16": select("precision", precision="fp16"),
    "everything, in bf16": select(*NAMES),
}


DISTRIBUTED = "distributed"
ONE_PROCESS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
"""What torchrun sets for a single process, so that the distributed program can be timed in turn with the others."""


def programs(model: str) -> Iterator[tuple[str, Program]]:
    """Write every program, with fewer epochs and more data."""
    for name, selection in SELECTIONS.items():
        yield name, production_program(selection, {**_shortened(selection), **MODELS[model]})
    yield DISTRIBUTED, distributed_program(**_shortened(Selection()), **MODELS[model])


def _shortened(selection: Selection) -> dict[str, str]:
    settings = production_program(selection).part("settings").replace("EPOCHS = 10", f"EPOCHS = {EPOCHS}")
    return {"settings": settings, "data": LOAD}


def compile_halves(program: Program) -> tuple[Any, Any]:
    """Compile both parts of a program, before training and training itself."""
    before, loop = program.halves
    return compile(before, "before", "exec"), compile(loop, "loop", "exec")


@contextlib.contextmanager
def empty_folder() -> Generator[Path]:
    """Change to an empty folder, and discard what is printed."""
    original_folder = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(nowhere):
                yield Path(folder)
        finally:
            os.chdir(original_folder)


def timed(code: tuple[Any, Any]) -> Cost:
    """Run one program in an empty folder and return the mean cost of an update, including the work of an epoch."""
    names: dict[str, Any] = {"__name__": "__main__"}
    clock = Clock()
    with empty_folder():
        exec(code[0], names)
        clock.tick()
        exec(code[1], names)
        clock.tick()
    updates = EPOCHS * -(-len(names["train_data"]) // BATCH)
    total = clock.per_tick(0)
    return Cost(total.wall / updates, total.cpu / updates)


def bytes_used(code: tuple[Any, Any]) -> dict[str, int]:
    """Run one program and return the peak of its tensors, and the size of the files that it leaves behind, in bytes."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler writes to stderr at every start
    names: dict[str, Any] = {"__name__": "__main__"}
    gc.collect()
    with empty_folder() as folder:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            exec(code[0], names)
            exec(code[1], names)
        files = sum(file.stat().st_size for file in folder.iterdir())
    return {"memory_bytes": _peak_bytes(profiler), "disk_bytes": files}


def _peak_bytes(profiler: profile) -> int:
    """Return the largest number of bytes that the tensors created under the profiler had at one time."""
    current = peak = 0
    finished: Any = profiler.profiler
    for event in finished.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    return peak


def measure_texts(*, quick: bool, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Time every program on both models in turns; return the figures for the result file, with the machine.

    Args:
        quick: measure few rounds.
        known: an earlier result; only the programs that it lacks are measured, in turn with the minimal loop.
    """
    rounds = {"mlp": 2, "cnn": 1} if quick else {"mlp": 20, "cnn": 8}
    found: dict[str, Any] = {}
    os.environ.update(ONE_PROCESS)
    for model in MODELS:
        torch.manual_seed(0)
        known_rows: Mapping[str, Any] = known["found"][model] if known else {}
        codes = {
            name: compile_halves(program)
            for name, program in programs(model)
            if name == MINIMAL or name not in known_rows
        }
        used = {name: bytes_used(code) for name, code in codes.items()}
        runs: dict[str, Callable[[], Cost]] = {name: partial(timed, code) for name, code in codes.items()}
        times = _figures(interleave(runs, rounds[model]))
        found[model] = dict(known_rows)
        for name in codes:
            found[model].setdefault(name, {**times[name], **used[name]})
    about = machine()
    about["versions"] = {"torch": about["versions"]["torch"]}
    if known:
        added = {name: about["date"] for name in found["mlp"] if name not in known["found"]["mlp"]}
        return {**known, "found": found, "added": {**known.get("added", {}), **added}}
    examples = 1797 * REPEATED
    settings = {"rounds": rounds, "epochs": EPOCHS, "batch": BATCH, "examples": examples}
    return {"machine": about, "settings": settings, "found": found, "added": {}}


def _figures(times: SideBySide) -> dict[str, Any]:
    return {
        name: {
            "seconds_per_update": times.cost(name),
            "wall_ratio": times.ratio(name, MINIMAL),
            "cpu_ratio": times.ratio(name, MINIMAL, "cpu"),
        }
        for name in times.costs
    }
