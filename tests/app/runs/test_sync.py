"""Test which runs are synced, and how failures are reported."""

import pytest

from trueloop.app.runs import sync
from trueloop.app.runs.sync import sync_runs
from trueloop.core.errors import InvalidConfig, InvalidData, RunFolderError
from trueloop.core.protocols import RunStarted
from trueloop.runs.journal import Journal
from trueloop.runs.tracking import StoreError, StoreRejected, StoreUnavailable, SyncResult
from trueloop.runs.tracking import target as target_module


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(target_module, "find_spec", lambda name: name)
    for name in ("digits-1", "digits-2", "other-1"):
        journal = Journal(tmp_path / "runs" / name / "journal.jsonl")
        journal.report(RunStarted(name=name, epochs=1, updates=1, start_update=0, facts={}))
        journal.close()
    return tmp_path / "runs"


@pytest.fixture
def copied(monkeypatch):
    """The synced runs; results or errors by name."""
    calls, answers = [], {}

    def copy(run_dir, target, *, rewrite):
        calls.append((run_dir.name, target.address, rewrite))
        answer = answers.get(run_dir.name, SyncResult(outcome="copied", state="finished", lines=3))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(sync, "sync_run", copy)
    return calls, answers


def test_all_runs_below_the_root_are_synced(root, copied):
    synced = list(sync_runs([], root, "sqlite", rewrite=False))
    address = f"sqlite:///{root}/mlflow.db"
    assert copied[0] == [(name, address, False) for name in ("digits-1", "digits-2", "other-1")]
    assert [(each.run, each.result.lines, each.problem) for each in synced] == [
        (root / name, 3, "") for name in ("digits-1", "digits-2", "other-1")
    ]


def test_runs_by_name_prefix_and_path_are_synced_once(root, copied):
    list(sync_runs(["other", "digits-1", str(root / "other-1")], root, "tensorboard:/tb", rewrite=True))
    assert copied[0] == [("other-1", "/tb", True), ("digits-1", "/tb", True)]


def test_a_failed_sync_does_not_block_the_others(root, copied):
    copied[1]["digits-1"] = InvalidData("A line is damaged.", fix="Restore it.")
    copied[1]["digits-2"] = StoreError("It was deleted.")
    copied[1]["other-1"] = StoreRejected("Its name is too long.")
    synced = list(sync_runs([], root, "sqlite", rewrite=False))
    problems = ["A line is damaged. Restore it.", "It was deleted.", "Its name is too long."]
    assert [(each.problem, each.result) for each in synced] == [(problem, None) for problem in problems]


def test_an_unavailable_store_stops_the_sync(root, copied):
    copied[1]["digits-1"] = StoreUnavailable("It is away.")
    with pytest.raises(StoreUnavailable):
        list(sync_runs([], root, "sqlite", rewrite=False))
    assert len(copied[0]) == 1


@pytest.mark.parametrize(
    ("expected", "store", "error", "message"),
    [
        ([], None, InvalidConfig, "No store is given"),
        ([], "", InvalidConfig, "TRUELOOP_STORE"),
        ([], "nonsense", InvalidConfig, "is unknown"),
        (["digitz-1"], "sqlite", RunFolderError, "digits-1"),
        (["digits"], "sqlite", RunFolderError, "matches 2 runs"),
        (["../runs/../.."], "sqlite", RunFolderError, "leads out"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_synced(root, copied, expected, store, error, message):
    with pytest.raises(error, match=message):
        sync_runs(expected, root, store, rewrite=False)
    assert copied[0] == []


def test_an_empty_root_is_refused(tmp_path, root):
    with pytest.raises(RunFolderError, match="There are no runs"):
        sync_runs([], tmp_path / "empty", "sqlite", rewrite=False)
