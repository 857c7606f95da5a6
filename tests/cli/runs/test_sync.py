"""`trueloop runs sync` from outside: real runs, a real database, words and exit codes."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("mlflow")

from trueloop.cli.app import main
from trueloop.core.protocols import Evaluated, RunEnded, RunStarted, UpdateRow, UpdatesDone
from trueloop.runs.journal import Journal


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRUELOOP_STORE", raising=False)
    for name in ("digits-1", "digits-2"):
        journal = Journal(tmp_path / "runs" / name / "journal.jsonl")
        rows = [
            UpdateRow(
                update=update, epoch=1, loss=1 / update, grad_norm=1.0, lr=0.1, examples=8, wait_s=0.0, total_s=0.1,
                skipped=False,
            )
            for update in range(1, 5)
        ]  # fmt: skip
        events = [
            RunStarted(name="digits", epochs=1, updates=4, start_update=0, facts={"config": {"seed": name}}),
            UpdatesDone(rows=rows),
            Evaluated(update=4, epoch=1, split="val", metrics={"loss": 0.3}, tables={}, seconds=0.1, best=True),
            RunEnded(update=4, reason="finished", seconds=1.0),
        ]
        for event in events:
            journal.report(event)
        journal.close()
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """A database with empty MLflow tables: creating them takes a second, copying them no time."""
    from trueloop.runs.tracking.mlflow_sink import MlflowSink
    from trueloop.runs.tracking.target import parse_target

    folder = tmp_path_factory.mktemp("empty_database")
    MlflowSink(parse_target("sqlite", folder)).close()
    return folder / "mlflow.db"


@pytest.fixture
def runs_with_database(runs, empty_database):
    """The runs, and next to them the database that an earlier command created."""
    return Path(shutil.copy(empty_database, runs)).parent


def test_a_complete_run_is_not_copied_again(runs, capsys):
    assert main(["runs", "sync", "--store", "sqlite"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "runs/digits-1  copied, 4 lines, finished",
        "runs/digits-2  copied, 4 lines, finished",
        "2 runs in sqlite:///runs/mlflow.db.",
    ]
    assert main(["runs", "sync", "digits-2", "--store", "sqlite"]) == 0
    assert capsys.readouterr().out == "runs/digits-2  was complete, finished\n"
    assert main(["runs", "sync", "digits-2", "--store", "sqlite", "--again"]) == 0
    assert capsys.readouterr().out == "runs/digits-2  rewritten, 4 lines, finished\n"


def test_json_is_one_object(runs_with_database, capsys, monkeypatch):
    monkeypatch.setenv("TRUELOOP_STORE", "sqlite")
    (runs_with_database / "digits-1" / "journal.jsonl").write_text("damage\n")
    assert main(["runs", "sync", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["store"] == "sqlite:///runs/mlflow.db"
    assert [(each["run"], each["outcome"], each["lines"]) for each in record["runs"]] == [
        ("runs/digits-1", "failed", 0), ("runs/digits-2", "copied", 4),
    ]  # fmt: skip
    assert "is not a journal line" in record["runs"][0]["problem"]
    assert record["runs"][1] == {
        "run": "runs/digits-2", "outcome": "copied", "state": "finished", "lines": 4, "problem": None,
    }  # fmt: skip


def test_a_damaged_run_is_named_and_the_exit_code_is_1(runs_with_database, capsys):
    (runs_with_database / "digits-1" / "journal.jsonl").write_text("damage\n")
    assert main(["runs", "sync", "--store", "sqlite"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("runs/digits-1  could not be copied: The line at byte 0 of ")
    assert lines[2].endswith(", 1 could not be copied.")


def test_an_unavailable_store_is_named_without_its_password(runs, capsys):
    assert main(["runs", "sync", "--store", "postgresql://me:s3cret@127.0.0.1:9/runs"]) == 1
    captured = capsys.readouterr()
    assert "does not answer" in captured.err
    assert "s3cret" not in captured.err + captured.out


def test_a_missing_store_is_refused(runs, capsys):
    assert main(["runs", "sync"]) == 1
    assert "TRUELOOP_STORE" in capsys.readouterr().err


def test_a_hostile_name_cannot_control_the_terminal(runs_with_database, capsys):
    hostile = runs_with_database / "digits-\x1b[31m<b>"
    (runs_with_database / "digits-1").rename(hostile)
    assert main(["runs", "sync", "--store", "sqlite"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "digits-" in out
