"""Test rollbacks: the new run, the unchanged source, and bitwise equality after resuming."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from trueloop.app.runs import rollback
from trueloop.app.runs.rollback import roll_back
from trueloop.app.training.run_folder import RunFolder
from trueloop.core.errors import CheckpointError, InvalidConfig, RunFolderError
from trueloop.runs.journal import read_journal
from trueloop.runs.queries.overview import read_overview
from trueloop.training.checkpoint.checkpoints import CheckpointFolder


def hashes(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_new_run_starts_at_a_checkpoint_and_the_old_is_unchanged(fake_runs):
    source = fake_runs.run("digits-20260101-000000", checkpoints=(2, 4, 6))
    (source / "config.json").write_text("{}")
    before = hashes(source)
    rolled = roll_back(source, "2")
    assert hashes(source) == before
    assert rolled.run_dir.parent == fake_runs.root
    assert rolled.run_dir.name.startswith("digits-2")
    assert rolled.run_dir != source
    copied = hashes(rolled.run_dir)
    name = "checkpoints/update-000000002"
    assert {path: digest for path, digest in copied.items() if path.startswith("checkpoints")} == {
        path: digest for path, digest in before.items() if path.startswith(name)
    }
    assert copied["config.json"] == before["config.json"]
    history, old = read_journal(rolled.run_dir), read_overview(source)
    assert history.updates.update == [1, 2]
    assert history.facts["run_id"] == rolled.run_id != old.run_id
    assert (history.notes[-1].kind, history.notes[-1].details["run_id"]) == ("rolled_back", old.run_id)
    assert read_overview(rolled.run_dir).state == "rolled_back"
    assert [path.name for path in fake_runs.root.iterdir() if path.name.startswith(".")] == []


def test_best_last_and_an_update_are_targets(fake_runs):
    source = fake_runs.run("a", losses=(0.5, 0.3, 0.4), checkpoints=(2, 4, 6))
    assert [roll_back(source, to).checkpoint.update for to in ("best", "last", "000002")] == [4, 6, 2]


def test_the_best_checkpoint_before_the_target_is_copied(fake_runs):
    source = fake_runs.run("a", losses=(0.5, 0.3, 0.4, 0.2), checkpoints=(2, 4, 6, 8))
    rolled = roll_back(source, "6")
    folder = CheckpointFolder(rolled.run_dir / "checkpoints", writing=False)
    assert [each.update for each in folder.checkpoints()] == [4, 6]
    assert rolled.notes == ["The journal does not record the settings of the command: add the settings of the old run."]
    shutil.rmtree(source / "checkpoints" / "update-000000004")
    assert "of update 4, is missing" in roll_back(source, "6").notes[0]


def test_a_deleted_best_is_named_with_the_best_remaining(fake_runs):
    source = fake_runs.run("a", losses=(0.5, 0.3, 0.4), checkpoints=(2, 6))
    with pytest.raises(CheckpointError, match=r"of update 4 \(val/loss 0.3\), is missing") as caught:
        roll_back(source, "best")
    assert caught.value.fix == "The best available checkpoint is --to 6 (val/loss 0.4)."
    assert [path.name for path in fake_runs.root.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("to", "error", "message"),
    [
        ("5", CheckpointError, "There is no complete checkpoint of update 5"),
        ("first", InvalidConfig, "--to is 'first'"),
        ("-1", InvalidConfig, "--to is '-1'"),
        ("²", InvalidConfig, "--to is '²'"),
        ("9" * 5000, InvalidConfig, "--to is"),
        ("../x", InvalidConfig, "--to is"),
    ],
)
def test_an_invalid_target_is_refused(fake_runs, to, error, message):
    source = fake_runs.run("a", checkpoints=(2, 4, 6))
    with pytest.raises(error, match=message):
        roll_back(source, to)
    assert [path.name for path in fake_runs.root.iterdir()] == ["a"]


def test_a_run_without_a_usable_checkpoint_is_refused(fake_runs):
    source = fake_runs.run("a")
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        roll_back(source, "last")
    path = fake_runs.save(source, 6)
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="content differs from what was saved") as caught:
        roll_back(source, "last")
    assert "model.safetensors does not match its checksum" in caught.value.why
    assert [path.name for path in fake_runs.root.iterdir()] == ["a"]


def test_the_journal_must_reach_the_checkpoint(fake_runs):
    source = fake_runs.run("a", losses=(0.5, 0.3))
    fake_runs.save(source, 6)
    with pytest.raises(RunFolderError, match="ends at update 4, but its checkpoint is of update 6"):
        roll_back(source, "last")
    assert [path.name for path in fake_runs.root.iterdir()] == ["a"]


def test_a_nonempty_folder_is_never_written(fake_runs, tmp_path):
    source = fake_runs.run("a", checkpoints=(2,))
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (taken, taken / "mine.txt", source, tmp_path / "link"):
        with pytest.raises(RunFolderError, match="exists and is not empty"):
            roll_back(source, "2", path)
    assert [path.name for path in taken.iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert roll_back(source, "2", tmp_path / "empty").run_dir == tmp_path / "empty"
    assert roll_back(source, "2", tmp_path / "new" / "deep").run_dir == tmp_path / "new" / "deep"


def test_two_rollbacks_in_one_second_are_two_runs(fake_runs):
    source = fake_runs.run("a", checkpoints=(2,))
    assert len({roll_back(source, "2").run_dir for _ in range(3)}) == 3


def test_a_training_run_is_only_read(fake_runs):
    source = fake_runs.run("a", checkpoints=(2, 4), end="")
    before = hashes(source)
    with RunFolder(source).lock():
        rolled = roll_back(source, "last")
    assert rolled.checkpoint.update == 4
    assert {path: digest for path, digest in hashes(source).items() if path != ".lock"} == before


def test_a_checkpoint_removed_during_the_copy_is_replaced_by_the_next(fake_runs, monkeypatch):
    source = fake_runs.run("a", checkpoints=(2, 4))
    real = shutil.copyfile

    def racing(file, to):
        if "update-000000004" in str(file) and (source / "checkpoints" / "update-000000004").exists():
            shutil.rmtree(source / "checkpoints" / "update-000000004")
        return real(file, to)

    monkeypatch.setattr(shutil, "copyfile", racing)
    rolled = roll_back(source, "last")
    assert rolled.checkpoint.update == 2
    assert sorted(path.name for path in (rolled.run_dir / "checkpoints").iterdir()) == ["update-000000002"]


@pytest.mark.parametrize("step", ["_copy_checkpoints", "_write_journal", "_publish"])
def test_an_interrupted_rollback_leaves_no_run(fake_runs, step, forker):
    """A child is killed at each step: what remains is hidden, is not a run, and is cleaned up."""
    from trueloop.app.runs.cleanup import CleanupOptions, clean_up
    from trueloop.runs.queries.index import run_names

    source = fake_runs.run("a", checkpoints=(2,))
    code = (
        "import os, sys; from pathlib import Path; from trueloop.app.runs import rollback\n"
        f"real = rollback.{step}\n"
        "def dying(*args, **kwargs):\n"
        f"    if {step!r} != '_publish': real(*args, **kwargs)\n"
        "    os._exit(9)\n"
        f"rollback.{step} = dying\n"
        f"rollback.roll_back(Path({str(source)!r}), '2')"
    )
    (fake_runs.root.parent / "dies.py").write_text(code)
    assert forker.run("dies.py", cwd=fake_runs.root.parent).returncode == 9
    assert run_names(fake_runs.root) == ["a"]
    (left,) = [path for path in fake_runs.root.iterdir() if path != source]
    assert rollback.STAGING_NAME.fullmatch(left.name)
    plan = clean_up([], fake_runs.root, CleanupOptions(unfinished=True))
    assert [(item.kind, item.path) for item in plan.items] == [("leftover", left)]
    assert not left.exists()


def test_the_command_is_that_of_the_old_run_in_the_new_folder(fake_runs):
    command = [
        "trueloop",
        "train",
        "my recipe.py:build",
        "--run-dir",
        "old",
        "--epochs",
        "9",
        "--checkpoint.mirror",
        "m://x",
    ]
    config = {"monitor": {"metric": "val/loss", "mode": "min"}, "checkpoint": {"mirror": "m://x"}}
    source = fake_runs.run("a", checkpoints=(2,), facts={"command": command, "config": config})
    rolled = roll_back(source, "2")
    assert list(rolled.command) == [
        "trueloop", "train", "my recipe.py:build", "--run-dir", str(rolled.run_dir), "--epochs", "9",
        "--checkpoint.mirror", "none",
    ]  # fmt: skip
    assert "keeps its mirror" in rolled.notes[0]


def test_a_run_from_python_says_how_to_resume_it(fake_runs):
    source = fake_runs.run("a", checkpoints=(2,), facts={"recipe": None})
    rolled = roll_back(source, "2")
    assert (rolled.command, len(rolled.notes)) == ([], 1)
    assert "call the same Trainer with this run_dir" in rolled.notes[0]


def test_a_hostile_run_is_rolled_back_in_its_own_folder(fake_runs):
    source = fake_runs.hostile()
    fake_runs.save(source, 2)
    rolled = roll_back(source, "last")
    assert rolled.run_dir.parent == fake_runs.root


# End to end

RECIPE = """
from dataclasses import dataclass
import torch
from torch import nn
from torch.utils.data import TensorDataset
from trueloop import CheckpointConfig, Parts, Recipe, TrainConfig

@dataclass(frozen=True)
class Options:
    width: int = 8

def assemble(options):
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(4, options.width), nn.Dropout(0.2), nn.Linear(options.width, 2))
    return Parts(
        model=model, objective=nn.CrossEntropyLoss(), train=TensorDataset(x[:96], y[:96]),
        val=TensorDataset(x[96:], y[96:]),
    )

def build():
    keep_all = CheckpointConfig(keep_last=100, keep_best=100, every_updates=5)
    train = TrainConfig(epochs=4, effective_batch=8, workers=0, threads=1, device="cpu", checkpoint=keep_all)
    return Recipe(name="small", summary="Small.", train=train, options=Options(), assemble=assemble)
"""


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run_dir / "final" / "model.safetensors")


@pytest.fixture(scope="module", params=["best", "last"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an uninterrupted run, trained in a new interpreter."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "recipe.py").write_text(RECIPE)
    arguments = ("--run-dir", "runs/whole", "--options.width", "6", "--checkpoint.final", request.param, "--json")
    process = subprocess.run(
        [sys.executable, "-m", "trueloop", "train", "recipe.py", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    return folder


@pytest.mark.parametrize("to", ["15", "24", "best"])  # in the middle of an epoch, at the end of one
def test_a_rolled_back_run_ends_with_the_weights_of_the_original(whole: Path, forker, to: str):
    again = f"runs/again-{to}"

    def trueloop(*arguments: str) -> str:
        process = forker.run("-m", "trueloop", *arguments, cwd=whole)
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    result = json.loads(trueloop("runs", "rollback", "whole", "--to", to, "--run-dir", again, "--json"))
    assert (result["run_dir"], result["source"], result["notes"]) == (again, "runs/whole", [])
    command = shlex.split(result["command"])
    assert command[:2] == ["trueloop", "train"]
    out = json.loads(trueloop(*command[1:], "--json"))
    assert (out["resumed_from"], out["reason"], out["update"]) == (result["update"], "finished", 48)
    expected, found = weights(whole / "runs" / "whole"), weights(whole / again)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    old, new = read_journal(whole / "runs" / "whole"), read_journal(whole / again)
    assert new.updates.loss == old.updates.loss
    assert [(e.update, e.metrics) for e in new.evaluations] == [(e.update, e.metrics) for e in old.evaluations]
    assert read_overview(whole / again).state == "finished"
