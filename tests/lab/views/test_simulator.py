"""What the simulator's page is told before anything runs."""

from __future__ import annotations

import json

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.failures.load import catalogue
from trueloop.lab.teaching.inject import write_script
from trueloop.lab.teaching.simulation import Simulation
from trueloop.lab.views.simulator import Query, answer


def test_every_failure_that_can_be_put_in_is_a_switch_in_words():
    told = answer(Query())
    injectable = {code for code, entry in catalogue().items() if entry.failure.inject}
    assert {bug["code"] for bug in told["bugs"]} == injectable
    for bug in told["bugs"]:
        assert bug["title"] == catalogue()[bug["code"]].failure.title
        assert bug["symptom"].endswith((".", "?")), bug
    assert not told["broken"]
    assert json.loads(encode_json(told))["config"]["hidden"] == [16, 16]


def test_the_script_is_the_one_that_runs_and_what_a_failure_needs_is_set():
    told = answer(parse_record(Query, {"bugs": ["GRD003"], "config": {"epochs": 2}}))
    inject = catalogue()["GRD003"].failure.inject
    assert inject is not None
    loop, simulation = write_script(Simulation(epochs=2), [inject])
    assert "\n".join("".join(text for _, text in line) for line in told["script"]) == loop.text()
    assert told["config"]["accumulation"] == simulation.accumulation > 1
    assert told["broken"] == [each._asdict() for each in loop.changed_lines()]


def test_what_cannot_be_together_says_so():
    told = {bug["code"]: bug for bug in answer(Query(bugs=("GRD001",)))["bugs"]}
    assert told["GRD002"]["against"]
    assert not told["GRD001"]["against"]
    with pytest.raises(InvalidConfig, match="already removed the line that clears gradients"):
        answer(Query(bugs=("GRD001", "GRD002")))


def test_a_code_that_is_none_is_named():
    with pytest.raises(InvalidConfig, match="XYZ999"):
        answer(Query(bugs=("XYZ999",)))


def test_the_controls_come_from_the_record():
    (config,) = (field for field in describe_fields(Query) if field["name"] == "config")
    assert [field["name"] for field in config["fields"]][:2] == ["dataset", "samples"]
