from __future__ import annotations

import json

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import parse_record
from trueloop.lab.views.memory import MIB, Query, answer

QUERY = Query(depth=2, width=64, batch=512)


def test_the_description_states_the_measurements():
    reply = json.loads(encode_json(answer(QUERY)))
    train, evaluation, no_grad, inference = reply["modes"]
    assert no_grad["kept_b"] == inference["kept_b"] == 512 * 64 * 4
    assert (no_grad["kept"], no_grad["for_backward"]) == ("0.12 MiB", "0")
    for mode, part in ((evaluation, 0), (train, 1)):
        times = mode["kept_b"] / no_grad["kept_b"]
        assert f"{times:.1f} times" in reply["description"].split("In train mode")[part]
    assert all(max(mode["alive_mib"]) * MIB == mode["peak_b"] for mode in reply["modes"])


def test_an_invalid_setting_is_refused():
    with pytest.raises(InvalidConfig, match="batch is 1"):
        parse_record(Query, {"batch": 1})
    with pytest.raises(InvalidConfig, match="width is 1000000000"):
        parse_record(Query, {"width": 10**9})
