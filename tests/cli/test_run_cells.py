import math

from trueloop.cli.run_cells import (
    best_cell,
    duration_cell,
    labels_of,
    metric_cell,
    progress_cell,
    started_cell,
    value_cell,
)
from trueloop.core.protocols import RunStarted
from trueloop.runs.queries.overview import Point, read_overview


def test_the_cells_of_a_run(made):
    seen = read_overview(made.run("a"))
    assert (progress_cell(seen), duration_cell(seen), best_cell(seen)) == ("6/6", "1.5 s", "val/loss 0.3000 @ 4")
    assert started_cell(seen).startswith("2023-11-1")


def test_a_run_that_does_not_tell(made, made_runs_module):
    seen = read_overview(made_runs_module.damage(made.run("a")))
    assert (progress_cell(seen), duration_cell(seen), started_cell(seen)) == ("", "", "")
    assert best_cell(seen).startswith("Line 2 of ")


def test_a_start_that_is_no_time_and_a_run_of_unknown_length(made):
    seen = read_overview(
        made.write("a", [RunStarted(name="x", epochs=1, updates=None, start_update=0, facts={})], at=math.inf)
    )
    assert (started_cell(seen), progress_cell(seen), best_cell(seen)) == ("unknown", "0/?", "")


def test_numbers_and_texts():
    cells = [metric_cell(None), metric_cell(Point(0.123456, 7, 1)), value_cell(0.5), value_cell(None), value_cell(3)]
    assert cells == [
        "", "0.1235 @ 7", "0.5000", "", "3"
    ]  # fmt: skip


def test_runs_that_are_called_alike_are_told_apart(made, made_runs_module, tmp_path):
    one, two = read_overview(made.run("a")), read_overview(made.run("b"))
    elsewhere = read_overview(made_runs_module.MadeRuns(tmp_path / "other").run("a"))
    assert labels_of([one, two]) == ["a", "b"]
    assert labels_of([one, two, one]) == ["a", "b", "a (2)"]
    assert labels_of([one, elsewhere]) == [str(one.path), str(elsewhere.path)]
