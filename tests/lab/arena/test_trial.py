"""A curve is thinned evenly and keeps its first and last point."""

from __future__ import annotations

import pytest

from trueloop.lab.arena.trial import thin_points


@pytest.mark.parametrize("length", [1, 5, 6, 7, 1500])
def test_a_thinned_curve_has_the_same_ends_and_order(length):
    points = [(update, 32 * update, update / length) for update in range(1, length + 1)]
    thinned = thin_points(points, 5)
    assert len(thinned) == min(length, 5)
    assert (thinned[0], thinned[-1]) == (points[0], points[-1])
    assert thinned == sorted(set(thinned))
