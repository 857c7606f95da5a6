import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.core.protocols import Evaluated, RunStarted
from trueloop.runs.journal import read_journal
from trueloop.runs.queries.index import load_overviews
from trueloop.runs.queries.overview import Point
from trueloop.runs.queries.ranking import metric_mode, rank_points, rank_runs, require_mode


def test_every_evaluation_of_every_run_counts(fake_runs):
    # Another metric is monitored, so no evaluation is marked best by accuracy.
    fake_runs.run("a", losses=(0.1, 0.2), accuracies=(0.5, 0.99))
    fake_runs.run("b", losses=(0.3, 0.2), accuracies=(0.7, 0.98))
    found = rank_runs(load_overviews(fake_runs.root), "val/accuracy", "max")
    assert [(each.run.name, each.point) for each in found] == [("a", Point(0.99, 4, 2)), ("b", Point(0.98, 4, 2))]
    assert [each.run.name for each in rank_runs(load_overviews(fake_runs.root), "val/accuracy", "min")] == ["a", "b"]


def test_of_equals_the_run_that_started_earlier_wins(fake_runs):
    fake_runs.run("a", losses=(0.1,), at=2.0)
    fake_runs.run("b", losses=(0.1,), at=1.0)
    assert rank_runs(load_overviews(fake_runs.root), "val/loss", "min")[0].run.name == "b"


def test_an_unknown_metric_lists_the_measured_ones(fake_runs):
    fake_runs.run("a", accuracies=(0.1, 0.2, 0.3))
    with pytest.raises(
        InvalidConfig, match="No run has measured 'val/accurcy'.\nDid you mean 'val/accuracy'"
    ) as caught:
        rank_runs(load_overviews(fake_runs.root), "val/accurcy", "max")
    assert caught.value.fix == "Did you mean 'val/accuracy'? Measured metrics: val/loss, val/accuracy."


def test_a_metric_without_finite_values_is_refused(fake_runs):
    fake_runs.run("a", losses=(float("nan"),))
    with pytest.raises(InvalidConfig, match="No run has a finite value of 'val/loss'"):
        rank_runs(load_overviews(fake_runs.root), "val/loss", "min")


def test_the_mode_comes_from_the_runs_else_from_the_name(fake_runs):
    fake_runs.run("a", facts={"config": {"monitor": {"metric": "val/score", "mode": "max"}}})
    runs = load_overviews(fake_runs.root)
    assert metric_mode("val/score", runs) == "max"
    names = {"val/loss": "min", "test/top-5": "max", "val/F1": "max", "val/rmse": "min", "val/word_error": "min"}
    assert {name: metric_mode(name, []) for name in names} == names
    assert metric_mode("val/thing", runs) is None
    assert metric_mode("val/mapping", runs) is None


def test_an_unknown_mode_must_be_passed(fake_runs):
    fake_runs.write(
        "a",
        [
            RunStarted(name="x", epochs=1, updates=1, start_update=0, facts={}),
            Evaluated(update=1, epoch=1, split="val", metrics={"thing": 1.0}, tables={}, seconds=0.1, best=False),
        ],
    )
    runs = load_overviews(fake_runs.root)
    with pytest.raises(InvalidConfig, match="'val/thing' .* whether lower or higher values are better") as caught:
        require_mode("val/thing", runs)
    assert caught.value.fix == "Pass --mode min or --mode max."
    with pytest.raises(InvalidConfig, match="No run has measured 'val/thin'.\nDid you mean 'val/thing'"):
        require_mode("val/thin", runs)


def test_disagreeing_runs_have_no_mode(fake_runs):
    fake_runs.run("a", facts={"config": {"monitor": {"metric": "val/loss", "mode": "max"}}})
    fake_runs.run("b")
    assert metric_mode("val/loss", load_overviews(fake_runs.root)) is None


def test_all_values_of_a_run_are_ranked(fake_runs):
    history = read_journal(fake_runs.run("a", losses=(0.5, float("nan"), 0.3, 0.5)))
    assert rank_points(history, "val/loss", "min") == [Point(0.3, 6, 3), Point(0.5, 2, 1), Point(0.5, 8, 4)]
    assert rank_points(history, "val/loss", "max")[0] == Point(0.5, 2, 1)
    assert rank_points(history, "val/none", "max") == []
