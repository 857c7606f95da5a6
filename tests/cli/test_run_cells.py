import math

from trueloop.cli.run_cells import (
    best_cell,
    duration_cell,
    metric_cell,
    progress_cell,
    started_cell,
    unique_labels,
    value_cell,
)
from trueloop.core.protocols import RunStarted
from trueloop.runs.queries.overview import Point, read_overview


def test_the_cells_of_a_run_are_formatted(fake_runs):
    overview = read_overview(fake_runs.run("a"))
    assert (progress_cell(overview), duration_cell(overview), best_cell(overview)) == (
        "6/6",
        "1.5 s",
        "val/loss 0.3000 @ 4",
    )
    assert started_cell(overview).startswith("2023-11-1")


def test_the_cells_of_a_damaged_run_are_empty(fake_runs, fake_runs_module):
    overview = read_overview(fake_runs_module.damage(fake_runs.run("a")))
    assert (progress_cell(overview), duration_cell(overview), started_cell(overview)) == ("", "", "")
    assert best_cell(overview).startswith("Line 2 of ")


def test_an_invalid_time_and_an_unknown_length_are_marked(fake_runs):
    overview = read_overview(
        fake_runs.write("a", [RunStarted(name="x", epochs=1, updates=None, start_update=0, facts={})], at=math.inf)
    )
    assert (started_cell(overview), progress_cell(overview), best_cell(overview)) == ("unknown", "0/?", "")


def test_values_are_formatted():
    cells = [metric_cell(None), metric_cell(Point(0.123456, 7, 1)), value_cell(0.5), value_cell(None), value_cell(3)]
    assert cells == [
        "", "0.1235 @ 7", "0.5000", "", "3"
    ]  # fmt: skip


def test_labels_of_runs_are_unique(fake_runs, fake_runs_module, tmp_path):
    one, two = read_overview(fake_runs.run("a")), read_overview(fake_runs.run("b"))
    elsewhere = read_overview(fake_runs_module.FakeRuns(tmp_path / "other").run("a"))
    assert unique_labels([one, two]) == ["a", "b"]
    assert unique_labels([one, two, one]) == ["a", "b", "a (2)"]
    assert unique_labels([one, elsewhere]) == [str(one.path), str(elsewhere.path)]
