"""Checkpoints in object storage: each is complete or absent, even after interrupted transfers."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from trueloop.core.errors import CheckpointError, InvalidConfig, MissingExtra
from trueloop.core.protocols import Notice
from trueloop.training.checkpoint.checkpoints import CheckpointFolder, NewerSchemaError
from trueloop.training.checkpoint.manifest import seal
from trueloop.training.checkpoint.mirror import Mirror, MirrorError
from trueloop.training.checkpoint.saver import Saver

FILES = ["manifest.json", "model.safetensors", "state.json"]


class FailingStorage(MemoryFileSystem):
    """A storage whose connection fails after a number of writes."""

    protocol = "frail"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    writes_left = 10**9
    done: list[str] = []  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return MemoryFileSystem._strip_protocol(str(path).replace("frail://", "memory://"))

    def _reached(self, what: str, path: str) -> None:
        if type(self).writes_left <= 0:
            raise ConnectionResetError("the connection was reset")
        type(self).writes_left -= 1
        self.done.append(f"{what} {'/'.join(path.split('/')[-2:])}")

    def put_file(self, lpath: Any, rpath: Any, **rest: Any) -> Any:
        self._reached("put", rpath)
        return super().put_file(lpath, rpath, **rest)

    def rm_file(self, path: str) -> None:
        self._reached("rm", path)
        super().rm_file(path)

    def ls(self, path: str, detail: bool = True, **rest: Any) -> Any:
        if type(self).writes_left <= 0:
            raise ConnectionResetError("the connection was reset")
        return super().ls(path, detail=detail, **rest)


fsspec.register_implementation("frail", FailingStorage, clobber=True)


@pytest.fixture(autouse=True)
def empty_storage() -> Iterator[None]:
    for kind in (MemoryFileSystem, FailingStorage):
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]
    FailingStorage.done.clear()
    FailingStorage.writes_left = 10**9
    yield
    FailingStorage.writes_left = 10**9


@pytest.fixture(params=["memory", "file", "frail"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/far/away/run" if request.param == "file" else f"{request.param}://bucket/run"


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "near", keep_last=3)


def save(folder: CheckpointFolder, *updates: int, value: float | None = None) -> None:
    for update in updates:
        state = {"model": {"w": torch.full((4,), update if value is None else value)}, "position": {"update": update}}
        folder.save(state, update=update, epoch=0, metrics={"val/loss": -update})


def stored(url: str) -> dict[str, list[str]]:
    """Return the files of every checkpoint in the storage."""
    fs, path = fsspec.url_to_fs(url)
    result: dict[str, list[str]] = {}
    for file in fs.find(path):
        *_, kind, name, file_name = file.split("/")
        assert kind == "checkpoints"
        result.setdefault(name, []).append(file_name)
    return result


def change(url: str, file: str, content: bytes) -> None:
    fs, path = fsspec.url_to_fs(url)
    fs.pipe_file(f"{path}/checkpoints/{file}", content)


def other_machine(tmp_path: Path) -> CheckpointFolder:
    """Return the empty checkpoint folder of another machine."""
    shutil.rmtree(tmp_path / "other", ignore_errors=True)
    return CheckpointFolder(tmp_path / "other")


def test_the_mirror_has_exactly_the_local_checkpoints(url: str, folder: CheckpointFolder):
    mirror = Mirror(url)
    for update in range(1, 6):
        save(folder, update)
        mirror.sync(folder.checkpoints())
        saved = [checkpoint.path.name for checkpoint in folder.checkpoints()]
        assert stored(url) == dict.fromkeys(saved, FILES)
    mirror.clear()
    assert stored(url) == {}
    mirror.clear()


def test_the_newest_checkpoint_is_downloaded_bitwise(url: str, folder: CheckpointFolder, tmp_path: Path):
    save(folder, 1, 20, 3)
    Mirror(url).sync(folder.checkpoints())
    other = other_machine(tmp_path)
    result, problems = Mirror(url).load_newer(-1, other)
    assert result is not None
    checkpoint, state = result
    assert (checkpoint.update, state["position"], problems) == (20, {"update": 20}, [])
    assert checkpoint == other.latest()
    near = folder.latest().path  # type: ignore[union-attr]
    assert [(near / name).read_bytes() for name in FILES] == [(checkpoint.path / name).read_bytes() for name in FILES]
    assert os.listdir(tmp_path / "other") == ["update-000000020"]


@pytest.mark.parametrize(("than", "result"), [(-1, True), (2, True), (3, False), (9, False)])
def test_only_a_newer_checkpoint_is_downloaded(folder: CheckpointFolder, tmp_path: Path, than: int, result: bool):
    save(folder, 3)
    Mirror("memory://run").sync(folder.checkpoints())
    assert (Mirror("memory://run").load_newer(than, other_machine(tmp_path))[0] is not None) == result


def test_an_empty_mirror_has_nothing(url: str, tmp_path: Path):
    assert Mirror(url).load_newer(-1, other_machine(tmp_path)) == (None, [])


# Interrupted uploads and tampering -------------------------------------------------------------------------------


def test_an_interrupted_upload_is_ignored_and_completed_by_the_next(folder: CheckpointFolder, tmp_path: Path):
    save(folder, 1)
    url = "frail://run"
    Mirror(url).sync(folder.checkpoints())
    save(folder, 2)
    for writes in range(len(FILES)):
        FailingStorage.writes_left = writes
        with pytest.raises(MirrorError, match="frail://run could not be written: ConnectionResetError: the connection"):
            Mirror(url).sync(folder.checkpoints())
        FailingStorage.writes_left = 10**9
        result, problems = Mirror(url).load_newer(-1, other_machine(tmp_path))
        assert result is not None
        assert (result[0].update, problems) == (1, [])
    Mirror(url).sync(folder.checkpoints())
    assert Mirror(url).load_newer(-1, other_machine(tmp_path))[0][0].update == 2  # type: ignore[index]


def test_the_manifest_is_uploaded_last_and_removed_first(folder: CheckpointFolder):
    mirror = Mirror("frail://run")
    save(folder, 1)
    mirror.sync(folder.checkpoints())
    assert FailingStorage.done == [
        f"put update-000000001/{name}" for name in ("model.safetensors", "state.json", FILES[0])
    ]
    FailingStorage.done.clear()
    mirror.clear()
    assert FailingStorage.done[0] == "rm update-000000001/manifest.json"


def test_nothing_is_uploaded_twice(folder: CheckpointFolder):
    save(folder, 1, 2)
    mirror = Mirror("frail://run")
    mirror.sync(folder.checkpoints())
    done = list(FailingStorage.done)
    mirror.sync(folder.checkpoints())
    Mirror("frail://run").sync(folder.checkpoints())
    assert FailingStorage.done == done


@pytest.mark.parametrize("manifest", [False, True])
def test_files_of_another_run_are_never_mixed_in(folder: CheckpointFolder, tmp_path: Path, manifest: bool):
    save(CheckpointFolder(tmp_path / "before"), 7, value=1)
    Mirror("memory://run").sync(CheckpointFolder(tmp_path / "before").checkpoints())
    if not manifest:
        fsspec.filesystem("memory").rm_file("/run/checkpoints/update-000000007/manifest.json")
    save(folder, 7, value=2)
    Mirror("memory://run").sync(folder.checkpoints())
    (result, problems) = Mirror("memory://run").load_newer(-1, other_machine(tmp_path))
    assert result is not None
    assert (result[1]["model"]["w"].tolist(), problems) == ([2] * 4, [])


def test_a_file_missing_in_the_mirror_is_uploaded_again(folder: CheckpointFolder, tmp_path: Path):
    save(folder, 1)
    mirror = Mirror("memory://run")
    mirror.sync(folder.checkpoints())
    fsspec.filesystem("memory").rm_file("/run/checkpoints/update-000000001/model.safetensors")
    mirror.sync(folder.checkpoints())
    assert mirror.load_newer(-1, other_machine(tmp_path))[0] is not None


@pytest.mark.parametrize("name", FILES)
def test_a_tampered_checkpoint_is_reported_and_the_previous_one_is_used(
    url: str, folder: CheckpointFolder, tmp_path: Path, name: str
):
    save(folder, 1, 2)
    Mirror(url).sync(folder.checkpoints())
    content = bytearray((folder.latest().path / name).read_bytes())  # type: ignore[union-attr]
    content[len(content) // 2] ^= 1
    change(url, f"update-000000002/{name}", bytes(content))
    other = other_machine(tmp_path)
    result, problems = Mirror(url).load_newer(-1, other)
    assert result is not None
    assert result[0].update == 1
    assert len(problems) == 1
    assert f"{url}: update-000000002 cannot be used." in problems[0]
    assert os.listdir(tmp_path / "other") == ["update-000000001"]
    assert other.problems() == []


def test_a_checkpoint_under_a_wrong_name_is_skipped(folder: CheckpointFolder, tmp_path: Path):
    save(folder, 1)
    Mirror("memory://run").sync(folder.checkpoints())
    fs = fsspec.filesystem("memory")
    fs.cp("/run/checkpoints/update-000000001", "/run/checkpoints/update-000000009", recursive=True)
    result, (problem,) = Mirror("memory://run").load_newer(-1, other_machine(tmp_path))
    assert result is not None
    assert result[0].update == 1
    assert "it is the checkpoint of update 1 under another name" in problem


def test_a_checkpoint_of_a_newer_trueloop_is_an_error(folder: CheckpointFolder, tmp_path: Path):
    save(folder, 1)
    Mirror("memory://run").sync(folder.checkpoints())
    change("memory://run", "update-000000001/manifest.json", seal({"schema": 99}))
    with pytest.raises(NewerSchemaError, match="schema 99"):
        Mirror("memory://run").load_newer(-1, other_machine(tmp_path))


def test_other_files_in_the_mirror_are_not_removed(folder: CheckpointFolder, tmp_path: Path):
    save(folder, 1)
    for name in (
        "notes.txt",
        "other/model.safetensors",
        "update-000000001/bomb.pkl",
        "update-000000001/deep/state.json",
    ):
        change("memory://run", name, b"x")
    Mirror("memory://run").sync(folder.checkpoints())
    result, _ = Mirror("memory://run").load_newer(-1, other_machine(tmp_path))
    assert result is not None
    assert sorted(os.listdir(result[0].path)) == FILES
    Mirror("memory://run").clear()
    assert sorted(fsspec.filesystem("memory").find("/run")) == [
        "/run/checkpoints/notes.txt", "/run/checkpoints/other/model.safetensors"
    ]  # fmt: skip


# Unreachable storage ---------------------------------------------------------------------------------------------


def test_an_unreachable_storage_is_not_taken_for_an_empty_one(folder: CheckpointFolder, tmp_path: Path):
    save(folder, 1)
    Mirror("frail://run").sync(folder.checkpoints())
    FailingStorage.writes_left = 0
    with pytest.raises(MirrorError, match="frail://run could not be read"):
        Mirror("frail://run").load_newer(-1, other_machine(tmp_path))


def test_a_checkpoint_removed_locally_is_not_uploaded(folder: CheckpointFolder):
    save(folder, 1, 2)
    saved = folder.checkpoints()
    shutil.rmtree(saved[0].path)
    Mirror("memory://run").sync(saved)
    assert stored("memory://run") == {"update-000000002": FILES}


def test_a_run_whose_mirror_is_temporarily_down(tmp_path: Path):
    saver = Saver(CheckpointFolder(tmp_path / "near"), mirror=Mirror("frail://run"))
    notes = []
    for update, writes in enumerate([10**9, 1, 0, 10**9]):
        FailingStorage.writes_left = writes
        state = {"model": {"w": torch.full((4,), update)}}
        saver.save(state, update=update, epoch=0, metrics={})
        saver.wait()
        notes += [event for event in saver.drain_events() if isinstance(event, Notice)]
    saver.close()
    assert [(note.update, note.kind) for note in notes] == [(1, "mirror_down"), (3, "mirror_up")]
    assert "frail://run could not be written" in notes[0].message
    other = other_machine(tmp_path)
    result = Saver(other, mirror=Mirror("frail://run")).load_latest()
    assert result is not None
    assert result[0].update == 3
    assert result[0].path.parent == tmp_path / "other"


def test_a_damaged_local_checkpoint_is_replaced_by_the_mirrors(folder: CheckpointFolder, tmp_path: Path):
    save(folder, 1, 2)
    Mirror("memory://run").sync(folder.checkpoints())
    file = tmp_path / "near" / "update-000000002" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    saver = Saver(CheckpointFolder(tmp_path / "near"), mirror=Mirror("memory://run"))
    checkpoint, state = saver.load_latest()  # type: ignore[misc]
    assert (checkpoint.path.name, state["model"]["w"].tolist()) == ("update-000000002-2", [2] * 4)
    assert "update-000000002" in saver.problems()[0]


# Addresses -------------------------------------------------------------------------------------------------------


def test_an_unknown_protocol_is_refused():
    with pytest.raises(InvalidConfig, match="checkpoint.mirror is 'carrier-pigeon://x'.*not known"):
        Mirror("carrier-pigeon://x")


def test_a_missing_package_is_reported_with_its_install_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InvalidConfig, match="the package 's3fs' for s3:// is not installed") as caught:
        Mirror("s3://bucket/run")
    assert caught.value.fix == "pip install s3fs"


def test_a_missing_fsspec_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingExtra, match="fsspec"):
        Mirror("memory://run")


def test_a_full_local_disk_leaves_no_partial_download(folder: CheckpointFolder, tmp_path: Path):
    other = other_machine(tmp_path)

    def fill(into: Path) -> None:
        (into / "state.json").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left on device"):
        other.import_checkpoint(3, fill)
    assert os.listdir(tmp_path / "other") == []
