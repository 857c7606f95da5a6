"""Charts of evidence are rendered as SVG."""

import math
from xml.etree import ElementTree as ET

import pytest

from trueloop.verification.evidence import Bars, Curve, Grid
from trueloop.verification.plots import render_chart


def figure(picture):
    return ET.fromstring(render_chart(picture))


def test_a_curve_has_a_point_per_update_and_its_level():
    svg = figure(Curve(title="Loss <b>", lines={"loss": [4.0, 3.0, math.nan, 1.0]}, level=0.5))
    [line] = svg.iter("polyline")
    assert len(line.get("points").split()) == 3
    assert len([each for each in svg.iter("line") if each.get("class") == "mark"]) == 1
    assert svg.find("h3").text == "Loss <b>"


@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0], [1e-9, 1e9], [math.nan], [-1.0, 1.0], list(range(5000))])
def test_any_curve_is_drawn(values):
    svg = figure(Curve(title="Loss", lines={"loss": values}))
    points = [
        float(n) for line in svg.iter("polyline") for place in line.get("points").split() for n in place.split(",")
    ]
    assert all(math.isfinite(point) and 0 <= point <= 560 for point in points)
    assert len(points) < 2000


def test_bars_are_as_long_as_their_values():
    widths = [
        float(bar.get("width")) for bar in figure(Bars(title="", values={"a": 4.0, "b": 1.0}, unit="s")).iter("rect")
    ]
    assert widths[0] == pytest.approx(4 * widths[1])


def test_a_grid_shows_what_should_be_empty():
    grid = Grid(title="", rows="r", columns="c", labels=[0, 1], values=[[1.0, 0.2], [0.0, 1.0]], wrong=[(0, 1)])
    assert [cell.get("class") for cell in figure(grid).iter("rect")] == ["on", "bad", "off", "on"]
