import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunStarted, UpdateRow, UpdatesDone
from trueloop.runs.journal_lines import encode_line, event_record, parse_event, update_records

numbers = st.floats() | st.integers(-(2**53), 2**53)


@given(st.dictionaries(st.text(), numbers), st.floats(0, 1e9))
def test_metrics_survive_a_line_exactly(metrics, seconds):
    event = Evaluated(update=3, epoch=1, split="val", metrics=metrics, tables={}, seconds=seconds, best=False)
    back = parse_event(json.loads(encode_line(event_record(event, 1.0))))
    assert repr(back.metrics) == repr({name: float(value) for name, value in metrics.items()})
    assert back.seconds == seconds


def test_a_lone_surrogate_in_a_name_is_written_and_read_back():
    event = Notice(update=1, kind="k", message="broken \udcff name", details={})
    line = encode_line(event_record(event, 0.0))
    assert line.isascii()
    assert line.endswith("}\n")
    assert parse_event(json.loads(line)) == event


def test_seconds_of_an_update_are_rounded_to_the_microsecond():
    row = UpdateRow(1, 1, 0.1, 0.2, 0.3, 4, 0.00012345678, 1.99999999, False)
    [record] = update_records(UpdatesDone(rows=[row]))
    assert (record["wait_s"], record["total_s"]) == (0.000123, 2.0)


def test_a_value_shared_by_all_updates_is_written_once():
    rows = [UpdateRow(k, 1, k / 4, 2.0, 0.1, 8, 0.0, 0.5, False) for k in (7, 8, 9)]
    assert update_records(UpdatesDone(rows=rows, memory_mib=123.456)) == [
        {"event": "updates", "update": 7, "rows": 3, "epoch": 1, "loss": (1.75, 2.0, 2.25), "grad_norm": 2.0, "lr": 0.1,
         "examples": 8, "wait_s": 0.0, "total_s": 0.5, "skipped": False, "memory_mib": 123.5}
    ]  # fmt: skip


def test_nonconsecutive_updates_are_separate_lines():
    rows = [UpdateRow(k, 1, 0.5, 2.0, 0.1, 8, 0.0, 0.5, False) for k in (1, 2, 5)]
    assert [(each["update"], each["rows"]) for each in update_records(UpdatesDone(rows=rows))] == [(1, 2), (5, 1)]
    assert update_records(UpdatesDone(rows=[], memory_mib=1.0)) == []


def test_nested_infinities_are_strings():
    line = encode_line({"a": [1, {"b": (math.inf, -math.inf, math.nan)}]})
    assert json.loads(line) == {"a": [1, {"b": ["inf", "-inf", "nan"]}]}


def test_a_journal_from_before_a_field_was_added_is_read():
    event = CheckpointSaved(update=1, epoch=1, path="c", metrics={}, seconds=2.0, blocked_s=0.5)
    record = event_record(event, 0.0)
    assert parse_event(record) == event
    del record["blocked_s"]
    assert parse_event(record) == replace(event, blocked_s=0.0)


@pytest.mark.parametrize("record", [{"event": "notice", "update": 1}, {"event": "unheard"}, {}])
def test_a_missing_field_is_a_key_error(record):
    with pytest.raises(KeyError):
        parse_event(record)


@pytest.mark.parametrize(
    "change",
    [
        {"update": True}, {"update": 1.5}, {"update": "1"}, {"epoch": None}, {"split": 3}, {"metrics": [1]},
        {"metrics": 0}, {"seconds": []}, {"metrics": {"loss": None}},
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_type_is_refused(change):
    event = Evaluated(update=3, epoch=1, split="val", metrics={"loss": 0.5}, tables={}, seconds=1.0, best=False)
    with pytest.raises(TypeError):
        parse_event({**event_record(event, 0.0), **change})


@pytest.mark.parametrize("change", [{"facts": []}, {"name": None}, {"updates": "many"}, {"epochs": 1e308}])
def test_a_start_with_wrong_types_is_refused(change):
    start = RunStarted(name="x", epochs=1, updates=None, start_update=0, facts={})
    assert parse_event(event_record(start, 0.0)) == start
    with pytest.raises(TypeError):
        parse_event({**event_record(start, 0.0), **change})
