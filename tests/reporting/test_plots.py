from __future__ import annotations

import re

import pytest

from trueloop.core.findings import Series
from trueloop.reporting.plots import MAX_POINTS, Plot, render_figure


def plot(values: list[float], *, log: bool = False) -> str:
    series = Series(updates=tuple(range(len(values))), values=tuple(values))
    return render_figure(Plot(name="loss", title="Loss", series=series, log=log))


def test_a_long_series_keeps_its_extremes():
    values = [0.0] * 10**5
    values[70_001] = 9.0
    drawn = plot(values)
    points = re.findall(r'points="([^"]*)"', drawn)[0].split()
    assert len(points) <= MAX_POINTS
    assert len({point.split(",")[1] for point in points}) == 2
    assert "between 0 and 9.00" in drawn


def test_a_wide_range_gets_a_log_axis_if_requested():
    ticks = re.compile(r'text-anchor="end">([^<]*)<')
    wide = [10.0**k for k in range(7)]
    assert {"1", "100", "10000"} <= set(ticks.findall(plot(wide, log=True)))
    assert "1" not in ticks.findall(plot(wide))


def test_update_ticks_are_integers():
    assert not re.findall(r'text-anchor="middle">[^<]*\.', plot([1.0, 2.0, 3.0]))


def test_values_with_an_infinite_range_are_dropped():
    assert "From 1.00 to 2.00, between 1.00 and 2.00; 2 not finite." in plot([1.0, -1.7e308, 1.7e308, 2.0])


@pytest.mark.parametrize(
    ("values", "message"), [([2.0, 2.0], "2.00 throughout."), ([float("nan")], "No value was finite")]
)
def test_the_caption_summarizes_the_values(values: list[float], message: str):
    assert message in plot(values)
