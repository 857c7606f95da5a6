import json
import math
from pathlib import Path

import pytest

from trueloop.app.training.run_folder import RunFolder
from trueloop.core.errors import InvalidData, RunFolderError
from trueloop.core.protocols import Evaluated, Notice, RunEnded, RunStarted, UpdatesDone
from trueloop.runs.journal import read_journal
from trueloop.runs.queries.overview import (
    Point,
    all_monitored_metrics,
    flat_settings,
    flatten,
    read_overview,
    require_readable,
)


def test_a_finished_run_in_numbers(fake_runs):
    run = read_overview(fake_runs.run("a", accuracies=(0.7, 0.8, 0.9)))
    assert (run.name, run.recipe, run.state, run.problem) == ("a", "digits", "finished", "")
    assert (run.record["update"], run.record["updates"], run.record["epoch"], run.record["epochs"]) == (6, 6, 3, 3)
    assert (run.started_at, run.record["duration_s"]) == (1_700_000_000.0, 1.5)
    assert run.monitor == ("val/loss", "min")
    assert run.metrics == ["val/loss", "val/accuracy"]
    assert run.best("val/loss", "min") == Point(0.3, 4, 2)
    assert run.best("val/loss", "max") == Point(0.5, 2, 1)
    assert run.last("val/loss") == Point(0.4, 6, 3)
    assert run.best("val/nothing", "min") is None
    assert run.record["best_checkpoint"] == "checkpoints/update-000000004"
    assert run.record["last_checkpoint"] == "checkpoints/update-000000006"


def test_its_json_is_strict_and_complete(fake_runs):
    run = read_overview(fake_runs.run("a", losses=(0.5, math.nan)))
    record = json.loads(json.dumps(run.as_json(), default=str).replace("NaN", '"nan"'))
    assert record["best"] == {"metric": "val/loss", "value": 0.5, "update": 2, "epoch": 1}
    assert record["last"]["val/loss"]["update"] == 4
    assert record["monitor"] == {"metric": "val/loss", "mode": "min"}
    assert record["path"] == str(fake_runs.root / "a")
    assert not {"lowest", "highest", "end"} & record.keys()


def test_the_id_of_an_older_journal_is_the_stable_hash_of_its_first_line(fake_runs):
    path = fake_runs.write("old", [RunStarted(name="x", epochs=1, updates=2, start_update=0, facts={})])
    first = read_overview(path).run_id
    assert len(first) == 32
    fake_runs.write("old", [RunStarted(name="x", epochs=1, updates=2, start_update=0, facts={"more": 1})])
    assert read_overview(path).run_id == first


@pytest.mark.parametrize("reason", ["finished", "early_stop", "interrupted", "preempted", "failed"])
def test_the_state_is_how_the_newest_process_ended(fake_runs, reason):
    path = fake_runs.run("a", end=reason)
    assert read_overview(path).state == reason
    with RunFolder(path).lock():
        assert read_overview(path).state == reason, "it says so itself"


def test_without_an_end_the_lock_decides_between_running_and_killed(fake_runs):
    path = fake_runs.run("a", end="")
    with RunFolder(path).lock():
        assert read_overview(path).state == "running"
    assert read_overview(path).state == "killed"
    assert read_overview(path).record["duration_s"] == pytest.approx(6 * 0.01 + 3 * 0.1 + 3 * 0.01)


def test_superseded_updates_are_not_counted(fake_runs):
    path = fake_runs.run("a", losses=(0.5, 0.3, 0.1), end="")
    fake_runs.write("a", [RunStarted(name="digits", epochs=3, updates=6, start_update=4, facts={})])
    run = read_overview(path)
    assert run.best("val/loss", "min") == Point(0.3, 4, 2)
    assert (run.record["update"], run.record["processes"]) == (4, 2)


def test_a_rolled_back_run_is_pending_until_it_is_resumed(fake_runs, fake_runs_module):
    path = fake_runs.run("a", end="")
    fake_runs.write("a", [Notice(update=6, kind="rolled_back", message="", details={})])
    assert read_overview(path).state == "rolled_back"
    fake_runs.write(
        "a",
        [
            RunStarted(name="digits", epochs=4, updates=8, start_update=6, facts={}),
            UpdatesDone(rows=[fake_runs_module.row(7)]),
        ],
    )
    assert read_overview(path).state == "killed"


def test_a_damaged_journal_is_reported_and_never_raised(fake_runs, fake_runs_module):
    run = read_overview(fake_runs_module.damage(fake_runs.run("a"), 3))
    assert (run.state, run.name, run.metrics, run.run_id) == ("damaged", "a", [], "")
    assert "Line 3 of" in run.problem
    with pytest.raises(InvalidData, match="Line 3 of"):
        require_readable(run)
    assert run.as_json()["problem"] == run.problem


@pytest.mark.parametrize(
    "line",
    [
        '{"event":"run_started","time":"soon","name":"x","epochs":1,"updates":1,"start_update":0,"facts":{}}',
        '{"event":"run_started","time":1,"name":"x","epochs":1,"updates":1,"start_update":0,"facts":3}',
        '{"event":"run_started","time":1,"name":"x","epochs":1,"updates":1,"start_update":0,"facts":' + "[" * 99_999,
        '{"event":"run_started","time":1e999,"schema":1}',
        "[]",
        "\x00" * 5,
    ],
)
def test_no_line_makes_an_overview_raise(fake_runs, line):
    path = fake_runs.root / "a"
    path.mkdir(parents=True)
    (path / "journal.jsonl").write_text(line + "\n")
    assert read_overview(path).state == "damaged"
    assert read_overview(path).problem


def test_journals_without_a_run_or_of_a_newer_schema_are_reported(fake_runs):
    path = fake_runs.root / "a"
    path.mkdir(parents=True)
    (path / "journal.jsonl").write_text("")
    assert read_overview(path).state == "empty"
    with RunFolder(path).lock():
        assert read_overview(path).state == "running"
    (path / "journal.jsonl").write_text('{"event":"run_started","schema":99}\n')
    run = read_overview(path)
    assert "schema 99" in run.problem
    with pytest.raises(RunFolderError, match="schema 99"):
        require_readable(run)


def test_nonfinite_values_are_never_best(fake_runs):
    run = read_overview(fake_runs.run("a", losses=(math.nan, math.inf, 0.7)))
    assert run.best("val/loss", "max") == Point(0.7, 6, 3)
    only = read_overview(fake_runs.run("b", losses=(math.nan,)))
    assert only.best("val/loss", "min") is None
    assert math.isnan(only.last("val/loss").value)


def test_every_metric_that_was_ever_monitored_is_known(fake_runs):
    facts = {"config": {"monitor": {"metric": "val/accuracy", "mode": "max"}}}
    path = fake_runs.run("a", end="")
    fake_runs.write("a", [RunStarted(name="digits", epochs=3, updates=6, start_update=6, facts=facts)])
    assert all_monitored_metrics(path) == [("val/loss", "min"), ("val/accuracy", "max")]


def test_settings_are_dotted(fake_runs):
    record = flat_settings(read_journal(fake_runs.run("a")))
    assert (record["config.optim.lr"], record["options.width"]) == (0.001, 8)
    assert flatten({"a": {"b": {}, "c": 1}, "d": []}) == {"a.c": 1, "d": []}


def test_recorded_checkpoint_paths_are_not_followed(fake_runs):
    assert read_overview(fake_runs.hostile()).record["last_checkpoint"] == "checkpoints/etc"


def test_the_test_set_has_its_own_metrics(fake_runs):
    path = fake_runs.run("a", end="")
    test = Evaluated(update=6, epoch=3, split="test", metrics={"loss": 0.2}, tables={}, seconds=0.1, best=False)
    fake_runs.write("a", [test, RunEnded(update=6, reason="finished", seconds=2)])
    assert read_overview(path).last("test/loss") == Point(0.2, 6, 3)


@pytest.mark.parametrize("examples", [1e308, 10**400, 1e999, "many", None])
def test_an_overlarge_number_is_damage(fake_runs, fake_runs_module, examples):
    path = fake_runs.run("a", end="") / "journal.jsonl"
    lines = fake_runs_module.records(path.parent)
    lines[1]["examples"] = examples
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_overview(path.parent).state == "damaged"


def test_a_run_is_named_by_its_folder_for_any_spelling_of_the_path(fake_runs, monkeypatch):
    path = fake_runs.run("a.b")
    monkeypatch.chdir(path)
    assert [read_overview(each).name for each in (path, Path("."), Path("../a.b"), path / "..", path / "." / "")] == [
        "a.b", "a.b", "a.b", "runs", "a.b"
    ]  # fmt: skip
    assert read_overview(path).path == path
