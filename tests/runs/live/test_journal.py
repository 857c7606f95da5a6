"""Test that incremental reading agrees with a full read, and that hostile journals are bounded and harmless."""

from __future__ import annotations

import json
import os
from itertools import islice

import pytest

from trueloop.core.protocols import UpdatesDone
from trueloop.runs.journal import Journal, read_journal
from trueloop.runs.live import journal as module
from trueloop.runs.live import tail as tail_module
from trueloop.runs.live.journal import JournalReader

STARTED = {"event": "run_started", "schema": 2, "time": 1.0, "name": "r", "epochs": 1, "updates": 9, "start_update": 0}
UPDATES = {
    "event": "updates", "update": 1, "rows": 1, "epoch": 1, "loss": 1.0, "grad_norm": 1.0, "lr": 0.1, "examples": 8,
    "wait_s": 0.1, "total_s": 0.2, "skipped": False,
}  # fmt: skip


def follow(run_dir):
    follower = JournalReader(run_dir)
    while follower.poll():
        pass
    return follower


def write_journal(folder, *records):
    folder.mkdir(exist_ok=True)
    started = {**STARTED, "facts": {}}
    lines = [record if isinstance(record, str) else json.dumps(record) for record in (started, *records)]
    (folder / "journal.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_it_agrees_with_reading_the_complete_journal(run, synthetic):
    run_dir = run(synthetic.finished_run(skipped=(40, 41)))
    history, follower = read_journal(run_dir), follow(run_dir)
    assert follower.problem == ""
    assert [row.update for row in follower.rows.rows] == history.updates.update
    assert list(follower.skipped) == history.skipped == [40, 41]
    assert follower.time_split() == history.time_split()
    assert (follower.update, follower.epoch) == (history.last_update, history.updates.epoch[-1])
    assert [each.metrics for each in follower.evaluations] == [each.metrics for each in history.evaluations]
    assert list(follower.checkpoints) == history.checkpoints
    assert list(follower.notes) == history.notes
    assert (follower.end, follower.started) == (history.end, history.started)


def test_only_appended_lines_are_read(tmp_path, synthetic):
    events = synthetic.finished_run()
    journal = Journal(tmp_path / "journal.jsonl")
    for event in islice(events, 4):
        journal.report(event)
    follower = follow(tmp_path)
    place, update = follower.tail.offset, follower.update
    assert update == synthetic.PER_EPOCH
    for event in islice(events, 3):
        journal.report(event)
    assert follower.poll()
    assert follower.update == 2 * update
    assert follower.tail.offset > place
    assert (follower.tail.restarts, follower.has_more) == (0, False)
    journal.close()


def test_a_resume_supersedes_what_came_after_it(tmp_path, synthetic):
    journal = Journal(tmp_path / "journal.jsonl")
    for event in islice(synthetic.finished_run(), 7):  # two epochs
        journal.report(event)
    follower = follow(tmp_path)
    assert len(follower.evaluations) == 2
    journal.report(synthetic.started(start_update=synthetic.PER_EPOCH))
    follower.poll()
    assert follower.update == synthetic.PER_EPOCH
    assert (len(follower.evaluations), len(follower.checkpoints), follower.processes) == (1, 1, 2)
    journal.report(UpdatesDone(rows=list(synthetic.rows(24, 30)), memory_mib=5.0))
    follower.poll()
    assert (follower.update, follower.problem) == (30, "")
    assert follower.memory.values == [5.0]
    journal.close()


def test_norms_by_layer_are_read(tmp_path):
    follower = follow(write_journal(tmp_path / "r", {**UPDATES, "layers": {"0": 0.5, "2": "nan"}}))
    shown = follower.layers.to_heatmap()
    assert shown is not None
    assert (shown["updates"], shown["layers"], shown["norms"][0]) == ([1], ["0", "2"], [0.5])


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        "3",
        '{"event":"updates"}',
        json.dumps({**UPDATES, "rows": 10**12}),
        json.dumps({**UPDATES, "update": 10**4000}),
        json.dumps({**UPDATES, "loss": [1, 2]}),
        json.dumps({**UPDATES, "loss": {}}),
        json.dumps({**UPDATES, "schema": 99}),
        json.dumps({"event": "__class__"}),
        json.dumps({**STARTED, "facts": 3}),
        json.dumps({**STARTED, "facts": {}, "updates": 10**400}),
        json.dumps({**UPDATES, "update": 2, "examples": 10**400}),
        '{"event":"updates",' + "9" * 10_000,
    ],
)
def test_a_hostile_line_stops_reading_with_a_message(tmp_path, line):
    follower = follow(write_journal(tmp_path / "r", UPDATES, line))
    assert follower.problem
    assert (follower.update, follower.has_more) == (1, False)
    assert len(follower.problem) < 400


def test_an_overlong_line_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tail_module, "MAX_LINE_BYTES", tail_module.CHUNK_BYTES)
    follower = follow(write_journal(tmp_path / "r", json.dumps({**UPDATES, "x": "y" * (tail_module.CHUNK_BYTES + 1)})))
    assert "has a line of more than 1 MiB" in follower.problem


def test_many_updates_in_few_bytes_are_read_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_UPDATES_PER_POLL", 1000)
    lines = [{**UPDATES, "update": 1 + 1000 * k, "rows": 1000} for k in range(5)]
    follower = JournalReader(write_journal(tmp_path / "r", *lines))
    steps = 0
    while follower.poll() and follower.has_more:
        steps += 1
    assert steps >= 4
    assert follower.update == 5000


def test_names_and_lists_are_bounded(tmp_path):
    evaluated = {"event": "evaluated", "time": 1.0, "update": 1, "epoch": 1, "split": "val", "tables": {"x": [1]}}
    evaluated |= {"seconds": 0.0, "best": False, "metrics": {f"m{k}": 1.0 for k in range(500)}}
    noted = {"event": "notice", "time": 1.0, "update": 1, "kind": "k", "message": "m", "details": {}}
    follower = follow(write_journal(tmp_path / "r", UPDATES, *[evaluated] * 3, *[noted] * 700))
    assert follower.problem == ""
    assert len(follower.evaluations[0].metrics) == module.MAX_METRICS
    assert follower.evaluations[0].tables == {}
    assert len(follower.notes) == module.MAX_LISTED


def test_a_damaged_journal_is_read_again_after_replacement(tmp_path):
    run_dir = write_journal(tmp_path / "r", "damaged")
    follower = follow(run_dir)
    assert follower.problem
    assert not follower.poll()
    other = write_journal(tmp_path / "other", UPDATES)
    os.replace(other / "journal.jsonl", run_dir / "journal.jsonl")
    assert follower.poll()
    assert (follower.problem, follower.update) == ("", 1)


def test_a_run_folder_without_a_journal_is_reported(tmp_path):
    follower = follow(tmp_path)
    assert "cannot be read" in follower.problem


def test_the_number_of_splits_is_bounded(tmp_path):
    one = {"event": "evaluated", "time": 2.0, "epoch": 1, "tables": {}, "seconds": 1.0, "best": False}
    lines = [{**one, "update": k, "split": f"s{k}", "metrics": {"loss": 1.0, "n" * 1000: 1.0}} for k in range(50)]
    follower = follow(write_journal(tmp_path / "r", *lines))
    assert not follower.problem
    assert [each.split for each in follower.evaluations] == [f"s{k}" for k in range(module.MAX_SPLITS)]
    assert {name for each in follower.evaluations for name in each.metrics} == {"loss"}
