"""Test that runs are listed from the ends of their journals, even if these are long or hostile."""

from __future__ import annotations

import fcntl

import pytest

from trueloop.runs.live.run_list import any_running, list_runs, read_feed_listing
from trueloop.runs.live.writer import LiveWriter


def one(root):
    ((run,), _) = list_runs(root, "", 10)
    return run


@pytest.mark.parametrize("end", ["finished", "early_stop", "failed"])
def test_the_state_is_how_the_run_ended(fake_runs, end):
    fake_runs.run("a", end=end)
    assert (one(fake_runs.root).state, one(fake_runs.root).update, one(fake_runs.root).what) == (end, 6, "digits")


def test_a_training_run_holds_its_lock(fake_runs):
    folder = fake_runs.run("a", end="")
    assert one(fake_runs.root).state == "killed"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert one(fake_runs.root).state == "running"


def test_a_resumed_run_has_not_ended(fake_runs):
    folder = fake_runs.run("a", end="early_stop")
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"event":"run_started","time":1,"name":"a","start_update":4}\n')
    assert one(fake_runs.root).state == "killed", "the newest process recorded no end, and no process is training"


def test_the_newest_come_first_and_the_rest_is_counted(fake_runs):
    import os

    for number in range(5):
        os.utime(fake_runs.run(f"r{number}") / "journal.jsonl", (1000 + number, 1000 + number))
    found, count = list_runs(fake_runs.root, "", 2)
    assert ([run.name for run in found], count) == (["r4", "r3"], 5)
    found, count = list_runs(fake_runs.root, "r1", 2)
    assert ([run.name for run in found], count) == (["r1"], 1)


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"[]\n3\n", b'{"event":"run_ended","reason":{"a":1}}\n', b"[" * 50_000]
)
def test_a_damaged_journal_is_listed(tmp_path, text):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "journal.jsonl").write_bytes(text)
    run = one(tmp_path)
    assert (run.name, run.what, run.update) == ("a", "", None)
    run.as_json()


def test_a_missing_folder_has_no_runs(tmp_path):
    assert list_runs(tmp_path / "none", "", 10) == ([], 0)
    assert not any_running(tmp_path / "none")


def test_a_running_program_is_listed(tmp_path):
    writer = LiveWriter(tmp_path / "live", {"name": "train.py", "command": "train.py"})
    assert any_running(tmp_path / "live")
    writer.write_end(3, 1, {})
    assert not any_running(tmp_path / "live")
    run = read_feed_listing(tmp_path / "live" / writer.name)
    assert (run.name, run.state, run.update) == ("train.py", "failed", 3)
    assert run.matches("TRAIN failed")
    assert not run.matches("train finished")


def test_a_name_cannot_contain_bidirectional_controls(tmp_path):
    writer = LiveWriter(tmp_path / "live", {"name": "\u202eyp.niart", "command": "a\x1b[2J b"})
    run = read_feed_listing(tmp_path / "live" / writer.name)
    assert (run.name, run.what) == ("\ufffdyp.niart", "a\ufffd[2J b")


def test_an_absurd_time_is_ignored(tmp_path):
    writer = LiveWriter(tmp_path / "live", {"name": "train.py"})
    folder = tmp_path / "live" / writer.name
    (folder / "feed.jsonl").write_text('{"event":"started","time":1' + "0" * 400 + "}\n")
    assert 0 <= read_feed_listing(folder).changed < 10
