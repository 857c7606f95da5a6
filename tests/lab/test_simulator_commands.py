"""The commands of the simulator's page are parsed strictly."""

from __future__ import annotations

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields
from trueloop.lab.simulator_commands import KINDS, EditWeight, Start, Step, parse_command
from trueloop.lab.teaching.simulation import Simulation


def test_each_command_becomes_its_record():
    assert parse_command({"do": "start"}) == Start(config=Simulation())
    start = parse_command({"do": "start", "config": {"hidden": [8]}, "bugs": ["GRD001"], "points": [[1, 2.5, 0]]})
    assert start == Start(config=Simulation(hidden=(8,)), bugs=("GRD001",), points=((1.0, 2.5, 0),))
    assert parse_command({"do": "edit", "parameter": "head.bias", "index": [1], "value": 2}) == EditWeight(
        parameter="head.bias", index=(1,), value=2.0
    )
    assert parse_command({"do": "step"}) == Step(updates=1)


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_command_is_bounded(kind: type):
    describe_fields(kind)  # raises where a field has no bounds


@pytest.mark.parametrize(
    "message",
    [
        {}, {"do": None}, {"do": {}}, {"do": "eval"}, {"do": "run", "faster": True}, {"do": "step", "updates": 10**9},
        {"do": "start", "config": []}, {"do": "start", "bugs": "GRD001"}, {"do": "start", "bugs": ["GRD001"] * 9},
        {"do": "start", "points": [[0, 0, 0]] * 201}, {"do": "add_point", "x": float("nan"), "y": 0, "label": 0},
        {"do": "show_neurons", "neurons": 1}, {"do": "scenario", "name": "rates"},
        {"do": "edit", "parameter": "w", "index": []},
    ],
)  # fmt: skip
def test_an_invalid_command_is_refused_with_a_fix(message: dict[str, object]):
    with pytest.raises(InvalidConfig) as refused:
        parse_command(message)
    assert refused.value.fix
