from __future__ import annotations

import json

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import parse_record
from trueloop.lab.views.memory import MIB, Query, answer

ASKED = Query(depth=2, width=64, batch=512)


def test_what_is_said_is_what_was_measured():
    told = json.loads(encode_json(answer(ASKED)))
    train, evaluation, no_grad, inference = told["ways"]
    assert no_grad["kept_b"] == inference["kept_b"] == 512 * 64 * 4
    assert (no_grad["kept"], no_grad["for_backward"]) == ("0.12 MiB", "0")
    for way, place in ((evaluation, 0), (train, 1)):
        times = way["kept_b"] / no_grad["kept_b"]
        assert f"{times:.1f} times" in told["says"].split("In train mode")[place]
    assert all(max(way["alive_mib"]) * MIB == way["peak_b"] for way in told["ways"])


def test_what_cannot_be_met_is_named():
    with pytest.raises(InvalidConfig, match="batch is 1"):
        parse_record(Query, {"batch": 1})
    with pytest.raises(InvalidConfig, match="width is 1000000000"):
        parse_record(Query, {"width": 10**9})
