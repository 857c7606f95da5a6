"""Test that live panels equal those of the report, and that long runs lose no extreme."""

from __future__ import annotations

import math

import pytest

from trueloop.core.downsampling import DownsampledSeries
from trueloop.core.protocols import RunStarted, UpdateRow, UpdatesDone
from trueloop.runs.journal import Journal, read_journal
from trueloop.runs.live import rows as rows_module
from trueloop.runs.live.feed import FeedReader
from trueloop.runs.live.journal import JournalReader
from trueloop.runs.live.plots import feed_panels, run_panels
from trueloop.runs.panels import build_panels


def follow(run_dir):
    follower = JournalReader(run_dir)
    while follower.poll():
        pass
    return follower


def test_panels_are_those_of_the_report(run, synthetic):
    run_dir = run(synthetic.finished_run(skipped=(40,)))
    followed = {panel.name: panel for panel in run_panels(follow(run_dir))}
    reported = {panel.name: panel for panel in build_panels(read_journal(run_dir))}
    assert set(followed) == set(reported)
    for name, panel in followed.items():
        other = reported[name]
        assert (panel.log, list(panel.marks), panel.best) == (other.log, list(other.marks), other.best), name
        for curve in panel.curves:
            twin = next((each for each in other.curves if (each.kind, each.role) == (curve.kind, curve.role)), None)
            assert twin is not None, (name, curve.label)
            assert list(curve.x) == pytest.approx(list(twin.x)), (name, curve.label)
            assert list(curve.y) == pytest.approx(list(twin.y)), (name, curve.label)


def test_a_spike_of_a_long_run_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "MAX_ROWS", 64)
    journal = Journal(tmp_path / "journal.jsonl")
    journal.report(RunStarted(name="r", epochs=1, updates=5000, start_update=0, facts={}))
    losses = [100.0 if update == 1234 else -3.0 if update == 4321 else 1.0 for update in range(1, 5001)]
    rows = [UpdateRow(k, 1, loss, 2.0, 0.1, 8, 0.001, 0.01, False) for k, loss in enumerate(losses, 1)]
    journal.report(UpdatesDone(rows=rows))
    journal.close()
    (loss,) = [panel for panel in run_panels(follow(tmp_path)) if panel.name == "loss"]
    raw, line = loss.curves[:2]
    assert (max(raw.y), min(raw.y)) == (100.0, -3.0)
    assert max(line.y) < 50
    (speed,) = [panel for panel in run_panels(follow(tmp_path)) if panel.name == "throughput"]
    assert speed.curves[0].y == pytest.approx([800.0] * len(speed.curves[0].y))


def test_rates_of_several_groups_are_several_curves(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.report(RunStarted(name="r", epochs=1, updates=2, start_update=0, facts={}))
    rows = [UpdateRow(k, 1, 1.0, 1.0, 0.1, 8, 0.0, 0.01, False, (0.1, 0.2 * k)) for k in (1, 2)]
    journal.report(UpdatesDone(rows=rows))
    journal.close()
    (rates,) = [panel for panel in run_panels(follow(tmp_path)) if panel.name == "lr"]
    assert [(curve.label, list(curve.y)) for curve in rates.curves] == [
        ("group 0", [0.1, 0.1]),
        ("group 1", [0.2, 0.4]),
    ]


def series(*points: tuple[int, float]) -> DownsampledSeries[float]:
    made = DownsampledSeries[float]()
    for update, value in points:
        made.add(update, value)
    return made


def test_a_program_shows_its_pace_and_nonfinite_values(tmp_path):
    feed = FeedReader(tmp_path)
    feed.series = {
        "loss": series((0, 2.0), (1, math.nan), (2, 1.0)),
        "grad_norm": series((0, 0.0), (1, 10.0)),
        "seconds": series((0, 1.0), (0, 2.0), (100, 4.0), (100, 4.0), (400, 5.0)),
    }
    shown = {panel.name: panel for panel in feed_panels(feed)}
    assert set(shown) == {"loss", "grad_norm", "throughput"}
    assert (list(shown["loss"].marks), list(shown["loss"].curves[0].y)) == ([1], [2.0, 1.0])
    assert "1 value not finite" in shown["loss"].caption
    assert (shown["grad_norm"].log, list(shown["grad_norm"].curves[0].x)) == (True, [1])
    assert list(shown["throughput"].curves[0].y) == [0.0, 50.0, 300.0]


def test_losses_that_the_program_reads_are_drawn_instead_of_sampled_ones(tmp_path):
    feed = FeedReader(tmp_path)
    feed.series = {"loss": series((0, 8.0), (1, 4.0)), "loss_read": series((0, 2.0), (1, 1.0), (2, 0.5))}
    (loss,) = feed_panels(feed)
    assert (list(loss.curves[0].y), loss.caption) == ([2.0, 1.0, 0.5], "From 2.00 to 0.500.")


def test_smoothing_is_a_factor_of_the_default(tmp_path):
    feed = FeedReader(tmp_path)
    feed.series = {"loss": series(*[(update, float(update % 2)) for update in range(200)])}
    spread = {}
    for smoothing in (0.0, 1.0, 20.0):
        line = feed_panels(feed, smoothing)[0].curves[1].y[-50:]
        spread[smoothing] = max(line) - min(line)
    assert spread[0.0] == 1.0
    assert spread[20.0] < spread[1.0] / 4 < spread[0.0] / 8


def test_a_program_with_nothing_finite_still_has_a_plot(tmp_path):
    feed = FeedReader(tmp_path)
    feed.series = {"loss": series((0, math.nan), (1, math.inf))}
    (loss,) = feed_panels(feed)
    assert (list(loss.marks), loss.caption) == ([0, 1], "No finite value yet. 2 values not finite, marked below.")
