"""Test the choice of a run folder, and that a killed and resumed run is bitwise equal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from trueloop.app.training.run_folder import RunFolder
from trueloop.app.training.run_target import RunFolderChooser, create_run_folder
from trueloop.training.checkpoint.checkpoints import CheckpointFolder

IDENTITY = {"seed": 3, "options.width": 4}


def past(name: str, reason: str = "", identity: dict | None = None, update: int = 7) -> Path:
    """Create the folder of an earlier run below runs/; without a reason it was killed."""
    folder = RunFolder(Path("runs") / name)
    state = {"identity": IDENTITY if identity is None else identity}
    CheckpointFolder(folder.checkpoints).save(state, update=update, epoch=0, metrics={})
    lines = [{"event": "run_started"}, {"event": "run_ended", "reason": reason}] if reason else [{"event": "update"}]
    folder.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder.path


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return []


def choose(messages: list[str], **identity: object) -> Path:
    return RunFolderChooser("mine", messages.append)({**IDENTITY, **identity})


def test_the_first_run_gets_a_new_folder(messages: list[str]):
    path = choose(messages)
    assert path.match("runs/mine-*")
    assert path.is_dir()
    assert messages == [f"New run in {path}."]


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [("", "was killed"), ("interrupted", "was interrupted"), ("preempted", "was preempted"), ("failed", "failed")],
)
def test_an_interrupted_run_is_resumed(messages: list[str], reason: str, arguments: str):
    path = past("mine-20260101-000000", reason)
    assert choose(messages) == path
    assert messages == [f"Resuming {path}, which {arguments}, after update 7 (--fresh: a new run)."]


def test_a_torn_last_line_means_a_killed_run(messages: list[str]):
    path = past("mine-20260101-000000", "finished")
    with (path / "journal.jsonl").open("a") as journal:
        journal.write('{"event": "run_sta')
    assert choose(messages) == path


def test_fresh_always_creates_a_new_run(messages: list[str]):
    path = past("mine-20260101-000000")
    new = RunFolderChooser("mine", messages.append, fresh=True)(IDENTITY)
    assert new != path
    assert messages == [f"New run in {new}."]


@pytest.mark.parametrize("reason", ["finished", "early_stop"])
def test_a_finished_run_is_not_resumed(messages: list[str], reason: str):
    path = past("mine-20260101-000000", reason)
    new = choose(messages)
    assert new != path
    assert messages == [f"New run in {new}; the same run has finished in {path}."]


def test_the_newest_one_of_the_same_run_decides(messages: list[str]):
    past("mine-20260101-000000")
    past("mine-20260101-000001", "finished")
    past("mine-20260101-000002", identity={"seed": 4})
    assert not list(choose(messages).iterdir())
    newest = past("mine-20260101-000001-2")
    past("mine-20260101-000001-10", identity={"seed": 5})
    past("mine-too-20260102-000000")
    assert choose(messages) == newest


def test_a_different_run_is_not_resumed_and_the_difference_is_reported(messages: list[str]):
    path = past("mine-20260101-000000")
    new = choose(messages, seed=4)
    assert messages == [f"New run in {new}; {path} is unfinished, but seed: was 3, is 4."]
    again = choose(messages, seed=4, **{"options.width": 5})
    assert messages[1] == f"New run in {again}; {path} is unfinished, but seed: was 3, is 4 and more."


def test_settings_that_change_no_weight_are_ignored(messages: list[str]):
    path = past("mine-20260101-000000", identity={**IDENTITY, "workers": 2})
    assert choose(messages, workers=0) == path
    assert choose(messages, epochs=90) != path


def test_a_folder_with_a_training_process_is_not_used(messages: list[str]):
    path = past("mine-20260101-000000")
    with RunFolder(path).lock():
        new = choose(messages)
    assert messages == [f"New run in {new}; another process is training the same run in {path}."]


def test_folders_without_a_checkpoint_are_skipped(messages: list[str]):
    Path("runs/mine-20260101-000000").mkdir(parents=True)
    assert len(list(choose(messages).parent.iterdir())) == 2
    Path("runs/mine-20260101-000001").write_text("a file")
    assert "could not be read" in (choose(messages), messages[-1])[1]


def test_a_new_folder_never_exists_before(messages: list[str]):
    paths = [create_run_folder("mine") for _ in range(4)]
    assert len(set(paths)) == 4
    assert all(path.parent == Path("runs") and path.is_dir() for path in paths)


# End to end

RECIPE = """
import os, signal, time
from dataclasses import dataclass, replace
import torch
from torch import nn
from torch.utils.data import TensorDataset
from trueloop import CheckpointConfig, Parts, Recipe, TrainConfig

@dataclass(frozen=True)
class Options:
    width: int = 8

class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.002)
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(4), y

def assemble(options):
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(4, options.width), nn.Dropout(0.2), nn.Linear(options.width, 2))
    data = Slow(x, (x[:, 0] > 0).long())
    return Parts(model=model, objective=nn.CrossEntropyLoss(), train=data)

def build():
    train = TrainConfig(
        epochs=6, effective_batch=8, workers=WORKERS, threads=1, checkpoint=CheckpointConfig(every_updates=4)
    )
    return Recipe(name="slow", summary="Slow.", train=train, options=Options(), assemble=assemble)
"""


class Commands:
    """Runs `trueloop train recipe.py` in one folder."""

    def __init__(self, folder: Path, forker: Any, workers: int = 0) -> None:
        folder.mkdir()
        (folder / "recipe.py").write_text(RECIPE.replace("WORKERS", str(workers)))
        self.folder, self.forker = folder, forker

    def start(self, *arguments: str) -> Any:
        return self.forker.start("-m", "trueloop", "train", "recipe.py", *arguments, cwd=self.folder)

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        out = "".join(process.communicate(timeout=200))
        return process.returncode, out

    def run_anew(self) -> tuple[int, str]:
        """Run the command in a new interpreter."""
        command = [sys.executable, "-m", "trueloop", "train", "recipe.py"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=200
        )
        return process.returncode, process.stdout + process.stderr

    def wait_for(self, process: Any, checkpoint: str) -> None:
        """Wait until a checkpoint exists."""
        while not list(self.folder.glob(f"runs/*/checkpoints/{checkpoint}/manifest.json")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)

    def weights(self) -> dict[str, torch.Tensor]:
        (path,) = self.folder.glob("runs/*/final/model.safetensors")
        return safetensors.torch.load_file(path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, forker: Any) -> dict[str, torch.Tensor]:
    commands = Commands(tmp_path_factory.mktemp("whole") / "project", forker)
    code, out = commands.run_anew()
    assert code == 0, out
    return commands.weights()


def assert_same(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.slow(reason="trains, kills and resumes real runs")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_and_resumed_run_is_bitwise_equal(tmp_path: Path, undisturbed: dict, forker: Any, workers: int):
    commands = Commands(tmp_path / "project", forker, workers)
    process = commands.start()
    commands.wait_for(process, "update-000000036")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    code, out = commands.run()
    assert code == 0, out
    assert "which was killed, after update" in out
    assert_same(commands.weights(), undisturbed)
    code, out = commands.run("--epochs", "1")
    assert code == 0, out
    assert "New run in " in out
    assert len(list(commands.folder.glob("runs/*"))) == 2


@pytest.mark.slow(reason="trains, kills and resumes real runs")
@pytest.mark.parametrize("whole_group", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_preempted_run_is_saved_and_resumed(
    tmp_path: Path, undisturbed: dict, forker: Any, workers: int, whole_group: bool
):
    commands = Commands(tmp_path / "project", forker, workers)
    process = commands.start()
    commands.wait_for(process, "update-000000020")
    if whole_group:  # like SLURM, which also signals the loader processes
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.terminate()
    out = "".join(process.communicate(timeout=60))
    assert process.returncode == 143, out
    assert "preempted, everything is saved" in out
    assert "Resume       trueloop train recipe.py --run-dir runs/slow-" in out
    (journal,) = commands.folder.glob("runs/*/journal.jsonl")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert lines[-1]["reason"] == "preempted"
    stopped = [line for line in lines if line["event"] == "notice" and line["kind"] == "preempted"]
    assert [line["update"] for line in stopped] == [lines[-1]["update"]]
    code, out = commands.run()
    assert code == 0, out
    assert f"which was preempted, after update {lines[-1]['update']}" in out
    assert_same(commands.weights(), undisturbed)
