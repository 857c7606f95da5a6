import hashlib
import json

import pytest

from trueloop.runs.run_id import read_run_id

LINE = {"event": "run_started", "schema": 2, "facts": {"run_id": "0123456789abcdef" * 2}}


def test_the_id_is_in_the_first_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + json.dumps({**LINE, "facts": {"run_id": "f" * 32}}) + "\n")
    assert read_run_id(path) == "0123456789abcdef" * 2


def test_an_older_journal_has_the_hash_of_its_first_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    line = json.dumps({**LINE, "facts": {}}) + "\n"
    path.write_text(line)
    assert read_run_id(path) == hashlib.sha256(line.encode()).hexdigest()[:32]


@pytest.mark.parametrize("word", ["../../etc", "x" * 32, 7, "A" * 32])
def test_an_invalid_id_is_ignored(tmp_path, word):
    path = tmp_path / "journal.jsonl"
    path.write_text(json.dumps({**LINE, "facts": {"run_id": word}}) + "\n")
    assert len(read_run_id(path)) == 32
    assert read_run_id(path) != word


@pytest.mark.parametrize(
    "text", ["", "x\n", "[1]\n", "[" * 99_999 + "\n", "{}\n", '{"event":"notice","facts":{}}\n', json.dumps(LINE)]
)
def test_without_a_started_run_there_is_no_id(tmp_path, text):
    path = tmp_path / "journal.jsonl"
    path.write_text(text)
    assert read_run_id(path) is None
    assert read_run_id(tmp_path / "absent") is None
