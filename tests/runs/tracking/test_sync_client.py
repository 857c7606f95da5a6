"""Test a training run with its sync process: problems of the store never affect the run."""

import os
import signal
import time

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

pytest.importorskip("mlflow")

from trueloop import OptimConfig, TrainConfig, Trainer
from trueloop.core.errors import InvalidConfig, MissingExtra
from trueloop.core.protocols import Evaluated, Notice, RunEnded
from trueloop.runs.journal import read_journal
from trueloop.runs.run_id import read_run_id
from trueloop.runs.tracking import SyncClient, parse_target, sync_client, sync_run

pytestmark = pytest.mark.usefixtures("plots_disabled")

G = torch.Generator().manual_seed(0)
X = torch.randn(200, 5, generator=G)
Y = (X @ torch.randn(5, 3, generator=G)).argmax(1)
TRAIN, VAL = TensorDataset(X[:160], Y[:160]), TensorDataset(X[160:], Y[160:])
CONFIG = TrainConfig(epochs=6, effective_batch=20, optim=OptimConfig(lr=0.02), workers=0)


class Watcher:
    """A reporter that records notices and calls a function after evaluations."""

    def __init__(self, after=lambda epoch: None):
        self.after, self.notes, self.ended = after, [], None

    def report(self, event):
        if isinstance(event, Evaluated):
            self.after(event.epoch)
        elif isinstance(event, Notice):
            self.notes.append(event)
        elif isinstance(event, RunEnded):
            self.ended = event.reason

    def close(self):
        pass


def train(run_dir, store, after=lambda epoch: None, **settings):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    watcher = Watcher(after)
    trainer = Trainer(
        model=model,
        objective=nn.CrossEntropyLoss(),
        **{"config": CONFIG, "run_dir": run_dir, "store": store, "reporters": [watcher], **settings},
    )
    result = trainer.fit(TRAIN, val=VAL)
    return result, watcher


def messages(helpers, url, run_dir):
    """The current points of a run in MLflow, or None."""
    try:
        return helpers.in_mlflow(url, read_run_id(run_dir / "journal.jsonl"))[1] or None
    except (AssertionError, TypeError):
        return None


def gone(helpers, run_dir):
    return helpers.wait_until(lambda: not helpers.sync_process_ids(run_dir))


@pytest.mark.parametrize("name", ["a\nb", "a b", "\udcff"])
def test_a_folder_may_have_any_name(helpers, new_run, tmp_path, name):
    run = new_run(helpers.COMPLETE)
    folder = tmp_path / name / "tb"
    problem = SyncClient(run.path, parse_target(f"tensorboard:{folder}", tmp_path), print).wait(60)
    if name.isprintable() or "\n" in name:
        assert problem is None
        assert [path.name for path in folder.iterdir()] == [run.path.name]
    else:
        assert problem is not None
        assert "cannot be written" in problem.message


def test_a_run_is_in_the_store_when_training_is_over(helpers, sqlite_store, tmp_path):
    result, watcher = train(tmp_path / "run", sqlite_store)
    gone(helpers, tmp_path / "run")
    stored, points, models = helpers.in_mlflow(sqlite_store, read_run_id(tmp_path / "run" / "journal.jsonl"))
    assert points == expected(helpers, tmp_path / "run")
    assert (stored.info.status, stored.data.tags["trueloop.state"]) == ("FINISHED", "finished")
    assert stored.data.params["optim.lr"] == "0.02"
    assert stored.data.tags["trueloop.environment.host"]
    assert {model.tags["trueloop.checkpoint"] for model in models.values()} == {
        each.path for each in read_journal(tmp_path / "run").checkpoints
    }
    assert (result.reason, watcher.notes) == ("finished", [])


def expected(helpers, run_dir):
    """Like `points_of`, for a run whose groups have equal learning rates."""
    return {key: value for key, value in helpers.points_of(run_dir).items() if "lr_group" not in key[0]}


def test_points_are_written_during_training(helpers, sqlite_store, tmp_path):
    during = {}

    def after(epoch):
        if epoch == 3:
            during.update(helpers.wait_until(lambda: messages(helpers, sqlite_store, tmp_path / "run")))

    train(tmp_path / "run", sqlite_store, after)
    assert ("train/loss", 1) in during
    gone(helpers, tmp_path / "run")
    assert messages(helpers, sqlite_store, tmp_path / "run") == expected(helpers, tmp_path / "run")


def test_the_store_changes_nothing_about_the_run(sqlite_store, tmp_path):
    with_store, _ = train(tmp_path / "a", sqlite_store)
    without, _ = train(tmp_path / "b", None)
    files = [(tmp_path / name / "final" / "model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]
    assert with_store.metrics == without.metrics


def test_postgres_killed_in_the_middle_leaves_the_run_unharmed(helpers, postgres, tmp_path):
    url, run_dir = postgres.database("killed"), tmp_path / "run"
    received = []

    def after(epoch):
        if epoch == 2:
            helpers.wait_until(lambda: messages(helpers, url, run_dir))
            postgres.kill()
        elif epoch == 3:  # until the sync process has noticed it
            journal = run_dir / "journal.jsonl"
            deadline = time.monotonic() + 60
            while not (received or trainer_has_received(run_dir)):
                assert time.monotonic() < deadline, journal.read_text()[-500:]
                time.sleep(0.05)

    def trainer_has_received(run_dir):
        return any(each._problem for each in FOLLOWERS if each._run_dir == run_dir)

    try:
        result, watcher = train(run_dir, url, after)
    finally:
        for number in helpers.sync_process_ids(run_dir):
            os.kill(number, signal.SIGKILL)
        gone(helpers, run_dir)
        postgres.start()
    assert (result.reason, result.update, watcher.ended) == ("finished", 48, "finished")
    notes = [note for note in watcher.notes if note.kind.startswith("store")]
    assert [note.kind for note in notes] == ["store_down"]
    assert "s3cret" not in notes[0].message
    assert "trueloop runs sync" in notes[0].message
    history = read_journal(run_dir)
    assert history.updates.update == list(range(1, 49))
    assert [note.kind for note in history.notes] == ["store_down"]
    assert history.end.reason == "finished"
    assert b"s3cret" not in (run_dir / "journal.jsonl").read_bytes()
    assert messages(helpers, url, run_dir) != expected(helpers, run_dir)
    assert sync_run(run_dir, parse_target(url, tmp_path)).state == "finished"
    assert messages(helpers, url, run_dir) == expected(helpers, run_dir)


FOLLOWERS = []


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Wait longer than by default: the sync process has the lowest priority on a busy machine."""
    monkeypatch.setattr(SyncClient.wait, "__defaults__", (200.0,))


@pytest.fixture(autouse=True)
def remembered(monkeypatch):
    """Every sync client that a test starts."""
    FOLLOWERS.clear()
    real = SyncClient.__init__

    def remember(self, *args):
        FOLLOWERS.append(self)
        real(self, *args)

    monkeypatch.setattr(SyncClient, "__init__", remember)


_SCRIPT = """
import sys, time
sys.path.insert(0, {folder!r})
from pathlib import Path
import test_sync_client

def after(epoch):
    if epoch == 3:
        print("there", flush=True)
        time.sleep(60)

test_sync_client.train(Path({run_dir!r}), {store!r}, after, config=test_sync_client.{config})
"""


def start_and_kill(forker, helpers, run_dir, store, config="CONFIG"):
    script = run_dir.with_name("train.py")
    script.write_text(
        _SCRIPT.format(folder=os.path.dirname(__file__), run_dir=str(run_dir), store=store, config=config)
    )
    process = forker.start(script, cwd=script.parent)
    while "there" not in process.output()[0]:
        assert process.poll() is None, process.output()[1]
        time.sleep(0.01)
    helpers.wait_until(lambda: helpers.sync_process_ids(run_dir))
    process.kill()
    process.communicate()


WORKERS = TrainConfig(epochs=6, effective_batch=20, optim=OptimConfig(lr=0.02), workers=2)


@pytest.mark.slow(reason="trains, kills and resumes real runs")
@pytest.mark.parametrize("config", ["CONFIG", "WORKERS"])
def test_a_killed_trainer_leaves_everything_in_the_store(forker, helpers, sqlite_store, tmp_path, config):
    run_dir = tmp_path / "run"
    start_and_kill(forker, helpers, run_dir, sqlite_store, config)
    gone(helpers, run_dir)
    stored, points, _ = helpers.in_mlflow(sqlite_store, read_run_id(run_dir / "journal.jsonl"))
    assert (stored.info.status, stored.data.tags["trueloop.state"]) == ("KILLED", "killed")
    assert points == expected(helpers, run_dir)
    assert max(step for _, step in points) >= 16
    # after a resume it is one run, without superseded records
    if config == "CONFIG":
        train(run_dir, sqlite_store)
        gone(helpers, run_dir)
        assert messages(helpers, sqlite_store, run_dir) == expected(helpers, run_dir)


def test_a_resumed_run_is_the_same_run_in_the_store(helpers, sqlite_store, tmp_path):
    def stop(epoch):
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    result, _ = train(tmp_path / "run", sqlite_store, stop)
    assert result.reason == "preempted"
    gone(helpers, tmp_path / "run")
    stored, _, _ = helpers.in_mlflow(sqlite_store, read_run_id(tmp_path / "run" / "journal.jsonl"))
    assert stored.data.tags["trueloop.state"] == "preempted"
    train(tmp_path / "run", sqlite_store)
    gone(helpers, tmp_path / "run")
    again, points, _ = helpers.in_mlflow(sqlite_store, read_run_id(tmp_path / "run" / "journal.jsonl"))
    assert again.data.tags["trueloop.state"] == "finished"
    assert points == expected(helpers, tmp_path / "run")


def test_a_crashed_sync_process_is_reported(helpers, sqlite_store, tmp_path):
    def after(epoch):
        if epoch == 2:
            for number in helpers.wait_until(lambda: helpers.sync_process_ids(tmp_path / "run")):
                os.kill(number, signal.SIGKILL)
            helpers.wait_until(lambda: FOLLOWERS[0]._problem)

    result, watcher = train(tmp_path / "run", sqlite_store, after)
    assert result.reason == "finished"
    assert [note.kind for note in watcher.notes] == ["store_down"]
    assert "ended early (exit code -9)" in watcher.notes[0].message


def test_a_slow_sync_continues_in_the_background(helpers, sqlite_store, tmp_path, monkeypatch):
    monkeypatch.setattr(sync_client.SyncClient.wait, "__defaults__", (0.0,))
    result, watcher = train(tmp_path / "run", sqlite_store)
    assert result.reason == "finished"
    assert [note.kind for note in watcher.notes] == ["store_behind"]
    assert read_journal(tmp_path / "run").end.reason == "finished"
    assert [note.kind for note in read_journal(tmp_path / "run").notes] == []
    gone(helpers, tmp_path / "run")
    assert messages(helpers, sqlite_store, tmp_path / "run") == expected(helpers, tmp_path / "run")


def test_a_failed_run_is_failed_in_the_store(helpers, sqlite_store, tmp_path):
    def after(epoch):
        if epoch == 2:
            raise ValueError("a reporter of the user's fails")

    with pytest.raises(ValueError, match="of the user's"):
        train(tmp_path / "run", sqlite_store, after)
    gone(helpers, tmp_path / "run")
    stored, points, _ = helpers.in_mlflow(sqlite_store, read_run_id(tmp_path / "run" / "journal.jsonl"))
    assert (stored.info.status, stored.data.tags["trueloop.state"]) == ("FAILED", "failed")
    assert points == expected(helpers, tmp_path / "run")


@pytest.mark.parametrize("store", ["nonsense", "postgresql://h", "tensorboard:"])
def test_an_invalid_address_is_refused_before_anything_is_written(tmp_path, store):
    with pytest.raises(InvalidConfig):
        train(tmp_path / "run", store)
    assert not (tmp_path / "run").exists()


def test_a_store_needs_a_run_folder(tmp_path):
    with pytest.raises(InvalidConfig, match="there is no run folder"):
        train(None, "sqlite")


def test_a_missing_extra_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    from trueloop.runs.tracking import target

    monkeypatch.setattr(target, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"trueloop\[track\]"):
        train(tmp_path / "run", "sqlite")
    assert not (tmp_path / "run").exists()


def test_a_forked_child_does_not_keep_the_sync_process_alive(helpers, new_run, sqlite_store):
    run = new_run(helpers.COMPLETE)
    client = SyncClient(run.path, parse_target(sqlite_store, run.path.parent), lambda notice: None)
    script_end, child = os.pipe(), os.fork()
    if child == 0:
        os.read(script_end[0], 1)
        os._exit(0)
    try:
        assert client.wait(60) is None
    finally:
        os.write(script_end[1], b"x")
        os.waitpid(child, 0)
        for end in script_end:
            os.close(end)
    assert helpers.in_mlflow(sqlite_store)[1] == helpers.points_of(run.path)


def test_a_process_that_cannot_be_started_is_reported(helpers, new_run, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(sync_client.subprocess, "Popen", refuse)
    notes = []
    client = SyncClient(new_run(helpers.COMPLETE).path, parse_target("sqlite", tmp_path), notes.append)
    client.report(helpers.rows(1, 4))
    client.report(helpers.rows(5, 8))
    assert [(note.kind, note.update) for note in notes] == [("store_down", 4)]
    assert "no process can be started" in notes[0].message
    assert client.wait() is None
