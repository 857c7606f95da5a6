"""Best value, patience and saved state for any history of evaluations."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.training.config import MonitorConfig
from trueloop.training.evaluation.monitor import Monitor, MonitorDecision

values = st.lists(st.floats(-5, 5) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=30)


def decisions(monitor, history):
    return [monitor.observe({"val/loss": value}, update) for update, value in enumerate(history)]


@given(history=values, mode=st.sampled_from(["min", "max"]))
def test_the_best_is_the_extreme_of_the_finite_values(history, mode):
    monitor = Monitor(MonitorConfig(mode=mode))
    judged = decisions(monitor, history)
    finite = [value for value in history if math.isfinite(value)]
    extreme = (min if mode == "min" else max)(finite, default=None)
    assert monitor.best_value == extreme
    assert monitor.best_update == (None if extreme is None else history.index(extreme))
    assert not any(judgement.stop for judgement in judged)


@given(history=values, patience=st.integers(1, 5), min_delta=st.floats(0, 1))
def test_it_stops_after_patience_evaluations_without_improvement(history, patience, min_delta):
    judged = decisions(Monitor(MonitorConfig(patience=patience, min_delta=min_delta)), history)
    reference, restarts = None, []
    for value in history:
        restarts.append(math.isfinite(value) and (reference is None or reference - value > min_delta))
        reference = value if restarts[-1] else reference
    for last in range(len(judged)):
        window = restarts[max(0, last + 1 - patience) : last + 1]
        assert judged[last].stop == (len(window) == patience and not any(window))


@given(history=values, mode=st.sampled_from(["min", "max"]), min_delta=st.floats(0, 1))
def test_mode_max_equals_mode_min_of_the_negative(history, mode, min_delta):
    other = {"min": "max", "max": "min"}[mode]
    straight = decisions(Monitor(MonitorConfig(mode=mode, patience=2, min_delta=min_delta)), history)
    mirrored = decisions(
        Monitor(MonitorConfig(mode=other, patience=2, min_delta=min_delta)), [-value for value in history]
    )
    assert straight == mirrored


@given(history=values, resume_at=st.integers(0, 30))
def test_resuming_anywhere_changes_no_decision(history, resume_at):
    config = MonitorConfig(patience=2, min_delta=0.1)
    full = decisions(Monitor(config), history)
    first, second = Monitor(config), Monitor(config)
    before = decisions(first, history[:resume_at])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    after = decisions(second, history[resume_at:])
    assert before + after == full


def test_an_improvement_of_exactly_min_delta_is_the_best_but_does_not_restart_patience():
    judged = decisions(Monitor(MonitorConfig(min_delta=0.5, patience=1)), [2.0, 1.5, 1.4375])
    assert judged == [MonitorDecision(True, False), MonitorDecision(True, True), MonitorDecision(True, False)]


def test_the_stop_message():
    monitor = Monitor(MonitorConfig(patience=2))
    decisions(monitor, [math.nan, math.nan])
    assert monitor.stop_message() == "val/loss did not improve in 2 evaluations; it was never finite."
    decisions(monitor, [0.5, 1.0])
    assert "the best is 0.5, after update" in monitor.stop_message()


def test_a_nan_counts_against_patience():
    assert decisions(Monitor(MonitorConfig(patience=2)), [1.0, math.nan, math.nan])[-1] == MonitorDecision(False, True)


def test_an_unknown_metric_is_refused_with_the_available_ones():
    monitor = Monitor(MonitorConfig(metric="val/los"))
    with pytest.raises(InvalidConfig, match="'val/los'") as refused:
        monitor.observe({"val/loss": 1.0, "val/accuracy": 0.5}, 1)
    assert "val/loss, val/accuracy" in refused.value.why
    assert refused.value.fix == "Did you mean 'val/loss'?"
    assert monitor.best_value is None


def test_an_evaluation_without_metrics_is_refused():
    with pytest.raises(InvalidConfig, match="They compute: nothing"):
        Monitor(MonitorConfig()).observe({}, 1)


def test_a_state_of_another_metric_is_refused():
    state = Monitor(MonitorConfig(metric="val/accuracy", mode="max")).state_dict()
    with pytest.raises(CheckpointError, match="val/accuracy"):
        Monitor(MonitorConfig()).load_state_dict(state)
