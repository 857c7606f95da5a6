"""Test the reporters of a run with a sync process."""

import pytest

from trueloop.app.training import tracking as module
from trueloop.app.training.tracking import reporters_with_sync, validate_store
from trueloop.core.errors import InvalidConfig
from trueloop.core.protocols import Notice, RunStarted
from trueloop.runs.journal import Journal
from trueloop.runs.tracking import Target

TARGET = Target(kind="tensorboard", address="/nowhere", display="tensorboard:nowhere")
STARTED = RunStarted(name="run", epochs=1, updates=1, start_update=0, facts={})


def note(kind):
    return Notice(update=3, kind=kind, message=kind, details={})


class Observer:
    def __init__(self):
        self.events = []

    def report(self, event):
        self.events.append(event)

    def close(self):
        pass


class FakeFollower:
    """A fake sync client; `lacking` is its notice at the end."""

    lacking = None

    def __init__(self, run_dir, target, tell):
        self.run_dir, self.target, self.tell = run_dir, target, tell
        FakeFollower.made = self

    def report(self, event):
        self.tell(note("store_down"))

    def close(self):
        pass

    def wait(self):
        return FakeFollower.lacking


@pytest.fixture
def journal(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SyncClient", FakeFollower)
    FakeFollower.made = FakeFollower.lacking = None
    made = Journal(tmp_path / "run" / "journal.jsonl")
    yield made
    made.close()


def test_without_a_store_there_is_no_sync_process(journal):
    observer = Observer()
    with reporters_with_sync(journal, None, observers=[observer]) as reporters:
        assert reporters == [observer, journal]
    with reporters_with_sync(None, TARGET, observers=[observer]) as reporters:
        assert reporters == [observer]
    assert FakeFollower.made is None


def test_the_sync_client_is_last_and_reports_an_unavailable_store(journal, tmp_path):
    observer = Observer()
    with reporters_with_sync(journal, TARGET, observers=[observer]) as reporters:
        assert reporters == [observer, journal, FakeFollower.made]
        for reporter in reporters:
            reporter.report(STARTED)
    assert observer.events == [STARTED, note("store_down")]
    lines = (tmp_path / "run" / "journal.jsonl").read_text().splitlines()
    assert ['"run_started"' in lines[0], '"store_down"' in lines[1], len(lines)] == [True, True, 2]


@pytest.mark.parametrize("failing", [False, True])
def test_an_incomplete_sync_is_reported_but_not_journaled(journal, tmp_path, failing):
    observer, FakeFollower.lacking = Observer(), note("store_behind")
    before = (tmp_path / "run" / "journal.jsonl").read_bytes()
    try:
        with reporters_with_sync(journal, TARGET, observers=[observer]):
            journal.close()
            if failing:
                raise KeyError("training failed")
    except KeyError:
        assert failing
    assert observer.events == [note("store_behind")]
    assert (tmp_path / "run" / "journal.jsonl").read_bytes() == before


def test_no_store_is_always_valid():
    validate_store(None, None)


def test_a_store_without_a_run_folder_is_refused(monkeypatch):
    from trueloop.runs.tracking import target

    monkeypatch.setattr(target, "find_spec", lambda name: name)
    validate_store("tensorboard:tb", "runs/run")
    with pytest.raises(InvalidConfig, match="store is tensorboard:tb, but there is no run folder"):
        validate_store("tensorboard:tb", None)
    with pytest.raises(InvalidConfig, match="is unknown"):
        validate_store("nonsense", "runs/run")
