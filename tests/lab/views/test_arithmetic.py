"""What the arithmetic page is told, against the plan itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trueloop.app.web.wire_format import written
from trueloop.core.arithmetic import plan
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.lab.views.arithmetic import Asked, answer


def told(**asked: Any) -> dict[str, Any]:
    return json.loads(written(answer(parse_record(Asked, asked))))


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
    assert line["windows"][-1]["lacks"] == "1 iteration"
    assert line["shares"] == [{"rank": 0, "examples": 4, "share": 0.25, "holds": "4 examples"}]


def test_moves_are_what_may_be_asked_next():
    first = told(dataset=100, batch=16, epochs=2, accumulate=4)
    next_update = told(dataset=100, batch=16, epochs=2, accumulate=4, **first["moves"]["update"])
    assert (next_update["timeline"]["window"], next_update["timeline"]["iteration"]) == (1, 4)


def test_the_largest_run_that_may_be_asked_is_small_to_send_and_exact():
    fields = {field["name"]: field for field in describe_fields(Asked)}
    largest = {name: int(fields[name]["highest"]) for name in ("dataset", "epochs", "accumulate", "processes")}
    found = told(**largest, batch=1, room=240, iteration=10**6)
    assert len(json.dumps(found)) < 60_000
    rows = {row["key"]: row["value"] for row in found["rows"]}
    assert rows["examples_seen"] == f"{10**18:,}"
    assert found["too_large"]


def test_nothing_to_train_is_refused_with_the_values():
    with pytest.raises(InvalidConfig, match="drop_last with batch 64 on 1 process leaves nothing of the 40 examples"):
        told(dataset=40, batch=64, drop_last=True)
