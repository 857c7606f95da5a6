"""Each experiment is run and measured, and a claim that does not hold is reported."""

from __future__ import annotations

import re

import pytest

from trueloop.core.learning import LearningVerdict
from trueloop.failures.load import catalogue
from trueloop.lab.simulator import run_scenario
from trueloop.lab.teaching.scenarios import SCENARIO_NAMES, SCENARIOS, Record, learning, update_reaching
from trueloop.lab.teaching.script_run import Stopped

INJECTS = {code: entry.failure.inject for code, entry in catalogue().items() if entry.failure.inject}


def test_every_experiment_has_a_name():
    assert tuple(SCENARIOS) == SCENARIO_NAMES


@pytest.mark.parametrize("name", SCENARIO_NAMES)
def test_the_claim_is_checked_against_the_runs(name: str):
    progress: list[float] = []
    scenario = SCENARIOS[name]
    records = run_scenario(scenario, INJECTS, progress.append)
    assert progress == sorted(progress)
    assert progress[0] == 0
    assert 0.9 < progress[-1] <= 1
    for record, variant in zip(records, scenario.variants, strict=True):
        assert record.update == list(range(variant.simulation.updates))
        assert len(record.evaluations) == variant.simulation.epochs
    verdict = scenario.judge(records)
    if name == "adam":  # the claim holds for one rate of SGD, but not for the best of the rates
        adam, *others = (update_reaching(record, 0.3) for record in records)
        assert adam
        times = [update / adam for update in others if update]
        assert times[0] > 5
        assert min(times) < 3
        assert all(f"{each:.1f} times" in verdict.measured for each in times)
    assert verdict.holds == (name != "adam"), verdict.measured
    assert len(re.findall(r"\d", verdict.measured)) > 4


def flat(value: float) -> Record:
    """Return a record in which nothing changes."""
    n = 200
    return Record(
        update=list(range(n)), loss=[value] * n, norm=[value] * n, rate=[0.1] * n, evaluations=[(n, value, 0.5)],
        sweep=[0.0] * 51,
    )  # fmt: skip


@pytest.mark.parametrize("name", SCENARIO_NAMES)
def test_a_claim_that_does_not_hold_is_reported(name: str):
    verdict = SCENARIOS[name].judge([flat(0.5) for _ in SCENARIOS[name].variants])
    assert not verdict.holds
    assert verdict.measured


def test_runs_are_judged_as_by_trueloop_run():
    assert learning(flat(0.1)).verdict is LearningVerdict.LEARNING
    assert learning(flat(0.7)).verdict is LearningVerdict.NOT_AT_ALL
    assert learning(flat(float("inf"))).verdict is LearningVerdict.DIVERGING
    assert "always answering the class shares costs 0.693" in learning(flat(0.7)).losses


def test_a_loss_is_reached_by_the_mean_of_several_batches():
    record = flat(1.0)
    record.loss[50] = 0.0
    assert update_reaching(record, 0.9) is None
    record.loss[100:] = [0.5] * 100
    assert 100 < (update_reaching(record, 0.9) or 0) <= 120


def test_an_experiment_can_be_stopped():
    def stop(progress: float) -> None:
        if progress > 0.1:
            raise Stopped

    with pytest.raises(Stopped):
        run_scenario(SCENARIOS["rate"], INJECTS, stop)
