"""Time the programs of the lab's production page as the page shows them: each component against the minimal loop."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import Clock, Cost, SideBySide, interleave, machine

from trueloop.lab.teaching.production.program import production_program
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


def compile_halves(selection: Selection, model: str) -> tuple[Any, Any]:
    """Compile both parts of a program, before training and training itself, with fewer epochs and more data."""
    settings = production_program(selection).part("settings").replace("EPOCHS = 10", f"EPOCHS = {EPOCHS}")
    program = production_program(selection, {"settings": settings, "data": LOAD, **MODELS[model]})
    before, loop = program.halves
    return compile(before, "before", "exec"), compile(loop, "loop", "exec")


def timed(code: tuple[Any, Any]) -> Cost:
    """Run one program in an empty folder and return the mean cost of an update, including the work of an epoch."""
    names: dict[str, Any] = {"__name__": "__main__"}
    clock, original_folder = Clock(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(nowhere):
                exec(code[0], names)
                clock.tick()
                exec(code[1], names)
                clock.tick()
        finally:
            os.chdir(original_folder)
    updates = EPOCHS * -(-len(names["train_data"]) // BATCH)
    total = clock.per_tick(0)
    return Cost(total.wall / updates, total.cpu / updates)


def measure_texts(*, quick: bool) -> dict[str, Any]:
    """Time every program on both models in turns; return the figures for the result file, with the machine."""
    rounds = {"mlp": 2, "cnn": 1} if quick else {"mlp": 20, "cnn": 8}
    found: dict[str, Any] = {}
    for model in MODELS:
        torch.manual_seed(0)
        runs: dict[str, Callable[[], Cost]] = {
            name: partial(timed, compile_halves(each, model)) for name, each in SELECTIONS.items()
        }
        found[model] = _figures(interleave(runs, rounds[model]))
    about = machine()
    about["versions"] = {"torch": about["versions"]["torch"]}
    examples = 1797 * REPEATED
    settings = {"rounds": rounds, "epochs": EPOCHS, "batch": BATCH, "examples": examples}
    return {"machine": about, "settings": settings, "found": found}


def _figures(times: SideBySide) -> dict[str, Any]:
    return {
        name: {
            "seconds_per_update": times.cost(name),
            "wall_ratio": times.ratio(name, MINIMAL),
            "cpu_ratio": times.ratio(name, MINIMAL, "cpu"),
        }
        for name in SELECTIONS
    }
