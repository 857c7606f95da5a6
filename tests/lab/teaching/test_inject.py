"""A failure gets the settings that it needs; several failures can be combined, or are refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.failures.load import catalogue
from trueloop.failures.teaching_script import CannotInject
from trueloop.lab.teaching.datasets import AddedPoint
from trueloop.lab.teaching.inject import LATE, inject_failures, injectables, write_script
from trueloop.lab.teaching.program import Program
from trueloop.lab.teaching.simulation import Simulation

INJECTS = {code: entry.failure.inject for code, entry in catalogue().items() if entry.failure.inject}


def test_only_the_settings_that_a_failure_needs_are_changed():
    with pytest.raises(CannotInject) as error:
        inject_failures(Simulation(), [INJECTS["SCH002"]])
    assert error.value.settings == {"accumulation": 4}
    _, simulation = write_script(Simulation(seed=3), [INJECTS["SCH002"]])
    assert simulation == Simulation(seed=3, accumulation=4, schedule="cosine")


@pytest.mark.parametrize(
    ("code", "changes", "expected_changes"),
    [
        ("GRD002", {"precision": "float16"}, {"precision": "float32"}),
        ("EVL003", {"no_grad": False}, {"no_grad": True}),
        ("SCH002", {"schedule": "onecycle", "accumulation": 2}, {"schedule": "cosine"}),
        ("OPT001", {"hidden": ()}, {"hidden": (16,)}),
        ("EVL008", {"samples": 20, "batch": 7}, {"samples": 21, "batch": 4}),
        ("EVL008", {"samples": 60, "batch": 4}, {"batch": 5}),
        ("GRD004", {"samples": 60, "batch": 8, "accumulation": 2}, {"accumulation": 4}),  # 6 batches of 48 points
        ("GRD004", {"samples": 60, "batch": 8, "accumulation": 4}, {}),
        ("SCH006", {"schedule": "cosine"}, {"epochs": 3}),
    ],
)
def test_settings_at_which_torch_would_raise_are_changed(code, changes, expected_changes):
    before = Simulation(**{"epochs": 1, "samples": 60, "batch": 8, **changes})
    loop, simulation = write_script(before, [INJECTS[code]])
    assert simulation == replace(before, **expected_changes)
    Program(loop.text()).run()


@pytest.mark.parametrize(("code", "epochs"), [(code, epochs) for code, (epochs, _) in LATE.items()])
def test_a_failure_that_shows_late_says_so_and_gets_a_short_run(code, epochs):
    failure = injectables()[code]
    assert failure.late.endswith(".")
    assert write_script(Simulation(), [failure.inject]).simulation.epochs == (epochs or Simulation().epochs)
    short = write_script(Simulation(epochs=3), [failure.inject]).simulation.epochs
    assert short == (8 if code == "LRN006" else 3), "a rate that is too low shows after 100 updates"


def test_a_switch_that_cannot_act_says_why():
    even = Simulation(samples=400, batch=16, accumulation=5)
    with pytest.raises(CannotInject, match="The 20 batches of an epoch divide evenly into windows of 5"):
        inject_failures(even, [INJECTS["GRD004"]])
    assert write_script(even, [INJECTS["GRD004"]]).simulation == replace(even, accumulation=6)


def test_added_points_must_not_leave_a_batch_of_one():
    simulation = Simulation(samples=60, batch=8, batchnorm=True)
    assert inject_failures(simulation, [], [AddedPoint(0.0, 0.0, 0)] * 2).simulation == simulation
    with pytest.raises(InvalidConfig, match="49 points in batches of 8 leave a batch of one point"):
        inject_failures(simulation, [], [AddedPoint(0.0, 0.0, 0)])


def test_conflicting_failures_are_refused():
    with pytest.raises(CannotInject):
        write_script(Simulation(), [INJECTS["SCH003"], INJECTS["SCH004"]])
    with pytest.raises(CannotInject):
        write_script(Simulation(), [INJECTS["DAT003"], INJECTS["DST003"]])


def test_two_failures_give_a_valid_script_or_an_error():
    refused = set()
    for pair in combinations(INJECTS, 2):
        try:
            loop, _ = write_script(Simulation(), [INJECTS[code] for code in pair])
        except CannotInject as error:
            assert error.what
            assert error.fix
            refused.add(pair)
        else:
            compile(loop.text(), "pair", "exec")
            assert loop.changed_lines(), pair
    assert len(refused) < 40, refused
