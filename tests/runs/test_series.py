import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.runs.series import default_span, envelope, smooth

series = st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf]), max_size=300)


@given(series, st.integers(1, 20).map(lambda half: 2 * half))
def test_downsampling_keeps_the_extremes_the_order_and_the_bound(ys, points):
    xs = list(range(len(ys)))
    x, y = envelope(xs, ys, points)
    finite = [value for value in ys if math.isfinite(value)]
    assert len(x) == len(y) <= points or len(finite) <= points
    assert x == sorted(set(x))
    assert y == [ys[k] for k in x]
    assert (min(y, default=0), max(y, default=0)) == (min(finite, default=0), max(finite, default=0))


def test_a_lone_spike_among_a_million_survives():
    ys = [0.0] * 1_000_000
    ys[777_777] = 9.0
    x, y = envelope(range(len(ys)), ys)
    assert len(x) <= 800
    assert (777_777, 9.0) in list(zip(x, y, strict=True))


def test_few_points_are_not_changed():
    assert envelope([1, 2, 3], [0.5, math.nan, 0.25]) == ([1, 3], [0.5, 0.25])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(1, 100))
def test_a_smoothed_value_lies_among_those_before_it(ys, span):
    for k, value in enumerate(smooth(ys, span)):
        seen = ys[: k + 1]
        assert min(seen) - 1e-6 <= value <= max(seen) + 1e-6


def test_smoothing_starts_unbiased_and_skips_nan():
    assert smooth([math.nan, 4.0, math.nan, 4.0], 10)[1:] == pytest.approx([4.0, 4.0, 4.0])
    assert math.isnan(smooth([math.nan, 4.0], 10)[0])
    assert smooth([1.0, 5.0, 2.0], 1) == [1.0, 5.0, 2.0]


@pytest.mark.parametrize(("length", "span"), [(1, 1), (50, 1), (5000, 100), (10**6, 1000)])
def test_the_span_grows_with_the_series_up_to_a_bound(length, span):
    assert default_span(length) == span
