import math

from trueloop.runs.journal import read_journal
from trueloop.runs.queries.overlay import overlay_panels


def test_one_panel_per_metric_and_a_curve_per_run(made):
    histories = {
        "one": read_journal(made.run("a")),
        "two": read_journal(made.run("b", losses=(0.9, 0.2), accuracies=(0.1, 0.2))),
    }
    panels = {panel.name: panel for panel in overlay_panels(histories)}
    assert list(panels) == ["train_loss", "metric_val/loss", "metric_val/accuracy", "lr", "grad_norm", "throughput"]
    loss = panels["metric_val/loss"]
    assert [(curve.label, list(curve.x), list(curve.y)) for curve in loss.curves] == [
        ("one", [2, 4, 6], [0.5, 0.3, 0.4]),
        ("two", [2, 4], [0.9, 0.2]),
    ]
    assert loss.caption == "At the end: one 0.400, two 0.200."
    assert panels["throughput"].curves[0].y[0] == 800


def test_a_run_has_the_same_colour_on_every_panel(made):
    histories = {"one": read_journal(made.run("a")), "two": read_journal(made.run("b", accuracies=(0.1, 0.2, 0.3)))}
    seen = {(curve.label, curve.run) for panel in overlay_panels(histories) for curve in panel.curves}
    assert seen == {("one", 0), ("two", 1)}


def test_curves_without_finite_values_are_not_drawn(made):
    histories = {name: read_journal(made.run(name, losses=(math.nan,))) for name in ("a", "b")}
    assert "metric_val/loss" not in {panel.name for panel in overlay_panels(histories)}
    assert overlay_panels({}) == []
