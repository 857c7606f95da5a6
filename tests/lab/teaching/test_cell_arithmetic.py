# ruff: noqa: RUF001 - calculations are written with × and −

from __future__ import annotations

import math

import pytest

from trueloop.lab.teaching.cell_arithmetic import cross_entropy, format_cell, mse


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.511, "0.511"),
        (-0.5110001, "−0.511"),
        (0.0, "0"),
        (-0.0, "0"),
        (1e-8, "1e−8"),
        (-2.5e12, "−2.5e12"),
        (123456.0, "1.235e5"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "nan"),
    ],
)
def test_numbers_are_formatted_with_four_digits(value: float, text: str):
    assert format_cell(value) == text


def test_the_loss_of_the_worked_example():
    cell = mse([[-0.1, 1.8]], [[1.0, 0.0]])[0][0]
    assert cell.value == pytest.approx(2.225)
    assert cell.text == "((−0.1 − 1)² + (1.8 − 0)²) / 2"


def test_a_probability_of_zero_is_an_infinite_loss():
    assert cross_entropy([[0.0, 2000.0]], [0])[0][0].value == math.inf
