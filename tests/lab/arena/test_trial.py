"""Curves are kept thinned, from their first point to their last."""

from __future__ import annotations

import pytest

from trueloop.lab.arena.trial import thin_points


@pytest.mark.parametrize("length", [1, 5, 6, 7, 1500])
def test_a_thinned_curve_keeps_its_ends_and_its_order(length):
    points = [(update, 32 * update, update / length) for update in range(1, length + 1)]
    kept = thin_points(points, 5)
    assert len(kept) == min(length, 5)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert kept == sorted(set(kept))
