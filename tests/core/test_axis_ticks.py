"""Test axis positions and tick values."""

from trueloop.core.axis_ticks import TARGET_TICKS, Axis, suits_log_scale


def test_an_axis_maps_its_ends():
    axis = Axis(low=1, high=100, start=200, end=0, log=True)
    assert [axis.position(value) for value in (1, 10, 100)] == [200, 100, 0]
    assert Axis(low=5, high=5, start=0, end=10).position(5) == 5


def test_ticks_are_round_and_few():
    assert Axis(low=0, high=10, start=0, end=1).ticks() == [0, 2, 4, 6, 8, 10]
    assert Axis(low=0, high=3, start=0, end=1).ticks(integers=True) == [0, 1, 2, 3]
    assert Axis(low=5, high=5, start=0, end=1).ticks() == [5]
    assert Axis(low=0.5, high=200, start=0, end=1, log=True).ticks() == [1, 10, 100]
    assert len(Axis(low=1e-30, high=1e30, start=0, end=1, log=True).ticks()) <= TARGET_TICKS + 1


def test_only_wide_positive_ranges_suit_a_log_scale():
    assert suits_log_scale(1, 31)
    assert not suits_log_scale(1, 30)
    assert not suits_log_scale(0, 1e9)
