"""What the arithmetic page is told, against the plan itself."""

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
def test_it_runs_and_its_check_holds(sizes: dict[str, Any], capsys: pytest.CaptureFixture[str]):
    made = plan(**sizes)
    scope: dict[str, Any] = {}
    exec(counts(made), scope)
    assert scope["run"] == made
    printed = capsys.readouterr().out.splitlines()
    assert f"updates {made.updates}" in printed
    assert printed[-1] == f"first micro-batch {scope['sampler'].order.at(first_positions(made)).tolist()}"


def first_positions(made: Any) -> Any:
    import torch

    held = min(made.batch, -(-made.examples_per_epoch // made.processes))
    return torch.arange(held) * made.processes


def test_only_what_is_not_the_default_is_said():
    text = counts(plan(dataset=100, batch=16))
    assert "plan(dataset=100, batch=16, epochs=1)" in text
    assert "processes" not in text
    assert "drop_last=True" not in text


def told(**asked: Any) -> dict[str, Any]:
    return json.loads(encode_json(answer(parse_record(Query, asked))))


def test_the_numbers_are_the_plans():
    rows = {row["key"]: row["value"] for row in told(dataset=10000, batch=32, epochs=3, accumulate=4)["rows"]}
    made = plan(dataset=10000, batch=32, epochs=3, accumulate=4)
    assert (
        (rows["updates"], rows["effective_batch"]) == (str(made.updates), str(made.effective_batch)) == ("237", "128")
    )
    assert "duration" not in rows
    more = {row["key"] for row in told(target_updates=1000, update_ms=20.5, sample_bytes=3072)["rows"]}
    assert {"duration", "epochs_for_updates", "batch_bytes"} <= more


def test_a_place_beyond_the_run_is_its_end():
    line = told(dataset=100, batch=16, epochs=2, accumulate=4, epoch=99, iteration=99)["timeline"]
    assert (line["epoch"], line["iteration"], line["closes_window"], line["share_of_run"]) == (1, 6, True, 1)
    assert line["windows"][-1]["missing_count"] == "1 iteration"
    assert line["shares"] == [{"rank": 0, "examples": 4, "share": 0.25, "count": "4 examples"}]


def test_moves_are_what_may_be_asked_next():
    first = told(dataset=100, batch=16, epochs=2, accumulate=4)
    next_update = told(dataset=100, batch=16, epochs=2, accumulate=4, **first["targets"]["update"])
    assert (next_update["timeline"]["window"], next_update["timeline"]["iteration"]) == (1, 4)


def test_the_largest_run_that_may_be_asked_is_small_to_send_and_exact():
    fields = {field["name"]: field for field in describe_fields(Query)}
    largest = {name: int(fields[name]["highest"]) for name in ("dataset", "epochs", "accumulate", "processes")}
    found = told(**largest, batch=1, max_marks=240, iteration=10**6)
    assert len(json.dumps(found)) < 60_000
    rows = {row["key"]: row["value"] for row in found["rows"]}
    assert rows["examples_seen"] == f"{10**18:,}"
    assert found["too_large"]


def test_nothing_to_train_is_refused_with_the_values():
    with pytest.raises(InvalidConfig, match="drop_last with batch 64 on 1 process leaves nothing of the 40 examples"):
        told(dataset=40, batch=64, drop_last=True)
