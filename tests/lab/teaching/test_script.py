"""The script of a simulation is plain PyTorch, runs unchanged, and follows its settings."""

from __future__ import annotations

import contextlib
import io
import math
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from trueloop.lab.teaching import simulation as simulation_module
from trueloop.lab.teaching.datasets import AddedPoint
from trueloop.lab.teaching.script import OPTIMIZERS, SCHEDULES, teaching_loop
from trueloop.lab.teaching.simulation import Simulation

SMALL = Simulation(samples=60, batch=8, epochs=2, hidden=(4,))
SIMULATIONS = [
    *(replace(SMALL, dataset=each) for each in get_args(simulation_module.Dataset)),
    *(replace(SMALL, optimizer=each, weight_decay=0.01) for each in get_args(simulation_module.Optimizer)),
    *(replace(SMALL, schedule=each, accumulation=2) for each in get_args(simulation_module.Schedule)),
    *(replace(SMALL, activation=each) for each in get_args(simulation_module.Activation)),
    *(replace(SMALL, precision=each, clip=1.0) for each in get_args(simulation_module.Precision)),
    replace(SMALL, hidden=()),
    replace(SMALL, hidden=(4, 4, 4, 4), batchnorm=True, dropout=0.5, keep_best=True, no_grad=False),
]


def run_script(text: str, folder: Path) -> dict[str, Any]:
    path = folder / "script.py"
    path.write_text(text)
    dtype = torch.get_default_dtype()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_default_dtype(dtype)


@pytest.mark.parametrize("simulation", SIMULATIONS, ids=range(len(SIMULATIONS)))
def test_every_setting_gives_a_script_that_runs(simulation: Simulation, tmp_path: Path):
    text = teaching_loop(simulation).text()
    assert "trueloop" not in text
    assert max(map(len, text.splitlines())) <= 120
    names = run_script(text, tmp_path)
    assert len(names["losses"]) == 2 * 6
    assert len(names["evaluations"]) == 2
    assert all(0 <= accuracy <= 1 for _, accuracy in names["evaluations"])
    assert len(names["train_set"]) == simulation.training_points == 48
    assert names["model"].head.out_features == simulation.classes
    assert not teaching_loop(simulation).changed_lines()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("schedule", ["constant", *SCHEDULES])
def test_every_schedule_works_with_every_optimizer(optimizer: Any, schedule: Any, tmp_path: Path):
    names = run_script(teaching_loop(replace(SMALL, epochs=1, optimizer=optimizer, schedule=schedule)).text(), tmp_path)
    assert all(map(math.isfinite, names["losses"]))


def test_a_window_equals_one_large_batch(tmp_path: Path):
    common = replace(SMALL, precision="float64", optimizer="sgd", epochs=1)
    big = teaching_loop(replace(common, batch=20, accumulation=1)).text()
    small = teaching_loop(replace(common, batch=5, accumulation=4)).text()
    expected, actual = (run_script(text, tmp_path)["model"].state_dict() for text in (big, small))
    for name, value in expected.items():
        torch.testing.assert_close(value, actual[name], rtol=1e-12, atol=1e-12)


def test_added_points_are_trained_on(tmp_path: Path):
    names = run_script(teaching_loop(SMALL, [AddedPoint(0.5, -0.25, 1), AddedPoint(2.0, 0.0, 0)]).text(), tmp_path)
    assert len(names["train_set"]) == 50
    assert names["train_set"].tensors[0][-2].tolist() == [0.5, -0.25]
    assert names["train_set"].tensors[1][-2:].tolist() == [1, 0]
    assert len(names["held_out_set"]) == 12
