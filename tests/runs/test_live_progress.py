import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.protocols import Evaluated, RunStarted, UpdateRow, UpdatesDone
from trueloop.runs.live_progress import MAX_TRACE_POINTS, Progress


def rows(losses, *, examples=8, wait=0.25, total=1.0, first=1):
    return UpdatesDone(
        rows=[
            UpdateRow(k, 1, loss, 1.0, 0.1, examples, wait, total, not math.isfinite(loss))
            for k, loss in enumerate(losses, first)
        ]
    )


def evaluated(update, split="val", *, best=False, **metrics):
    return Evaluated(update=update, epoch=1, split=split, metrics=metrics, tables={}, seconds=0.1, best=best)


def start(updates=100, start_update=0, facts=None):
    return RunStarted(name="x", epochs=4, updates=updates, start_update=start_update, facts=facts or {})


def test_rates_and_shares_are_those_of_the_rows():
    progress = Progress()
    progress.observe(rows([1.0] * 50))
    assert progress.updates_per_s == pytest.approx(1.0)
    assert progress.examples_per_s == pytest.approx(8.0)
    assert progress.waiting_share == pytest.approx(0.25)


def test_a_stall_shows_immediately():
    progress = Progress()
    progress.observe(rows([1.0] * 1000, total=0.01, wait=0.0))
    progress.observe(rows([1.0], total=10.0, wait=10.0, first=1001))
    assert progress.waiting_share > 0.9


def test_the_train_loss_is_the_example_mean_since_the_last_evaluation():
    progress = Progress()
    progress.observe(rows([1.0], examples=10))
    progress.observe(rows([4.0, math.nan], examples=20, first=2))
    assert progress.train_loss == pytest.approx(3.0)
    progress.observe(evaluated(3, loss=0.5))
    assert progress.train_loss == pytest.approx(3.0)  # unchanged for the second split of the same evaluation
    progress.observe(rows([2.0], first=4))
    assert progress.train_loss == 2.0
    assert progress.skipped == 1


@given(st.lists(st.floats(0, 100), min_size=1, max_size=700), st.integers(1, 40))
def test_the_trace_is_bounded_and_within_the_losses(losses, points):
    progress = Progress()
    progress.observe(rows(losses))
    trace = progress.loss_trace(points)
    assert 0 < len(trace) <= points
    assert min(losses) - 1e-6 <= min(trace) <= max(trace) <= max(losses) + 1e-6
    assert min(losses) - 1e-6 <= progress.loss <= max(losses) + 1e-6


def test_memory_stays_constant_over_many_updates():
    progress = Progress()
    progress.observe(rows([1.0] * 100_000))
    assert len(progress._trace) < MAX_TRACE_POINTS


def test_remaining_time_follows_the_pace_of_this_process():
    progress = Progress()
    assert progress.remaining_s(1.0) is None
    progress.observe(start(start_update=50))
    assert progress.remaining_s(1.0) is None
    progress.observe(rows([1.0] * 10, first=51))
    assert progress.remaining_s(20.0) == pytest.approx(80.0)
    progress.observe(start(updates=None))
    assert progress.remaining_s(20.0) is None


def test_the_position_is_right_before_the_first_update_of_a_resumed_run():
    progress = Progress()
    progress.observe(start(start_update=50))
    assert (progress.epoch, progress.update) == (3, 50)


def test_the_best_is_by_the_monitored_metric():
    progress = Progress()
    progress.observe(start(facts={"config": {"monitor": {"metric": "val/accuracy"}}}))
    assert math.isnan(progress.best_value)
    progress.observe(evaluated(5, best=True, loss=0.5, accuracy=0.75))
    progress.observe(evaluated(5, "test", best=True, loss=0.5, accuracy=0.1))
    progress.observe(evaluated(9, loss=0.4, accuracy=0.5))
    assert (progress.best.update, progress.best_value) == (5, 0.75)
    assert progress.latest["val"].update == 9


@pytest.mark.parametrize(
    "facts", [{}, {"config": 3}, {"config": {"monitor": {"metric": None}}}, {"config": {"monitor": {}}}]
)
def test_without_facts_the_validation_loss_is_monitored(facts):
    progress = Progress()
    progress.observe(start(facts=facts))
    assert progress.monitored_metric == "val/loss"
