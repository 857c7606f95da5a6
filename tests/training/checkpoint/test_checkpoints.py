from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.training.checkpoint.checkpoints import Checkpoint, CheckpointFolder, NewerSchemaError
from trueloop.training.checkpoint.manifest import seal

FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]


def state(value: float, size: int = 3) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((size,), value)},
        "optimizer": {"state": {0: {"exp_avg": torch.full((size,), value)}}},
        "position": {"value": value},
    }


def read_value(loaded: dict[str, Any]) -> float:
    values = {*loaded["model"]["weight"].tolist(), *loaded["optimizer"]["state"][0]["exp_avg"].tolist()}
    values.add(loaded["position"]["value"])
    assert len(values) == 1
    return values.pop()


def save(folder: CheckpointFolder, update: int, loss: float | None = None, size: int = 3) -> Checkpoint:
    metrics = {} if loss is None else {"val/loss": loss}
    return folder.save(state(update, size), update=update, epoch=update // 10, metrics=metrics)


def names(root: Path) -> list[str]:
    return sorted(os.listdir(root))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


# Saving and loading --------------------------------------------------------------------------------


def test_an_empty_folder(tmp_path: Path):
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    assert (tmp_path / "run" / "checkpoints").is_dir()
    assert (folder.checkpoints(), folder.latest(), folder.best(), folder.load_latest()) == ([], None, None, None)
    assert folder.problems() == []


def test_reading_creates_no_folder(tmp_path: Path):
    assert CheckpointFolder(tmp_path / "absent", writing=False).checkpoints() == []
    assert names(tmp_path) == []


def test_a_saved_checkpoint_can_be_listed_and_loaded(tmp_path: Path):
    folder = CheckpointFolder(tmp_path)
    saved = save(folder, 123, 0.5)
    assert saved == Checkpoint(path=tmp_path / "update-000000123", update=123, epoch=12, metrics={"val/loss": 0.5})
    assert names(tmp_path) == ["update-000000123"]
    assert names(saved.path) == sorted(FILES)
    for reader in (folder, CheckpointFolder(tmp_path), CheckpointFolder(tmp_path, writing=False)):
        assert reader.checkpoints() == [saved]
        assert reader.latest() == reader.best() == saved
        assert read_value(reader.load(saved)) == 123


def test_updates_with_more_than_nine_digits_are_sorted(tmp_path: Path):
    folder = CheckpointFolder(tmp_path, keep_last=9)
    for update in (10**9, 5, 999_999_999, 10**12):
        save(folder, update)
    assert [checkpoint.update for checkpoint in folder.checkpoints()] == [5, 999_999_999, 10**9, 10**12]


def test_training_resumes_bitwise_from_a_checkpoint(tmp_path: Path):
    def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, updates: range) -> None:
        for update in updates:
            optimizer.zero_grad()
            model(torch.randn(6, 4, generator=torch.Generator().manual_seed(update))).square().mean().backward()
            optimizer.step()

    model, optimizer = fresh()
    train(model, optimizer, range(5))
    folder = CheckpointFolder(tmp_path)
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    folder.save(parts, update=5, epoch=0, metrics={})
    train(model, optimizer, range(5, 9))

    other, resumed = fresh()
    latest = CheckpointFolder(tmp_path).load_latest()
    assert latest is not None
    other.load_state_dict(latest[1]["model"])
    resumed.load_state_dict(latest[1]["optimizer"])
    train(other, resumed, range(5, 9))
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


def test_best_and_latest(tmp_path: Path):
    by_min = CheckpointFolder(tmp_path, keep_last=9)
    losses = {1: 0.5, 2: 0.25, 3: math.nan, 4: 0.25, 5: None, 6: 0.75, 7: math.inf}
    for update, loss in losses.items():
        save(by_min, update, loss)
    by_max = CheckpointFolder(tmp_path, mode="max")
    other = CheckpointFolder(tmp_path, metric="val/accuracy")
    assert [folder.latest().update for folder in (by_min, by_max, other)] == [7, 7, 7]  # type: ignore[union-attr]
    assert by_min.best().update == 2  # type: ignore[union-attr]  # the older one in a tie
    assert by_max.best().update == 7  # type: ignore[union-attr]
    assert other.best() is None


# Retention ----------------------------------------------------------------------------------------------------

losses = st.one_of(st.none(), st.just(math.nan), st.integers(0, 3).map(float))


@given(
    st.lists(st.tuples(st.integers(0, 6), losses), min_size=1, max_size=8),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from(["min", "max"]),
)
@settings(max_examples=25, deadline=None)
def test_only_the_newest_and_best_checkpoints_are_kept(
    tmp_path_factory: pytest.TempPathFactory, saves: list[Any], keep_last: int, keep_best: int, mode: Any
):
    folder = CheckpointFolder(tmp_path_factory.mktemp("c"), keep_last=keep_last, keep_best=keep_best, mode=mode)
    expected: dict[int, float | None] = {}
    for update, loss in saves:
        save(folder, update, loss)
        expected[update] = loss
        newest = sorted(expected)[-max(1, keep_last) :]
        ranked = [
            other for other in sorted(expected) if expected[other] is not None and not math.isnan(expected[other])
        ]
        ranked.sort(key=lambda other: expected[other] if mode == "min" else -expected[other])
        expected = {other: expected[other] for other in expected if other in {update, *newest, *ranked[:keep_best]}}
        assert [checkpoint.update for checkpoint in folder.checkpoints()] == sorted(expected)
        assert len(names(folder._root)) == len(expected)


def test_the_checkpoint_just_saved_is_kept_even_if_another_is_newer(tmp_path: Path):
    folder = CheckpointFolder(tmp_path, keep_last=1)
    save(folder, 20)
    save(folder, 10)
    assert names(tmp_path) == ["update-000000010", "update-000000020"]


def test_saving_an_update_again_replaces_it(tmp_path: Path):
    folder = CheckpointFolder(tmp_path)
    for value in (1, 2, 3):
        folder.save(state(value), update=7, epoch=0, metrics={"val/loss": value})
    assert names(tmp_path) == ["update-000000007-3"]
    assert [checkpoint.metrics["val/loss"] for checkpoint in folder.checkpoints()] == [3]
    checkpoint, loaded = CheckpointFolder(tmp_path).load_latest()  # type: ignore[misc]
    assert (checkpoint.update, read_value(loaded)) == (7, 3)


def test_foreign_files_are_never_removed(tmp_path: Path):
    unrelated_names = [
        ".hidden",
        "notes.txt",
        "update-5",
        "update-000000001.bak",
        ".saving-mine",
        ".saving-update-000000001-xyz",
    ]
    for name in unrelated_names:
        (tmp_path / name).mkdir()
    folder = CheckpointFolder(tmp_path, keep_last=1, keep_best=0)
    for update in (1, 2, 3):
        save(folder, update)
    assert names(tmp_path) == sorted([*unrelated_names, "update-000000003"])
    assert folder.problems() == []


def test_leftovers_of_a_killed_save_are_removed_only_when_writing(tmp_path: Path):
    leftovers = [".saving-update-000000003-0123abcd", ".removing-update-000000003-2-0123abcd"]
    for name in leftovers:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"x")
    CheckpointFolder(tmp_path, writing=False)
    assert names(tmp_path) == sorted(leftovers)
    CheckpointFolder(tmp_path)
    assert names(tmp_path) == []


# Damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def three_checkpoints(tmp_path: Path) -> CheckpointFolder:
    folder = CheckpointFolder(tmp_path, keep_last=3)
    for update in (1, 2, 3):
        save(folder, update, 1 / update)
    return folder


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["delete", "truncate", "flip"])
def test_a_damaged_checkpoint_is_reported_and_skipped(
    tmp_path: Path, three_checkpoints: CheckpointFolder, name: str, damage: str
):
    path = tmp_path / "update-000000003" / name
    if damage == "delete":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        flip(path, path.stat().st_size // 2)
    checkpoint, loaded = three_checkpoints.load_latest()  # type: ignore[misc]
    assert (checkpoint.update, read_value(loaded)) == (2, 2)
    assert three_checkpoints.latest() == three_checkpoints.best() == checkpoint
    (problem,) = three_checkpoints.problems()
    assert "update-000000003" in problem
    assert name in problem or damage == "flip"


def test_damage_found_on_loading_is_remembered(tmp_path: Path, three_checkpoints: CheckpointFolder):
    flip(tmp_path / "update-000000003" / "model.safetensors", -1)
    newest = three_checkpoints.latest()
    assert newest is not None
    assert newest.update == 3  # the size is right: listing does not read the tensors
    with pytest.raises(CheckpointError, match=r"model\.safetensors does not match its checksum"):
        three_checkpoints.load(newest)
    assert [checkpoint.update for checkpoint in three_checkpoints.checkpoints()] == [1, 2]
    assert len(three_checkpoints.problems()) == 1


def test_if_all_are_damaged_none_is_loaded_and_all_are_reported(tmp_path: Path, three_checkpoints: CheckpointFolder):
    for update in (1, 2, 3):
        flip(tmp_path / f"update-00000000{update}" / "model.safetensors", -1)
    assert three_checkpoints.load_latest() is None
    assert len(three_checkpoints.problems()) == 3


def test_a_damaged_update_is_saved_again_under_a_new_name(tmp_path: Path, three_checkpoints: CheckpointFolder):
    flip(tmp_path / "update-000000003" / "state.json", 5)
    assert three_checkpoints.load_latest()[0].update == 2  # type: ignore[index]
    save(three_checkpoints, 3)
    assert names(tmp_path)[-2:] == ["update-000000003", "update-000000003-2"]
    assert read_value(CheckpointFolder(tmp_path).load_latest()[1]) == 3  # type: ignore[index]


def test_folders_that_are_not_checkpoints_are_reported(tmp_path: Path, three_checkpoints: CheckpointFolder):
    (tmp_path / "update-000000009").mkdir()
    (tmp_path / "update-000000008").write_text("a file")
    shutil.copytree(tmp_path / "update-000000002", tmp_path / "update-000000007")
    assert [checkpoint.update for checkpoint in three_checkpoints.checkpoints()] == [1, 2, 3]
    problems = "\n".join(three_checkpoints.problems())
    assert "update-000000009 is damaged: there is no manifest.json" in problems
    assert "update-000000008 " in problems
    assert "it is the checkpoint of update 2 under another name" in problems
    assert len(three_checkpoints.problems()) == 3


def test_a_newer_schema_raises_an_error_instead_of_being_skipped(tmp_path: Path, three_checkpoints: CheckpointFolder):
    path = tmp_path / "update-000000003" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["sha256"]
    newest = three_checkpoints.latest()
    path.write_bytes(seal(manifest | {"schema": 99}))
    assert newest is not None
    for call in (
        three_checkpoints.checkpoints,
        three_checkpoints.latest,
        three_checkpoints.best,
        three_checkpoints.load_latest,
        lambda: three_checkpoints.load(newest),
    ):
        with pytest.raises(NewerSchemaError, match="schema 99"):
            call()


# Crashes ---------------------------------------------------------------------------------------------------------


def crash(*arguments: Any) -> dict[str, int]:
    script = Path(__file__).with_name("crashing_saves.py")
    command = [sys.executable, script, *map(str, arguments)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def test_sigkill_at_random_instants_loses_nothing(tmp_path: Path):
    result = crash("killed_at_random", tmp_path / "run", 40, 12345)
    assert result["killed"] == 40


@pytest.mark.parametrize("same_update", [0, 1])
def test_a_crash_at_any_file_operation_loses_nothing(tmp_path: Path, same_update: int):
    result = crash("killed_at_every_touch", tmp_path / "run", same_update)
    assert result["touches"] >= 20


def test_all_files_are_synced_before_the_folder_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = CheckpointFolder(tmp_path)
    completed: list[str] = []
    sync, rename = os.fsync, os.rename

    def recording_sync(handle: int) -> None:
        completed.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        sync(handle)

    def recording_rename(before: Any, after: Any, **rest: Any) -> None:
        completed.append("rename")
        rename(before, after, **rest)

    monkeypatch.setattr(os, "fsync", recording_sync)
    monkeypatch.setattr(os, "rename", recording_rename)
    save(folder, 1)
    hidden = completed[4]
    assert hidden.startswith(".saving-update-000000001-")
    assert completed == [*FILES, hidden, "rename", tmp_path.name]


def test_an_interrupted_save_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)

    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(folder, 2)
    assert names(tmp_path) == ["update-000000001"]


# Refusals --------------------------------------------------------------------------------------------------------


def test_a_state_that_is_not_data_is_refused_before_anything_is_written(tmp_path: Path):
    folder = CheckpointFolder(tmp_path)
    with pytest.raises(CheckpointError, match=r"^optimizer\.state\.0\.callback is a function"):
        folder.save({"optimizer": {"state": {0: {"callback": lambda: 0}}}}, update=1, epoch=0, metrics={})
    for part in ("../model", "", "a b", "a.b"):
        with pytest.raises(CheckpointError, match="is not a valid file name"):
            folder.save({part: 1}, update=1, epoch=0, metrics={})
    assert names(tmp_path) == []


@pytest.mark.parametrize("settings_", [{"keep_last": -1}, {"keep_best": -1}, {"mode": "least"}])
def test_invalid_settings_are_refused(tmp_path: Path, settings_: dict[str, Any]):
    with pytest.raises(InvalidConfig, match="keep_last"):
        CheckpointFolder(tmp_path, **settings_)


def test_a_file_at_the_path_of_the_folder_is_an_error(tmp_path: Path):
    (tmp_path / "run").write_text("mine")
    for root in (tmp_path / "run", tmp_path / "run" / "checkpoints"):
        with pytest.raises(CheckpointError, match="could not be written: (File exists|Not a directory)"):
            CheckpointFolder(root)
    with pytest.raises(CheckpointError, match="could not be read: Not a directory"):
        CheckpointFolder(tmp_path / "run", writing=False).checkpoints()
    assert (tmp_path / "run").read_text() == "mine"


def mounted(*arguments: str) -> bool:
    return (
        shutil.which("mount") is not None
        and not subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if not mounted("-t", "tmpfs", "-o", "size=1m", "none", str(disk)):
        pytest.skip("mounting is not permitted here; the file size limit below replaces it")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_loses_only_the_new_checkpoint(small_disk: Path):
    folder = CheckpointFolder(small_disk / "run", keep_last=1)
    save(folder, 1, size=5000)
    outcomes: list[bool] = []
    for free in range(0, 120_000, 4096):
        stat = os.statvfs(small_disk)
        filler = small_disk / "filler"
        filler.write_bytes(b"\0" * (stat.f_bavail * stat.f_frsize - free))
        try:
            save(folder, 2, size=5000)
            outcomes.append(True)
        except CheckpointError as error:
            outcomes.append(False)
            assert "No space left on device" in error.what
            assert "update-000000002" in error.what
            assert "Free space" in error.fix
        remaining = 2 if outcomes[-1] else 1
        assert names(small_disk / "run") == [f"update-00000000{remaining}"]
        assert read_value(folder.load(folder.latest())) == remaining  # type: ignore[arg-type]
        if outcomes[-1]:
            break
        filler.unlink()
    assert outcomes.count(False) >= 5
    assert outcomes[-1]


def test_a_write_refused_in_the_middle_loses_only_the_new_checkpoint(tmp_path: Path):
    script = """if True:
        import resource, signal, sys, torch
        from trueloop.training.checkpoint.checkpoints import CheckpointFolder
        from trueloop.core.errors import CheckpointError
        folder = CheckpointFolder(sys.argv[1])
        folder.save({"model": torch.zeros(10)}, update=1, epoch=0, metrics={})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        try:
            folder.save({"first": torch.zeros(10), "model": torch.zeros(10_000)}, update=2, epoch=0, metrics={})
        except CheckpointError as error:
            print(error)
    """
    completed = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert "update-000000002 could not be written: File too large." in completed.stdout
    assert "Free space" in completed.stdout
    assert names(tmp_path) == ["update-000000001"]
    assert CheckpointFolder(tmp_path).load_latest()[1]["model"].tolist() == [0] * 10  # type: ignore[index]


def test_a_read_only_folder_can_be_read_and_its_error_has_a_fix(tmp_path: Path):
    root = tmp_path / "run"
    folder = CheckpointFolder(root)
    save(folder, 1)
    if os.geteuid() != 0:
        root.chmod(0o500)
        restore = lambda: root.chmod(0o700)  # noqa: E731
    elif mounted("--bind", str(root), str(root)) and mounted("-o", "remount,bind,ro", str(root)):
        restore = lambda: subprocess.run(["umount", root], check=True)  # noqa: E731
    else:
        pytest.skip("root ignores permissions, and mounting is not permitted here")
    try:
        with pytest.raises(CheckpointError, match="(Read-only file system|Permission denied)") as caught:
            save(folder, 2)
        assert f"Allow writing to {root}" in caught.value.fix
        assert read_value(CheckpointFolder(root).load_latest()[1]) == 1  # type: ignore[index]
    finally:
        restore()
    assert names(root) == ["update-000000001"]


def test_an_old_checkpoint_that_cannot_be_removed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = CheckpointFolder(tmp_path, keep_last=1)
    save(folder, 1)
    rename = Path.rename

    def refuse_removal(path: Path, target: Path) -> Path:
        if ".removing" in target.name:
            raise PermissionError(13, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_removal)
    with pytest.raises(CheckpointError, match="update-000000001 could not be removed: Permission denied"):
        save(folder, 2)
    assert [checkpoint.update for checkpoint in folder.checkpoints()] == [1, 2]


def test_a_checkpoint_with_an_unreadable_file_is_skipped_and_reported(
    tmp_path: Path, three_checkpoints: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
):
    read_bytes = Path.read_bytes

    def failing_read(path: Path) -> bytes:
        if path == tmp_path / "update-000000003" / "state.json":
            raise OSError(5, "Input/output error", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", failing_read)
    assert three_checkpoints.load_latest()[0].update == 2  # type: ignore[index]
    assert "could not be read: Input/output error" in three_checkpoints.problems()[0]


def test_remove_deletes_one_checkpoint_and_leftovers_are_listed(tmp_path: Path):
    folder = CheckpointFolder(tmp_path, keep_last=9)
    saved = [folder.save({"model": {"x": 1}}, update=update, epoch=0, metrics={}) for update in (1, 2, 3)]
    folder.remove(saved[0])
    assert [each.update for each in folder.checkpoints()] == [2, 3]
    assert folder.leftovers() == []
    remaining = tmp_path / ".removing-update-000000001-0123abcd"
    remaining.mkdir()
    assert folder.leftovers() == [remaining]


def test_checkpoints_can_be_listed_without_torch(tmp_path: Path):
    CheckpointFolder(tmp_path).save({"model": {"x": torch.ones(3)}}, update=1, epoch=0, metrics={"val/loss": math.nan})
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from pathlib import Path; from trueloop.training.checkpoint.checkpoints import CheckpointFolder\n"
        "from trueloop.training.checkpoint.manifest import verify\n"
        f"(checkpoint,) = CheckpointFolder(Path({str(tmp_path)!r}), writing=False).checkpoints()\n"
        "print(verify(checkpoint.path).update, checkpoint.metrics)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (completed.stdout, completed.stderr) == ("1 {'val/loss': nan}\n", "")


def test_a_visibility_token_exists_only_within_its_context(tmp_path: Path):
    folder = CheckpointFolder(tmp_path)
    with folder.visibility_token() as token:
        assert token.is_dir()
        assert token.is_absolute()
        assert folder.leftovers() == [tmp_path / token.name]
        assert folder.checkpoints() == []
        assert folder.problems() == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointError, match="could not be written"), folder.visibility_token() as token:
        token.rmdir()
