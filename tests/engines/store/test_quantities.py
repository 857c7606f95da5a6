import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.engines.store.quantities import duration, printable, short


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.2134, "0.213"), (0.01234, "0.0123"), (12.345, "12.3"), (1234.5, "1234"), (0.00092, "9.20e-04"),
     (0.0012, "0.00120"), (1234567, "1.23e+06"), (0, "0"), (1, "1.00"), (-0.5, "-0.500"),
     (float("nan"), "nan"), (float("-inf"), "-inf")],
)  # fmt: skip
def test_three_digits_say_enough(value, text):
    assert short(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300), st.integers(2, 8))
def test_a_short_number_is_off_by_less_than_its_last_digit(value, digits):
    assert abs(float(short(value, digits)) - value) <= abs(value) * 10.0 ** (1 - digits) + 1e-323
    assert len(short(value, digits)) <= max(digits, 6) + 7


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.421, "0.42 s"), (12.34, "12.3 s"), (59.96, "1 min 00 s"), (185, "3 min 05 s"), (7380, "2 h 03 min"),
     (370_800, "4 d 07 h"), (0, "0.00 s")],
)  # fmt: skip
def test_durations_have_their_natural_unit(seconds, text):
    assert duration(seconds) == text


@given(st.text(st.characters(codec=None)))
def test_a_printable_name_steers_nothing(name):
    shown = printable(name)
    assert shown.isprintable()
    assert len(shown) == len(name)
    assert not name.isprintable() or shown == name
