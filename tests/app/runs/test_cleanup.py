"""Test what cleanup removes and, above all, what it keeps."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys

import pytest

from trueloop.app.runs import cleanup
from trueloop.app.runs.cleanup import CleanupOptions, clean_up, plan_cleanup
from trueloop.app.training.run_folder import RunFolder
from trueloop.core.errors import InvalidConfig
from trueloop.core.protocols import Notice, RunEnded, RunStarted
from trueloop.runs.queries.index import load_overviews
from trueloop.runs.queries.overview import read_overview
from trueloop.training.checkpoint.checkpoints import CheckpointFolder

BEST = CleanupOptions(keep_best=1)
UNFINISHED = CleanupOptions(unfinished=True)


def saved_updates(run_dir):
    return [each.update for each in CheckpointFolder(run_dir / "checkpoints", writing=False).checkpoints()]


def remove(fake_runs, options, do=clean_up):
    plan = do(load_overviews(fake_runs.root), fake_runs.root, options)
    return [(item.kind, item.path.name) for item in plan.items], {path.name: reason for path, reason in plan.skipped}


def test_planning_changes_nothing(fake_runs):
    path = fake_runs.run("a", losses=(0.5, 0.3, 0.4), checkpoints=(2, 4, 6))
    fake_runs.run("b", losses=(), end="")
    before = sorted(str(each) for each in fake_runs.root.rglob("*"))
    items, skipped = remove(fake_runs, CleanupOptions(keep_best=1, unfinished=True), plan_cleanup)
    assert items == [("checkpoint", "update-000000002"), ("run", "b")]
    assert skipped == {}
    assert [each for each in sorted(str(each) for each in fake_runs.root.rglob("*")) if ".index" not in each] == before
    plan = plan_cleanup(load_overviews(fake_runs.root), fake_runs.root, BEST)
    assert plan.items[0].bytes == sum(
        file.stat().st_size for file in (path / "checkpoints" / "update-000000002").iterdir()
    )


def test_the_best_and_the_last_are_kept(fake_runs):
    path = fake_runs.run("a", losses=(0.5, 0.3, 0.4, 0.35, 0.6), checkpoints=(2, 4, 6, 8, 10))
    remove(fake_runs, CleanupOptions(keep_best=2))
    assert saved_updates(path) == [4, 8, 10]
    assert remove(fake_runs, BEST)[0] == [("checkpoint", "update-000000008")]
    assert saved_updates(path) == [4, 10]
    assert remove(fake_runs, BEST) == ([], {})
    assert read_overview(path).state == "finished"


def test_the_best_by_every_monitored_metric_is_kept(fake_runs):
    path = fake_runs.run("a", losses=(0.5, 0.3, 0.4, 0.6), accuracies=(0.9, 0.1, 0.2, 0.3), end="")
    for update, loss, accuracy in ((2, 0.5, 0.9), (4, 0.3, 0.1), (6, 0.4, 0.2), (8, 0.6, 0.3)):
        fake_runs.save(path, update, {"val/loss": loss, "val/accuracy": accuracy})
    facts = {"config": {"monitor": {"metric": "val/accuracy", "mode": "max"}}}
    fake_runs.write("a", [RunStarted(name="digits", epochs=3, updates=8, start_update=8, facts=facts)])
    remove(fake_runs, BEST)
    assert saved_updates(path) == [2, 4, 8]


def test_the_best_evaluation_is_kept_even_without_metrics_in_its_manifest(fake_runs):
    path = fake_runs.run("a", losses=(0.5, 0.3, 0.4))
    for update in (2, 4, 6):
        fake_runs.save(path, update, {"val/loss": math.nan})
    remove(fake_runs, BEST)
    assert saved_updates(path) == [4, 6]


@pytest.mark.parametrize("end", ["", "failed", "interrupted", "finished"])
def test_the_last_checkpoint_of_a_run_is_always_kept(fake_runs, end):
    path = fake_runs.run("a", losses=(0.1, 0.2, 0.3), checkpoints=(4, 6), end=end)
    remove(fake_runs, CleanupOptions(keep_best=1, unfinished=True))
    assert saved_updates(path)[-1] == 6


def test_a_training_run_is_skipped(fake_runs):
    path = fake_runs.run("a", losses=(0.5, 0.3, 0.4), checkpoints=(2, 4, 6), end="")
    fake_runs.run("b", losses=(), end="")
    with RunFolder(path).lock(), RunFolder(fake_runs.root / "b").lock():
        items, skipped = remove(fake_runs, CleanupOptions(keep_best=1, unfinished=True))
    assert items == []
    assert skipped == dict.fromkeys("ab", "a process is training in it")
    assert saved_updates(path) == [2, 4, 6]


def test_a_run_that_starts_between_plan_and_removal_is_skipped(fake_runs, monkeypatch):
    path = fake_runs.run("a", losses=(0.5, 0.3, 0.4), checkpoints=(2, 4, 6))
    real = cleanup.plan_cleanup

    def then_somebody_trains(*args):
        plan = real(*args)
        lock.__enter__()
        return plan

    lock = RunFolder(path).lock()
    monkeypatch.setattr(cleanup, "plan_cleanup", then_somebody_trains)
    items, skipped = remove(fake_runs, BEST)
    lock.__exit__(None, None, None)
    assert items == []
    assert "Another process is training" in skipped["a"]
    assert saved_updates(path) == [2, 4, 6]


def test_a_run_of_unknown_state_is_skipped(fake_runs, monkeypatch):
    fake_runs.run("a", losses=(0.5, 0.3, 0.4), checkpoints=(2, 4, 6))
    monkeypatch.setattr(cleanup, "is_training", lambda _: None)
    assert remove(fake_runs, BEST) == ([], {"a": "it is unknown whether a process is training in it"})


def test_a_damaged_journal_or_a_newer_checkpoint_is_skipped(fake_runs, fake_runs_module):
    fake_runs_module.damage(fake_runs.run("a", checkpoints=(2, 4, 6)))
    path = fake_runs.run("b", checkpoints=(2, 4, 6))
    from trueloop.training.checkpoint.manifest import seal

    (path / "checkpoints" / "update-000000002" / "manifest.json").write_bytes(seal({"schema": 99}))
    items, skipped = remove(fake_runs, CleanupOptions(keep_best=1, unfinished=True))
    assert items == []
    assert "Line 2" in skipped["a"]
    assert "schema 99" in skipped["b"]


def test_damaged_checkpoints_are_kept(fake_runs):
    path = fake_runs.run("a", losses=(0.5, 0.3, 0.4, 0.6), checkpoints=(2, 4, 6, 8))
    (path / "checkpoints" / "update-000000002" / "state.json").unlink()
    assert remove(fake_runs, BEST)[0] == [("checkpoint", "update-000000006")]
    assert (path / "checkpoints" / "update-000000002").is_dir()


@pytest.mark.parametrize("end", ["", "failed", "interrupted", "preempted"])
def test_an_unfinished_run_without_a_checkpoint_is_removed(fake_runs, end):
    fake_runs.run("a", losses=(0.5,), end=end)
    assert remove(fake_runs, UNFINISHED)[0] == [("run", "a")]
    assert not (fake_runs.root / "a").exists()


def test_resumable_and_finished_runs_are_kept(fake_runs):
    fake_runs.run("finished")
    fake_runs.run("stopped", end="early_stop")
    fake_runs.run("resumable", end="", checkpoints=(2,))
    mirrored = {"config": {"monitor": {"metric": "val/loss", "mode": "min"}, "checkpoint": {"mirror": "s3://x"}}}
    fake_runs.run("mirrored", end="", facts=mirrored)
    (fake_runs.run("shipped", end="failed") / "final").mkdir()
    assert remove(fake_runs, UNFINISHED) == ([], {})


def test_only_files_of_the_run_are_removed(fake_runs):
    path = fake_runs.run("a", losses=(0.5,), end="failed")
    (path / "thesis.txt").write_text("years of work")
    (path / "report.html").write_text("a report")
    outside = fake_runs.root.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("")
    (path / "final").symlink_to(outside)
    assert remove(fake_runs, UNFINISHED) == ([], {}), "the run has final weights"
    (path / "final").unlink()
    (path / "curves.png").symlink_to(outside / "precious")
    assert remove(fake_runs, UNFINISHED)[0] == [("run", "a")]
    assert sorted(each.name for each in path.iterdir()) == [".lock", "thesis.txt"]
    assert (outside / "precious").exists()


def test_checkpoints_behind_a_link_are_skipped(fake_runs):
    path = fake_runs.run("a", losses=(0.5, 0.3, 0.4), checkpoints=(2, 4, 6))
    outside = fake_runs.root.parent / "outside"
    (path / "checkpoints").rename(outside)
    (path / "checkpoints").symlink_to(outside)
    assert remove(fake_runs, BEST) == ([], {"a": "its checkpoints folder is a link"})
    assert len(list(outside.iterdir())) == 3


def test_recent_runs_are_kept(fake_runs):
    path = fake_runs.run("a", losses=(0.5, 0.3, 0.4), checkpoints=(2, 4, 6))
    options = CleanupOptions(keep_best=1, older_than_days=10)
    assert remove(fake_runs, options) == ([], {})
    past = (path / "journal.jsonl").stat().st_mtime - 11 * 86400
    os.utime(path / "journal.jsonl", (past, past))
    assert remove(fake_runs, options)[0] == [("checkpoint", "update-000000002")]


def test_leftovers_of_killed_saves_are_removed(fake_runs):
    path = fake_runs.run("a", losses=(0.3,), checkpoints=(2,))
    left = path / "checkpoints" / ".saving-update-000000004-0123abcd"
    left.mkdir()
    (left / "model.safetensors").write_bytes(bytes(100))
    assert remove(fake_runs, BEST)[0] == [("leftover", left.name)]
    assert not left.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (CleanupOptions(), "Nothing is selected"),
        (CleanupOptions(keep_best=0), "--keep-best is 0"),
        (CleanupOptions(keep_best=-1), "--keep-best is -1"),
        (CleanupOptions(unfinished=True, older_than_days=-1), "--older-than is -1"),
        (CleanupOptions(unfinished=True, older_than_days=math.nan), "--older-than is nan"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(InvalidConfig, match=message):
        options.check()


@pytest.mark.parametrize("after", range(1, 6))
def test_an_interrupted_removal_leaves_a_smaller_run(fake_runs, after):
    """A child is killed after a number of removals: the run keeps its best; the next cleanup removes the rest."""
    path = fake_runs.run("a", losses=(0.5, 0.3, 0.4, 0.35, 0.6), checkpoints=(2, 4, 6, 8, 10))
    code = (
        "import os, shutil, sys; from pathlib import Path\n"
        "from trueloop.runs.queries.index import load_overviews\n"
        "from trueloop.app.runs.cleanup import CleanupOptions, clean_up\n"
        "real, left = os.unlink, [int(sys.argv[2])]\n"
        "def dying(*args, **kwargs):\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: os._exit(9)\n"
        "    return real(*args, **kwargs)\n"
        "root = Path(sys.argv[1]); runs = load_overviews(root)\n"
        "os.unlink = dying\n"
        "clean_up(runs, root, CleanupOptions(keep_best=1))"
    )
    process = subprocess.run([sys.executable, "-c", code, str(fake_runs.root), str(after)], check=False)
    assert process.returncode == 9
    assert {4, 10} <= set(saved_updates(path))
    assert CheckpointFolder(path / "checkpoints", writing=False).problems() == []
    assert read_overview(path).state == "finished"
    remove(fake_runs, BEST)
    assert saved_updates(path) == [4, 10]
    assert sorted(each.name for each in (path / "checkpoints").iterdir()) == ["update-000000004", "update-000000010"]


def test_a_partially_removed_run_is_still_a_run(fake_runs, monkeypatch):
    path = fake_runs.run("a", losses=(0.5,), end="failed")
    (path / "report.html").write_text("")
    (path / "checkpoints").mkdir()
    real = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: (_ for _ in ()).throw(OSError("the power fails")))
    items, skipped = remove(fake_runs, UNFINISHED)
    assert (items, list(skipped.values())) == ([], ["the power fails"])
    assert read_overview(path).state == "failed"
    monkeypatch.setattr(shutil, "rmtree", real)
    assert remove(fake_runs, UNFINISHED)[0] == [("run", "a")]


def test_a_rolled_back_run_is_never_removed_as_abandoned(fake_runs):
    path = fake_runs.run("a", end="", checkpoints=(6,))
    fake_runs.write("a", [Notice(update=6, kind="rolled_back", message="", details={})])
    assert remove(fake_runs, CleanupOptions(keep_best=1, unfinished=True)) == ([], {})
    fake_runs.write("a", [RunEnded(update=6, reason="finished", seconds=1)])
    assert read_overview(path).state == "finished"
