from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.downsampling import DownsampledSeries


def test_a_short_series_is_kept_completely():
    thinned = DownsampledSeries[float](max_points=8)
    for update in range(8):
        thinned.add(update, float(update))
    assert thinned.updates == list(range(8))


@pytest.mark.parametrize("count", [9, 100, 12_345])
def test_a_long_series_is_downsampled_evenly(count: int):
    thinned = DownsampledSeries[float](max_points=8)
    for update in range(count):
        thinned.add(update, float(update))
    updates = thinned.updates
    assert 4 <= len(updates) <= 8
    assert updates[0] == 0
    strides = {later - earlier for earlier, later in pairwise(updates)}
    assert len(strides) == 1, "as far apart at the start as at the end"
    assert updates[-1] + max(strides) >= count


@given(st.integers(1, 300), st.integers(2, 40))
def test_the_newest_point_is_always_returned(count, size):
    series = DownsampledSeries[int](size)
    for update in range(count):
        series.add(update, -update)
    updates, values = series.with_newest()
    assert updates[-1] == count - 1
    assert values == [-update for update in updates]
    assert len(set(updates)) == len(updates) <= size + 1
