"""The answers for the simulator's page before a run."""

from __future__ import annotations

import json

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.failures.load import catalogue
from trueloop.lab.teaching.inject import WRONG_DEVICE, write_script
from trueloop.lab.teaching.simulation import Simulation
from trueloop.lab.views.simulator import Query, answer


def test_every_injectable_failure_is_listed():
    reply = answer(Query())
    injectable = {code for code, entry in catalogue().items() if entry.failure.inject} | {WRONG_DEVICE.code}
    assert {bug["code"] for bug in reply["bugs"]} == injectable
    for bug in reply["bugs"]:
        assert bug["code"] == WRONG_DEVICE.code or bug["title"] == catalogue()[bug["code"]].failure.title
        assert bug["symptom"].endswith((".", "?")), bug
    assert not reply["broken"]
    assert json.loads(encode_json(reply))["config"]["hidden"] == [8, 8]


def test_the_script_has_the_settings_that_a_failure_needs():
    reply = answer(parse_record(Query, {"bugs": ["GRD003"], "config": {"epochs": 2}}))
    inject = catalogue()["GRD003"].failure.inject
    assert inject is not None
    loop, simulation = write_script(Simulation(epochs=2), [inject])
    assert "\n".join("".join(text for _, text in line) for line in reply["script"]) == loop.text()
    assert reply["config"]["accumulation"] == simulation.accumulation > 1
    assert reply["broken"] == [each._asdict() for each in loop.changed_lines()]


def test_conflicting_failures_are_reported():
    reply = {bug["code"]: bug for bug in answer(Query(bugs=("GRD001",)))["bugs"]}
    assert reply["GRD002"]["conflict"]
    assert not reply["GRD001"]["conflict"]
    with pytest.raises(InvalidConfig, match="already removed the line that clears gradients"):
        answer(Query(bugs=("GRD001", "GRD002")))


def test_an_unknown_code_is_refused():
    with pytest.raises(InvalidConfig, match="XYZ999"):
        answer(Query(bugs=("XYZ999",)))


def test_the_fields_of_the_settings_are_described():
    (config,) = (field for field in describe_fields(Query) if field["name"] == "config")
    assert [field["name"] for field in config["fields"]][:2] == ["dataset", "samples"]
