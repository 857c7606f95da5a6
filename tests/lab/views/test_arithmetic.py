"""The answers for the arithmetic page agree with the plan."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.arithmetic import plan
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.lab.views.arithmetic import Query, answer, counts

SIZES: list[dict[str, Any]] = [
    {"dataset": 10000, "batch": 32, "epochs": 3, "accumulate": 4},
    {"dataset": 100, "batch": 16, "drop_last": True, "sample_bytes": 3072},
    {"dataset": 1, "batch": 64},
    {"dataset": 1003, "batch": 7, "processes": 6},
    {"dataset": 1003, "batch": 7, "processes": 6, "drop_last": True},
    {"dataset": 10**12, "batch": 32, "epochs": 100, "accumulate": 8, "processes": 1000},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_program_runs_and_its_check_succeeds(sizes: dict[str, Any], capsys: pytest.CaptureFixture[str]):
    expected = plan(**sizes)
    scope: dict[str, Any] = {}
    exec(counts(expected), scope)
    assert scope["run"] == expected
    printed = capsys.readouterr().out.splitlines()
    assert f"updates {expected.updates}" in printed
    assert printed[-1] == f"first micro-batch {scope['sampler'].order.at(first_positions(expected)).tolist()}"


def first_positions(expected: Any) -> Any:
    import torch

    count = min(expected.batch, -(-expected.examples_per_epoch // expected.processes))
    return torch.arange(count) * expected.processes


def test_default_sizes_are_not_in_the_program():
    text = counts(plan(dataset=100, batch=16))
    assert "plan(dataset=100, batch=16, epochs=1)" in text
    assert "processes" not in text
    assert "drop_last=True" not in text


def ask(**fields: Any) -> dict[str, Any]:
    return json.loads(encode_json(answer(parse_record(Query, fields))))


def test_the_numbers_are_those_of_the_plan():
    rows = {row["key"]: row["value"] for row in ask(dataset=10000, batch=32, epochs=3, accumulate=4)["rows"]}
    expected = plan(dataset=10000, batch=32, epochs=3, accumulate=4)
    assert (
        (rows["updates"], rows["effective_batch"])
        == (str(expected.updates), str(expected.effective_batch))
        == ("237", "128")
    )
    assert "duration" not in rows
    more = {row["key"] for row in ask(target_updates=1000, update_ms=20.5, sample_bytes=3072)["rows"]}
    assert {"duration", "epochs_for_updates", "batch_bytes"} <= more


def test_a_position_beyond_the_run_is_its_end():
    line = ask(dataset=100, batch=16, epochs=2, accumulate=4, epoch=99, iteration=99)["timeline"]
    assert (line["epoch"], line["iteration"], line["closes_window"], line["share_of_run"]) == (1, 6, True, 1)
    assert line["windows"][-1]["missing_count"] == "1 iteration"
    assert line["shares"] == [{"rank": 0, "examples": 4, "share": 0.25, "count": "4 examples"}]


def test_the_targets_can_be_requested():
    first = ask(dataset=100, batch=16, epochs=2, accumulate=4)
    next_update = ask(dataset=100, batch=16, epochs=2, accumulate=4, **first["targets"]["update"])
    assert (next_update["timeline"]["window"], next_update["timeline"]["iteration"]) == (1, 4)


def test_the_answer_for_the_largest_run_is_small_and_exact():
    fields = {field["name"]: field for field in describe_fields(Query)}
    largest = {name: int(fields[name]["highest"]) for name in ("dataset", "epochs", "accumulate", "processes")}
    reply = ask(**largest, batch=1, max_marks=240, iteration=10**6)
    assert len(json.dumps(reply)) < 60_000
    rows = {row["key"]: row["value"] for row in reply["rows"]}
    assert rows["examples_seen"] == f"{10**18:,}"
    assert reply["too_large"]


def test_sizes_that_leave_nothing_to_train_on_are_refused():
    with pytest.raises(InvalidConfig, match="drop_last with batch 64 on 1 process leaves nothing of the 40 examples"):
        ask(dataset=40, batch=64, drop_last=True)
