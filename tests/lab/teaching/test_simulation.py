"""The settings of the simulator are bounded and can be trained."""

from __future__ import annotations

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.lab.teaching.simulation import Simulation


@pytest.mark.parametrize(
    "values",
    [
        {"hidden": [10**9]}, {"hidden": [8] * 5}, {"samples": 2001}, {"learning_rate": float("nan")}, {"epochs": 10**6},
        {"batch": 0}, {"optimizer": "lbfgs"}, {"neurons": 3}, {"seed": 1.5}, {"dropout": 1.0}, {"batchnorm": 1},
        {"batchnorm": True, "batch": 1}, {"batchnorm": True, "samples": 60, "batch": 47},
        {"dataset": "digits", "samples": 1800},
    ],
)  # fmt: skip
def test_invalid_or_expensive_settings_are_refused(values: dict[str, object]):
    with pytest.raises(InvalidConfig) as refused:
        parse_record(Simulation, values)
    assert refused.value.fix


def test_the_defaults_can_be_described_and_parsed():
    fields = {field["name"]: field for field in describe_fields(Simulation)}
    assert fields["hidden"]["item"]["highest"] == 64
    assert all(field["help"] for field in fields.values())
    assert parse_record(Simulation, {name: field["default"] for name, field in fields.items()}) == Simulation()
