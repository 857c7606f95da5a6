"""Test the process that syncs a growing journal until its trainer ends, with unreliable stores."""

import json
import subprocess
import sys
import threading

import pytest

from trueloop.runs.tracking import parse_target, sync_process, sync_run
from trueloop.runs.tracking.journal_file import journal_lock
from trueloop.runs.tracking.sink import StoreError
from trueloop.runs.tracking.sync_process import SyncLoop
from trueloop.runs.tracking.target import Target

TARGET = Target(kind="mlflow", address="sqlite:////x.db", display="the store")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(sync_process, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(sync_process, "MAX_RETRY_INTERVAL_S", 0.02)
    monkeypatch.setattr(sync_process, "STORE_TIMEOUT_S", 0.3)


class Process:
    """A `SyncLoop` on a separate thread."""

    def __init__(self, run_dir, sink, open_sink=None):
        self.gone, self.messages = threading.Event(), []
        following = SyncLoop(
            run_dir, TARGET, trainer_ended=self.gone, send=self.messages.append, open_sink=open_sink or sink
        )
        self.code = None
        self.thread = threading.Thread(target=lambda: setattr(self, "code", following.run()))
        self.thread.start()

    def end(self):
        self.gone.set()
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self.code


def test_it_syncs_while_the_journal_grows(helpers, new_run, memory):
    run = new_run()
    process = Process(run.path, memory)
    for k in range(len(helpers.COMPLETE)):
        run.add(helpers.COMPLETE[k : k + 1])
        helpers.wait_until(
            lambda: memory.points().keys() == helpers.points_of(run.path).keys() if memory.runs else False
        )
    assert memory.runs[helpers.RUN_ID]["state"] == "running"
    assert process.end() == 0
    assert process.messages == [{"event": "done", "state": "finished"}]
    assert memory.points() == helpers.points_of(run.path)


def test_a_killed_trainer_leaves_a_complete_copy(helpers, new_run, memory):
    run = new_run(helpers.KILLED).tear()
    process = Process(run.path, memory)
    assert process.end() == 0
    assert process.messages == [{"event": "done", "state": "killed"}]
    assert memory.points() == helpers.points_of(run.path)


def test_lines_of_another_trainer_after_the_end_are_not_awaited(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE)
    process = Process(run.path, memory)
    process.end()
    run.add([helpers.started(12), helpers.notice(12, "more", "More.")])
    process = Process(run.path, memory)
    process.end()
    assert memory.points() == helpers.points_of(run.path)
    assert memory.runs[helpers.RUN_ID]["state"] == "killed"


def test_without_a_journal_it_ends(tmp_path, memory):
    process = Process(tmp_path, memory)
    assert process.end() == 0
    assert (process.messages, memory.calls) == ([], [])


def test_an_intermittent_store_causes_one_warning(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE[:2])
    memory.fail_after = 0
    process = Process(run.path, memory)
    helpers.wait_until(lambda: memory.calls.count("find_cursor") > 3)
    memory.fail_after = 3
    run.add(helpers.COMPLETE[2:6])
    helpers.wait_until(lambda: memory.fail_after < -3)
    memory.fail_after = float("inf")
    run.add(helpers.COMPLETE[6:])
    helpers.wait_until(lambda: memory.points() == helpers.points_of(run.path))
    assert process.end() == 0
    assert process.messages == [
        {"event": "down", "message": "The store is unreachable."},
        {"event": "done", "state": "finished"},
    ]
    assert memory.points() == helpers.points_of(run.path)


def test_an_unreachable_store_times_out_after_training(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE)
    memory.fail_after = 0
    process = Process(run.path, memory)
    assert process.end() == 3
    assert [each["event"] for each in process.messages] == ["down"]


def test_a_slow_store_is_reported_once(helpers, new_run, memory, monkeypatch):
    monkeypatch.setattr(sync_process, "SLOW_STORE_S", 0.05)
    run = new_run(helpers.COMPLETE)
    slow = threading.Event()
    real = memory.find_cursor
    memory.find_cursor = lambda run: (slow.wait(10), real(run))[1]
    process = Process(run.path, memory)
    helpers.wait_until(lambda: process.messages)
    assert "The store the store is slow" in process.messages[0]["message"]
    slow.set()
    assert process.end() == 0
    assert [each["event"] for each in process.messages] == ["down", "done"]


def test_a_store_error_ends_the_process(helpers, new_run, memory):
    def refuse(target):
        raise StoreError("Another schema.", fix="Upgrade it.")

    process = Process(new_run(helpers.COMPLETE).path, memory, refuse)
    process.thread.join(30)
    assert process.code == 1
    assert process.messages == [{"event": "failed", "message": "Another schema. Upgrade it."}]


def test_a_damaged_journal_ends_the_process(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE)
    with (run.path / "journal.jsonl").open("ab") as file:
        file.write(b"damage\n")
    process = Process(run.path, memory)
    process.thread.join(30)
    assert process.code == 1
    assert "is not a journal line" in process.messages[0]["message"]


def test_it_waits_for_another_sync_process(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE)
    with (run.path / "journal.jsonl").open("rb", buffering=0) as file, journal_lock(file) as mine:
        assert mine
        process = Process(run.path, memory)
        process.thread.join(0.2)
        assert memory.calls == []
    helpers.wait_until(lambda: memory.runs)
    assert process.end() == 0
    assert memory.points() == helpers.points_of(run.path)


def test_a_fresh_run_leaves_the_old_journal_to_the_old_process(helpers, new_run, memory):
    # `--fresh` removes the journal; a process that still syncs it must not continue in the new one.
    run = new_run(helpers.COMPLETE)
    expected = helpers.points_of(run.path)

    def remove(target):
        (run.path / "journal.jsonl").unlink()
        run.add([helpers.started(facts={**helpers.FACTS, "run_id": "e" * 32}), helpers.rows(1, 12, loss=9.0)])
        return memory

    process = Process(run.path, memory, remove)
    assert process.end() == 0
    assert list(memory.runs) == [helpers.RUN_ID]
    assert memory.points() == expected


def start(run_dir, url, **how):
    command = [sys.executable, "-P", "-m", "trueloop.runs.tracking.sync_process", str(run_dir), "--store", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
    process.stdin.write(f"{json.dumps(url)}\n".encode())
    process.stdin.flush()
    return process


def without_slow_warnings(messages):
    """The messages of a process, without warnings about a slow store, which a busy machine causes."""
    lines = [json.loads(line) for line in messages.splitlines()]
    return [line for line in lines if not (line["event"] == "down" and " is slow" in line["message"])]


def test_the_process_syncs_and_ends_with_its_trainer(helpers, new_run, sqlite_store):
    run = new_run(helpers.KILLED)
    process = start(run.path, sqlite_store)
    helpers.wait_until(lambda: _seen(helpers, sqlite_store))
    assert sync_run(run.path, parse_target(sqlite_store, run.path.parent)).outcome == "busy"
    run.add(helpers.RESUMED[len(helpers.KILLED) :])
    messages, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    assert without_slow_warnings(messages) == [{"event": "done", "state": "finished"}]
    assert helpers.in_mlflow(sqlite_store)[1] == helpers.points_of(run.path)


def test_runs_sync_repairs_a_killed_sync_process(helpers, new_run, sqlite_store):
    run = new_run(helpers.KILLED)
    process = start(run.path, sqlite_store)
    helpers.wait_until(lambda: _seen(helpers, sqlite_store))
    process.kill()
    process.communicate()
    run.add(helpers.RESUMED[len(helpers.KILLED) :])
    sync_run(run.path, parse_target(sqlite_store, run.path.parent))
    assert helpers.in_mlflow(sqlite_store)[1] == helpers.points_of(run.path)


def _seen(helpers, url):
    try:
        return helpers.in_mlflow(url)[1]
    except AssertionError:  # not yet
        return None


def test_the_process_never_imports_torch(helpers, new_run, sqlite_store):
    run = new_run(helpers.COMPLETE)
    script = (
        "import sys\n"
        "from trueloop.runs.tracking import sync_process\n"
        f"code = sync_process.main([{str(run.path)!r}, '--store', {sqlite_store!r}])\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert helpers.in_mlflow(sqlite_store)[1] == helpers.points_of(run.path)


def test_ctrl_c_reaches_only_the_trainer(helpers, new_run, sqlite_store):
    import signal

    run = new_run(helpers.COMPLETE)
    process = start(run.path, sqlite_store)
    helpers.wait_until(lambda: _seen(helpers, sqlite_store))
    process.send_signal(signal.SIGINT)
    messages, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    assert without_slow_warnings(messages) == [{"event": "done", "state": "finished"}]


def test_a_terminated_process_waits_for_its_trainer(helpers, new_run, sqlite_store):
    import signal

    run = new_run(helpers.COMPLETE[:8])
    process = start(run.path, sqlite_store)
    helpers.wait_until(lambda: _seen(helpers, sqlite_store))
    process.send_signal(signal.SIGTERM)  # like a scheduler, which signals every process of a job
    run.add(helpers.COMPLETE[8:])
    messages, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    assert without_slow_warnings(messages) == [{"event": "done", "state": "finished"}]
    assert helpers.in_mlflow(sqlite_store)[1] == helpers.points_of(run.path)


def test_a_password_is_in_no_command_line_and_no_message(helpers, new_run):
    run = new_run(helpers.COMPLETE)
    process = start(run.path, "postgresql+psycopg://me:s3cret@127.0.0.1:9/runs")
    line = process.stdout.readline().decode()
    [number] = helpers.sync_process_ids(run.path)
    with open(f"/proc/{number}/cmdline", "rb") as message:
        assert b"s3cret" not in message.read()
    assert json.loads(line)["event"] == "down"
    assert "s3cret" not in line
    process.kill()
    process.communicate()


def test_an_invalid_address_is_reported(tmp_path):
    messages, _ = start(tmp_path, "nonsense").communicate(timeout=60)
    assert json.loads(messages)["event"] == "failed"
    assert "is unknown" in json.loads(messages)["message"]
