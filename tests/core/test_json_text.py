"""Test that any text is parsed or raises ValueError."""

import math

import pytest

from trueloop.core.json_text import parse_json, parse_strict_json


def test_json_written_by_python_is_parsed():
    assert (
        parse_json(b'{"a": [1, null, "\xc3\xa4"]}')
        == parse_strict_json('{"a": [1, null, "ä"]}')
        == {"a": [1, None, "ä"]}
    )
    assert math.isnan(parse_json("NaN"))


@pytest.mark.parametrize("read", [parse_json, parse_strict_json])
@pytest.mark.parametrize("text", ["", b"\xff", "[1", "9" * 5000, "[" * 100_000, '{"a":' * 100_000])
def test_invalid_json_raises_value_error(read, text):
    with pytest.raises(ValueError):  # noqa: PT011  # callers rely on this type
        read(text)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}'])
def test_nonstandard_numbers_are_refused_by_the_strict_parser(text):
    with pytest.raises(ValueError, match="not a JSON number"):
        parse_strict_json(text)
