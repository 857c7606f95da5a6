import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.formatting import (
    did_you_mean,
    format_count,
    format_duration,
    format_float,
    format_number,
    format_percent,
    format_size,
    replace_unprintable,
    to_single_line,
)


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (30000, "30000"), (999_999, "999999"), (1_281_167, "1,281,167")])
def test_separators_come_with_the_seventh_digit(count: int, text: str):
    assert format_number(count) == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "update", "1 update"),
        (0, "update", "0 updates"),
        (3, "epoch", "3 epochs"),
        (2, "micro-batch", "2 micro-batches"),
        (2, "process", "2 processes"),
        (1, "process", "1 process"),
        (2, "index", "2 indexes"),
    ],
)
def test_a_noun_agrees_with_its_count(count: int, noun: str, text: str):
    assert format_count(count, noun) == text


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (98304, "96.0 KiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**60, "1,048,576.0 TiB"),
    ],
)
def test_sizes_are_in_binary_units(count_bytes: int, text: str):
    assert format_size(count_bytes) == text


def test_the_most_similar_choice_is_suggested():
    assert did_you_mean("epoch", ["batch", "epochs", "seed"]) == "Did you mean 'epochs'? "
    assert did_you_mean("epoch", ["batch", "seed"]) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.2134, "0.213"), (0.01234, "0.0123"), (12.345, "12.3"), (1234.5, "1234"), (0.00092, "9.20e-04"),
     (0.0012, "0.00120"), (1234567, "1.23e+06"), (0, "0"), (1, "1.00"), (-0.5, "-0.500"),
     (float("nan"), "nan"), (float("-inf"), "-inf")],
)  # fmt: skip
def test_floats_have_three_significant_digits(value, text):
    assert format_float(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300), st.integers(2, 8))
def test_a_formatted_float_is_off_by_less_than_its_last_digit(value, digits):
    assert abs(float(format_float(value, digits)) - value) <= abs(value) * 10.0 ** (1 - digits) + 1e-323
    assert len(format_float(value, digits)) <= max(digits, 6) + 7


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.1e-4, "410 µs"), (0.0034, "3.40 ms"), (0.421, "421 ms"), (0.9996, "1.0 s"),
     (12.34, "12.3 s"), (59.96, "1 min 00 s"), (185, "3 min 05 s"), (7380, "2 h 03 min"), (370_800, "4 d 07 h"),
     (0, "0 s")],
)  # fmt: skip
def test_durations_have_their_natural_unit(seconds, text):
    assert format_duration(seconds) == text


@given(st.text(st.characters(codec=None)))
def test_a_printable_name_has_no_control_characters(name):
    formatted = replace_unprintable(name)
    assert formatted.isprintable()
    assert len(formatted) == len(name)
    assert not name.isprintable() or formatted == name


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0.0, "0 %"),
        (1e-6, "below 0.01 %"),
        (0.0086, "0.86 %"),
        (0.0143, "1.4 %"),
        (0.07, "7 %"),
        (0.41, "41 %"),
        (1, "100 %"),
    ],
)
def test_percent(share: float, message: str):
    assert format_percent(share) == message


def test_control_characters_are_replaced():
    assert replace_unprintable("a\x1b[2Jb\udcff") == "a\ufffd[2Jb\ufffd"
    assert to_single_line("two\n   lines\tand a bell\a") == "two lines and a bell\ufffd"


@pytest.mark.parametrize(("seconds", "text"), [(float("nan"), "nan s"), (float("inf"), "inf s")])
def test_a_nonfinite_duration_is_formatted_literally(seconds, text):
    assert format_duration(seconds) == text
