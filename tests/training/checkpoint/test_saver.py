"""Background saving writes the current state, in order and completely, and reports every error."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trueloop.core.errors import CheckpointError
from trueloop.core.protocols import CheckpointSaved, Notice
from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.checkpoint.durable_files import FileStamp, write_synced
from trueloop.training.checkpoint.mirror import MirrorError
from trueloop.training.checkpoint.saver import Saver
from trueloop.training.optimizers.adamw import LeanAdamW
from trueloop.training.optimizers.weight_average import WeightAverage
from trueloop.training.seeding import capture_generators


class SlowFolder(CheckpointFolder):
    """A folder that starts to write when its event is set."""

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(root, **settings)
        self.go, self.threads = threading.Event(), []

    def write(self, parts: Any, **about: Any) -> Any:
        assert self.go.wait(30)
        self.threads.append(threading.current_thread())
        return super().write(parts, **about)


def save(saver: Saver, update: int, state: Any = None, **metrics: float) -> None:
    saver.save(state or {"model": {"w": torch.full((5,), update)}}, update=update, epoch=1, metrics=metrics)


def is_same(one: Any, other: Any) -> bool:
    """Bitwise, with types and order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool((one == other).all()) if hasattr(one, "all") else one == other


# The saved state ------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.conv = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = self.conv(torch.rand(2, 2, 5, 5)).mean()
        return self.head(self.norm(self.embed(x))) * torch.rand(()) + image


def changing_state() -> tuple[dict[str, Any], Any]:
    """A state as a run has it, and a function that moves all of it."""
    torch.manual_seed(0)
    model = Tied()
    optimizer = LeanAdamW([{"params": [p]} for p in model.parameters()])
    average = WeightAverage(model, 0.5)

    def step() -> dict[str, Any]:
        optimizer.zero_grad()
        model(torch.randint(7, (6,))).square().mean().backward()
        optimizer.step()
        average.update()
        return {
            "model": model.state_dict(), "optimizer": optimizer.state_dict(), "average": average.state_dict(),
            "generators": capture_generators(), "position": {"history": [model.embed.weight[0, 0].item()]},
        }  # fmt: skip

    return step(), step


def test_the_saved_state_is_that_of_the_call_of_save(tmp_path: Path):
    state, step = changing_state()
    CheckpointFolder(tmp_path / "then").save(state, update=1, epoch=0, metrics={})
    expected = CheckpointFolder(tmp_path / "then").load_latest()[1]  # type: ignore[index]

    folder = SlowFolder(tmp_path / "background")
    saver = Saver(folder)
    save(saver, 1, state)
    for _ in range(3):
        state = step()
    folder.go.set()
    saver.close()
    ((result, loaded),) = [CheckpointFolder(tmp_path / "background").load_latest()]
    assert result.update == 1
    assert is_same(loaded, expected)
    assert loaded["model"]["head.weight"] is loaded["model"]["embed.weight"]
    assert not torch.equal(loaded["model"]["embed.weight"], state["model"]["embed.weight"])
    for part in ("model.safetensors", "optimizer.safetensors", "average.safetensors", "generators.safetensors"):
        assert (result.path / part).read_bytes() == (tmp_path / "then" / result.path.name / part).read_bytes()


def test_blocking_writes_the_same_bytes_on_the_training_thread(tmp_path: Path):
    state, _ = changing_state()
    for blocking in (False, True):
        folder = SlowFolder(tmp_path / str(blocking))
        folder.go.set()
        saver = Saver(folder, blocking=blocking)
        save(saver, 1, state)
        if blocking:
            (event,) = saver.drain_events()
            assert event.blocked_s == event.seconds  # type: ignore[union-attr]
        saver.close()
        assert (folder.threads == [threading.current_thread()]) == blocking
    files = [sorted((tmp_path / str(b) / "update-000000001").iterdir()) for b in (False, True)]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


def test_metrics_and_lists_are_copied(tmp_path: Path):
    folder = SlowFolder(tmp_path)
    saver, metrics, history = Saver(folder), {"val/loss": 1.0}, [1]
    saver.save({"position": {"history": history}}, update=1, epoch=0, metrics=metrics)
    metrics["val/loss"] = 2.0
    history.append(2)
    folder.go.set()
    saver.close()
    result, loaded = CheckpointFolder(tmp_path).load_latest()  # type: ignore[misc]
    assert (result.metrics, loaded["position"]["history"]) == ({"val/loss": 1.0}, [1])


# Order and events ----------------------------------------------------------------------------------------------


def test_complete_checkpoints_are_reported_once_and_in_order(tmp_path: Path):
    folder = SlowFolder(tmp_path, keep_last=9)
    saver = Saver(folder)
    save(saver, 1, **{"val/loss": 0.5})
    assert saver.drain_events() == []
    assert os.listdir(tmp_path) == []
    folder.go.set()
    save(saver, 2)
    saver.wait()
    save(saver, 3)
    saver.close()
    events = saver.drain_events()
    assert [event.update for event in events] == [1, 2, 3]
    assert all(isinstance(event, CheckpointSaved) for event in events)
    first = events[0]
    assert (first.epoch, first.path, first.metrics) == (1, str(tmp_path / "update-000000001"), {"val/loss": 0.5})  # type: ignore[union-attr]
    assert all(0 < event.blocked_s <= event.seconds for event in events)  # type: ignore[union-attr]
    assert saver.drain_events() == []
    saver.close()


def test_a_save_waits_for_the_previous_one(tmp_path: Path):
    folder = SlowFolder(tmp_path, keep_last=9)
    saver = Saver(folder)
    save(saver, 1)
    second = threading.Thread(target=save, args=(saver, 2))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    folder.go.set()
    second.join()
    saver.close()
    assert [checkpoint.update for checkpoint in folder.checkpoints()] == [1, 2]
    assert len(set(folder.threads)) == 1


# Errors -----------------------------------------------------------------------------------------------------------


class FullFolder(CheckpointFolder):
    full = True

    def write(self, parts: Any, **about: Any) -> Any:
        if self.full:
            raise CheckpointError("The disk is full.")
        return super().write(parts, **about)


@pytest.mark.parametrize("at", ["save", "wait", "close"])
def test_a_write_error_is_raised_once_on_the_training_thread(tmp_path: Path, at: str):
    folder = FullFolder(tmp_path)
    saver = Saver(folder)
    save(saver, 1)
    with pytest.raises(CheckpointError, match="The disk is full"):
        save(saver, 2) if at == "save" else getattr(saver, at)()
    folder.full = False
    if at != "close":
        save(saver, 3)
    saver.close()
    assert [event.update for event in saver.drain_events()] == ([] if at == "close" else [3])


def test_an_unexpected_error_is_not_swallowed(tmp_path: Path):
    class Broken(CheckpointFolder):
        def write(self, parts: Any, **about: Any) -> Any:
            raise ZeroDivisionError

    saver = Saver(Broken(tmp_path))
    save(saver, 1)
    with pytest.raises(ZeroDivisionError):
        saver.close()


def test_a_state_that_is_not_data_is_refused_immediately(tmp_path: Path):
    saver = Saver(CheckpointFolder(tmp_path))
    with pytest.raises(CheckpointError, match=r"^model\.hook is a function"):
        save(saver, 1, {"model": {"hook": lambda: 0}})
    saver.close()
    assert os.listdir(tmp_path) == []


# Memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("available", "blocks"), [(None, False), (160, False), (159, True)])
def test_if_a_copy_does_not_fit_training_waits_and_reports_it_once(tmp_path: Path, available: int | None, blocks: bool):
    saver = Saver(CheckpointFolder(tmp_path), available=lambda: available)
    weights = torch.zeros(10)
    for update in (1, 2):
        save(saver, update, {"model": {"w": weights, "more": [(weights,)]}})  # 80 bytes, counted as if copied twice
        if blocks:
            assert (tmp_path / f"update-{update:09d}").exists()
    saver.close()
    events = saver.drain_events()
    notes = [event for event in events if isinstance(event, Notice)]
    assert [note.kind for note in notes] == ["save_blocking"] * blocks
    saved = [event for event in events if isinstance(event, CheckpointSaved)]
    assert [event.blocked_s == event.seconds for event in saved] == [blocks, blocks]


# Mirror -----------------------------------------------------------------------------------------------------------


class Storage:
    """A mirror double that records its calls."""

    url = "memory://x"

    def __init__(self) -> None:
        self.down: Exception | None = None
        self.go = threading.Event()
        self.go.set()
        self.synced: list[list[int]] = []

    def sync(self, kept: Any) -> None:
        assert self.go.wait(30)
        if self.down:
            raise self.down
        self.synced.append([checkpoint.update for checkpoint in kept])

    def load_newer(self, than: int, folder: Any) -> Any:
        if self.down:
            raise self.down
        return None, ["one was damaged"]


def test_every_complete_checkpoint_is_mirrored(tmp_path: Path):
    storage = Storage()
    saver = Saver(CheckpointFolder(tmp_path, keep_last=2), mirror=storage)  # type: ignore[arg-type]
    for update in (1, 2, 3):
        save(saver, update)
        saver.wait()
    saver.close()
    assert storage.synced == [[1], [1, 2], [2, 3]]


def test_a_slow_mirror_delays_only_close_and_gets_each_checkpoint_once(tmp_path: Path):
    storage = Storage()
    storage.go.clear()
    saver = Saver(CheckpointFolder(tmp_path, keep_last=9), mirror=storage)  # type: ignore[arg-type]
    for update in range(1, 6):
        save(saver, update)
    saver._finish_writing()
    assert len(CheckpointFolder(tmp_path, writing=False).checkpoints()) == 5
    storage.go.set()
    saver.close()
    assert len(storage.synced) <= 2
    assert storage.synced[-1] == [1, 2, 3, 4, 5]


def test_an_unreachable_mirror_is_a_note_and_training_continues(tmp_path: Path):
    storage = Storage()
    saver = Saver(CheckpointFolder(tmp_path), mirror=storage)  # type: ignore[arg-type]

    def kinds() -> list[str]:
        return [event.kind for event in saver.drain_events() if isinstance(event, Notice)]

    reported = []
    for update, down in enumerate(
        [None, MirrorError("No route."), MirrorError("No route."), None, MirrorError("Gone.")]
    ):
        storage.down = down
        save(saver, update)
        saver.wait()
        reported.append(kinds())
    assert reported == [[], ["mirror_down"], [], ["mirror_up"], ["mirror_down"]]
    assert storage.synced == [[0], [2, 3]]
    saver.close()
    saver.close()
    assert kinds() == ["mirror_behind"]


def test_an_unexpected_error_in_the_mirror_is_raised(tmp_path: Path):
    storage = Storage()
    saver = Saver(CheckpointFolder(tmp_path), mirror=storage)  # type: ignore[arg-type]
    storage.down = ZeroDivisionError()
    save(saver, 1)
    with pytest.raises(ZeroDivisionError):
        saver.close()


def test_a_run_resumes_but_does_not_start_without_its_mirror(tmp_path: Path):
    storage = Storage()
    storage.down = MirrorError("No route.")
    with pytest.raises(MirrorError, match="No route"):
        Saver(CheckpointFolder(tmp_path), mirror=storage).load_latest()  # type: ignore[arg-type]
    CheckpointFolder(tmp_path).save({"model": {}}, update=4, epoch=0, metrics={})
    saver = Saver(CheckpointFolder(tmp_path), mirror=storage)  # type: ignore[arg-type]
    assert saver.load_latest()[0].update == 4  # type: ignore[index]
    assert saver.problems() == ["No route."]
    storage.down = None
    assert saver.load_latest()[0].update == 4  # type: ignore[index]
    assert saver.problems() == ["one was damaged"]


def test_extra_files_are_complete_when_save_returns(tmp_path: Path):
    folder, threads = CheckpointFolder(tmp_path), list[threading.Thread]()

    def write_extra(into: Path) -> dict[str, FileStamp]:
        threads.append(threading.current_thread())
        return {"shard-1.safetensors": write_synced(into / "shard-1.safetensors", [b"part"])}

    saver = Saver(folder)
    saver.save({"model": {}}, update=3, epoch=1, metrics={}, write_extra=write_extra)
    assert [checkpoint.update for checkpoint in folder.checkpoints()] == [3]
    assert (tmp_path / "update-000000003" / "shard-1.safetensors").read_bytes() == b"part"
    assert threads == [threading.main_thread()]
    saver.close()
