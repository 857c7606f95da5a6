"""A failure gets what it needs, several can be in one script, and what cannot be is said."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.failures.load import catalogue
from trueloop.failures.teaching_script import CannotInject
from trueloop.lab.teaching.datasets import Added
from trueloop.lab.teaching.inject import inject_failures, write_script
from trueloop.lab.teaching.program import Program
from trueloop.lab.teaching.simulation import Simulation

INJECTS = {code: entry.failure.inject for code, entry in catalogue().items() if entry.failure.inject}


def test_a_failure_is_refused_where_it_needs_something_and_fitted_it_gets_that_and_nothing_else():
    with pytest.raises(CannotInject) as lack:
        inject_failures(Simulation(), [INJECTS["SCH002"]])
    assert lack.value.settings == {"accumulation": 4}
    _, simulation = write_script(Simulation(seed=3), [INJECTS["SCH002"]])
    assert simulation == Simulation(seed=3, accumulation=4, schedule="cosine")


@pytest.mark.parametrize(
    ("code", "given", "needs"),
    [
        ("GRD002", {"precision": "float16"}, {"precision": "float32"}),
        ("EVL003", {"no_grad": False}, {"no_grad": True}),
        ("SCH002", {"schedule": "onecycle", "accumulation": 2}, {"schedule": "cosine"}),
        ("OPT001", {"hidden": ()}, {"hidden": (16,)}),
        ("EVL008", {"samples": 20, "batch": 7}, {"samples": 21, "batch": 4}),
        ("EVL008", {"samples": 60, "batch": 4}, {"batch": 5}),
    ],
)
def test_a_failure_that_torch_would_raise_at_is_given_what_keeps_it_silent(code, given, needs):
    plain = Simulation(**{"epochs": 1, "samples": 60, "batch": 8, **given})
    loop, simulation = write_script(plain, [INJECTS[code]])
    assert simulation == replace(plain, **needs)
    Program(loop.text()).run()


def test_points_by_hand_leave_no_batch_of_one_to_a_batch_normalisation():
    simulation = Simulation(samples=60, batch=8, batchnorm=True)
    assert inject_failures(simulation, [], [Added(0.0, 0.0, 0)] * 2).simulation == simulation
    with pytest.raises(InvalidConfig, match="49 points in batches of 8 leave a batch of one point"):
        inject_failures(simulation, [], [Added(0.0, 0.0, 0)])


def test_what_needs_opposite_settings_or_the_same_line_is_refused():
    with pytest.raises(CannotInject):
        write_script(Simulation(), [INJECTS["SCH003"], INJECTS["SCH004"]])
    with pytest.raises(CannotInject):
        write_script(Simulation(), [INJECTS["DAT003"], INJECTS["DST003"]])


def test_two_failures_at_once_give_a_text_of_python_or_a_refusal():
    refused = set()
    for pair in combinations(INJECTS, 2):
        try:
            loop, _ = write_script(Simulation(), [INJECTS[code] for code in pair])
        except CannotInject as lack:
            assert lack.what
            assert lack.fix
            refused.add(pair)
        else:
            compile(loop.text(), "pair", "exec")
            assert loop.changed_lines(), pair
    assert len(refused) < 30, refused
