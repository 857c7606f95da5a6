"""Test encoding and parsing of the sync cursor."""

import json

import pytest

from trueloop.runs.tracking.sink import StoreError, StoreUnavailable, SyncCursor

CURSOR = SyncCursor(
    journal_bytes=7, checksum="abc", fingerprint="def", state="", translator_state={"clock_s": 1.25, "notes": 3}
)


def test_a_cursor_survives_encoding_and_parsing():
    assert SyncCursor.parse(CURSOR.to_json()) == CURSOR
    assert "\n" not in CURSOR.to_json()


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "nonsense",
        "[]",
        "null",
        "7",
        "{}",
        '{"schema": "x"}',
        '{"schema": 1}',
        '{"schema": 1e999}',
        "[" * 99_999,
    ],
)
def test_an_invalid_cursor_is_none(text):
    assert SyncCursor.parse(text) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("journal_bytes", "x"),
        ("translator_state", []),
        ("translator_state", {"clock_s": "x"}),
        ("journal_bytes", float("inf")),
        ("translator_state", {"notes": float("nan")}),
    ],
)
def test_a_cursor_with_an_invalid_field_is_none(field, value):
    assert SyncCursor.parse(json.dumps({**json.loads(CURSOR.to_json()), field: value})) is None


def test_a_later_schema_is_refused():
    with pytest.raises(StoreError, match="its schema is 9") as caught:
        SyncCursor.parse('{"schema": 9, "whatever": 1}')
    assert not isinstance(caught.value, StoreUnavailable)
