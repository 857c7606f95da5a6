import math

from trueloop.core.protocols import UpdateRow, UpdatesDone
from trueloop.runs.journal import read_journal
from trueloop.runs.panels import MAX_MARKS, build_panels


def by_name(run_dir):
    return {panel.name: panel for panel in build_panels(read_journal(run_dir))}


def test_a_whole_run_has_every_panel_in_reading_order(run, synthetic):
    panels_by_name = by_name(run(synthetic.finished_run(skipped=(40, 150))))
    assert list(panels_by_name) == ["loss", "metric_accuracy", "lr", "grad_norm", "throughput", "waiting"]
    assert [curve.label for curve in panels_by_name["loss"].curves] == ["train, each update", "train", "val", "test"]
    assert panels_by_name["loss"].marks == panels_by_name["grad_norm"].marks == [40, 150]
    assert panels_by_name["loss"].best == (230, panels_by_name["loss"].curves[2].y[9])
    assert panels_by_name["grad_norm"].log
    assert panels_by_name["loss"].log  # it falls by more than a factor of 30
    assert panels_by_name["metric_accuracy"].caption == "Accuracy at the end: val 0.983, test 0.983."


def test_without_validation_there_are_only_training_panels(run, synthetic):
    panels_by_name = by_name(run([synthetic.started(), UpdatesDone(rows=list(synthetic.rows(1, 23)))]))
    assert list(panels_by_name) == ["loss", "lr", "grad_norm", "throughput", "waiting"]
    assert panels_by_name["loss"].best is None


def test_a_run_without_finite_values_shows_the_rest(run, synthetic):
    rows = [UpdateRow(k, 1, math.nan, math.nan, 0.1, 8, 0.0, 0.5, True) for k in range(1, 4)]
    panels_by_name = by_name(run([synthetic.started(), UpdatesDone(rows=rows)]))
    assert list(panels_by_name) == ["lr", "throughput", "waiting"]
    assert panels_by_name["throughput"].caption == "On average 16.0 examples per second of training."


def test_an_empty_run_has_no_panels(run, synthetic):
    assert by_name(run([synthetic.started()])) == {}


def test_zero_duration_causes_no_division_by_zero(run, synthetic):
    rows = [UpdateRow(1, 1, 0.5, 0.0, 0.1, 8, 0.0, 0.0, False)]
    assert list(by_name(run([synthetic.started(), UpdatesDone(rows=rows)]))) == ["loss", "lr"]


def test_long_runs_and_their_marks_are_downsampled(run, synthetic):
    rows = [row._replace(skipped=True) for row in synthetic.rows(1, 5000, total=5000)]
    loss = by_name(run([synthetic.started(), UpdatesDone(rows=rows)]))["loss"]
    assert all(len(curve.x) <= 800 for curve in loss.curves)
    assert MAX_MARKS <= len(loss.marks) < 2 * MAX_MARKS


def test_groups_with_different_rates_have_separate_curves(run, synthetic):
    rows = [UpdateRow(k, 1, 0.5, 1.0, 0.1, 8, 0.0, 0.5, False, (0.1, 0.01 * k)) for k in range(1, 4)]
    [panel] = [
        each
        for each in build_panels(read_journal(run([synthetic.started(), UpdatesDone(rows=rows)])))
        if each.name == "lr"
    ]
    assert [(curve.label, list(curve.y)) for curve in panel.curves] == [
        ("group 0", [0.1, 0.1, 0.1]), ("group 1", [0.01, 0.02, 0.03])
    ]  # fmt: skip
    assert len({curve.role for curve in panel.curves}) == 2
