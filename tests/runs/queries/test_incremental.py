import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trueloop.core.protocols import Notice, RunEnded, RunStarted, UpdatesDone
from trueloop.runs.journal_lines import encode_line
from trueloop.runs.queries import incremental, index
from trueloop.runs.queries.incremental import extend_record, journal_position
from trueloop.runs.queries.index import load_overviews
from trueloop.runs.queries.overview import read_record


def as_kept(run_dir):
    """The record with its position, as in the index."""
    read_to = journal_position(run_dir)
    return json.loads(encode_line({**read_record(run_dir)[0], "read": read_to}))


def assert_same(extended, expected):
    extended, expected = dict(extended), json.loads(encode_line(expected))
    assert extended.pop("duration_s") == pytest.approx(expected.pop("duration_s"))
    assert json.loads(encode_line({key: extended[key] for key in extended if key != "read"})) == expected


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    losses=st.lists(st.sampled_from([0.1, 0.2, 0.3, math.nan, math.inf]), min_size=1, max_size=5),
    cut=st.floats(0, 1),
    mode=st.sampled_from(["min", "max"]),
    end=st.sampled_from(["", "finished"]),
)
def test_any_number_of_new_lines_gives_the_result_of_a_full_read(fake_runs, losses, cut, mode, end):
    facts = {"config": {"monitor": {"metric": "val/loss", "mode": mode}}}
    whole = fake_runs.run("whole", losses, end=end, facts=facts)
    data = (whole / "journal.jsonl").read_bytes()
    first = data.index(b"\n") + 1
    path = fake_runs.root / "part" / "journal.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data[: first + int(cut * (len(data) - first))])  # ends within a line, as after a kill
    before = as_kept(path.parent)
    path.write_bytes(data)
    assert_same(extend_record(path.parent, before), read_record(path.parent)[0])
    again = as_kept(path.parent)
    assert_same(extend_record(path.parent, again), read_record(path.parent)[0])
    (whole / "journal.jsonl").unlink()


def test_lines_already_counted_are_skipped(fake_runs):
    path = fake_runs.run("a", end="")
    record = {**as_kept(path), "read": [0, journal_position(fake_runs.root / "a")[1]]}
    first = (path / "journal.jsonl").read_bytes().index(b"\n") + 1
    from trueloop.runs.queries.incremental import _tail_hash

    with (path / "journal.jsonl").open("rb") as file:
        record["read"] = [first, _tail_hash(file, first)]
    assert_same(extend_record(path, record), read_record(path)[0])


def again(fake_runs, fake_runs_module):
    fake_runs.write("a", [RunStarted(name="x", epochs=3, updates=6, start_update=4, facts={})])


def rolled_back(fake_runs, fake_runs_module):
    fake_runs.write("a", [Notice(update=6, kind="rolled_back", message="", details={})])


def rewritten(fake_runs, fake_runs_module):
    (fake_runs.root / "a" / "journal.jsonl").unlink()
    fake_runs.run("a", losses=(0.9, 0.8, 0.7, 0.6, 0.5), end="")


def shorter(fake_runs, fake_runs_module):
    (fake_runs.root / "a" / "journal.jsonl").unlink()
    fake_runs.run("a", losses=(0.9,), end="")


def garbage(fake_runs, fake_runs_module):
    with (fake_runs.root / "a" / "journal.jsonl").open("ab") as file:
        file.write(b"{}\n")


@pytest.mark.parametrize("change", [again, rolled_back, rewritten, shorter, garbage])
def test_lines_that_change_earlier_ones_need_a_full_read(fake_runs, fake_runs_module, change):
    path = fake_runs.run("a", end="")
    before = as_kept(path)
    change(fake_runs, fake_runs_module)
    assert extend_record(path, before) is None


def test_a_torn_line_longer_than_the_tail_needs_a_full_read(fake_runs, monkeypatch):
    path = fake_runs.run("a", end="")
    before = as_kept(path)
    monkeypatch.setattr(incremental, "_TAIL_BYTES", 100)
    assert journal_position(path) == before["read"]
    with (path / "journal.jsonl").open("ab") as file:
        file.write(b"x" * 100)
    with pytest.raises(ValueError, match="not found"):
        journal_position(path)
    assert extend_record(path, before) is None


def test_a_damaged_journal_always_needs_a_full_read(fake_runs, fake_runs_module):
    path = fake_runs_module.damage(fake_runs.run("a"))
    assert extend_record(path, as_kept(path)) is None
    assert extend_record(path, read_record(path)[0]) is None


def test_the_index_reads_a_long_journal_once_and_then_new_lines(fake_runs, fake_runs_module, monkeypatch):
    monkeypatch.setattr(index, "MIN_INCREMENTAL_BYTES", 1)
    seen = []
    real = index.read_record
    monkeypatch.setattr(index, "read_record", lambda path: seen.append(path.name) or real(path))
    fake_runs.run("a", end="")
    load_overviews(fake_runs.root)
    fake_runs.write("a", [UpdatesDone(rows=[fake_runs_module.row(7, skipped=True)])])
    (run,) = load_overviews(fake_runs.root, with_settings=True)
    assert (run.record["update"], run.record["skipped"], run.state) == (7, 1, "killed")
    fake_runs.write("a", [RunEnded(update=7, reason="failed", seconds=3)])
    (run,) = load_overviews(fake_runs.root)
    assert (run.state, run.record["duration_s"]) == ("failed", 3)
    assert seen == ["a"]
    assert not {"read", "saved"} & run.as_json().keys()
    again(fake_runs, fake_runs_module)
    assert load_overviews(fake_runs.root)[0].record["processes"] == 2
    assert seen == ["a", "a"]


def test_a_journal_of_the_first_schema_can_be_extended(fake_runs):
    path = fake_runs.run("a", end="")
    row = {"loss": 0.5, "grad_norm": 1.0, "lr": 0.1, "examples": 8, "wait_s": 0.1, "total_s": 0.5, "skipped": True}
    before = as_kept(path)
    with (path / "journal.jsonl").open("a") as file:
        file.write(encode_line({"event": "update", "update": 7, "epoch": 4, **row}))
    assert_same(extend_record(path, before), read_record(path)[0])
    assert extend_record(path, before)["epoch"] == 4
