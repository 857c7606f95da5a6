import pytest

from trueloop.ground.words import counted, number, size


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (30000, "30000"), (999_999, "999999"), (1_281_167, "1,281,167")])
def test_separators_come_with_the_seventh_digit(count: int, text: str):
    assert number(count) == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "update", "1 update"),
        (0, "update", "0 updates"),
        (3, "epoch", "3 epochs"),
        (2, "micro-batch", "2 micro-batches"),
        (2, "process", "2 processes"),
        (1, "process", "1 process"),
    ],
)
def test_a_noun_agrees_with_its_count(count: int, noun: str, text: str):
    assert counted(count, noun) == text


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
    assert size(count_bytes) == text
