"""Test the heat map of norms: log-scale shades, bounded rows and columns."""

from __future__ import annotations

import math

import pytest

from trueloop.runs.live.columns import MAX_COLUMNS, MAX_LAYERS, LayerNorms


def test_no_norms_give_no_heat_map():
    assert LayerNorms().to_heatmap() is None


def test_shades_follow_the_logarithm():
    columns = LayerNorms()
    columns.add(1, ["a", "b"], [0.01, 0.99])
    columns.add(2, ["a", "b", "c"], [100.0, None, 0.0])
    columns.add(3, ["b"], ["nan"])
    heat_map = columns.to_heatmap()
    assert heat_map is not None
    assert (heat_map["updates"], heat_map["layers"]) == ([1, 2, 3], ["a", "b", "c"])
    assert (heat_map["low"], heat_map["high"]) == (0.01, 100.0)
    assert heat_map["shades"] == [[0, 255, None], [127, None, -1], [None, 0, None]]
    assert heat_map["norms"][0] == [0.01, 100.0, None]
    assert math.isnan(heat_map["norms"][1][2])


def test_a_single_norm_has_a_shade():
    columns = LayerNorms()
    columns.add(1, ["a"], [3.0])
    heat_map = columns.to_heatmap()
    assert heat_map is not None
    assert heat_map["shades"] == [[0]]


@pytest.mark.parametrize("bad", [{}, [1], "high"])
def test_an_invalid_norm_is_refused(bad):
    with pytest.raises((TypeError, ValueError)):
        LayerNorms().add(1, ["a"], [bad])


def test_rows_columns_and_cells_are_bounded():
    columns = LayerNorms()
    for update in range(3 * MAX_COLUMNS):
        columns.add(update, [f"layer {update}" * 100], [1.0])
    heat_map = columns.to_heatmap()
    assert heat_map is not None
    assert len(heat_map["updates"]) <= MAX_COLUMNS
    assert len(heat_map["layers"]) <= MAX_LAYERS
    assert max(map(len, heat_map["layers"])) <= 120
