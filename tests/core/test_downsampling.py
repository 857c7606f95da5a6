from __future__ import annotations

from itertools import pairwise

import pytest

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
