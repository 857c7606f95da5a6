from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from trueloop.core.errors import CheckpointError
from trueloop.training.checkpoint import manifest as manifest_module
from trueloop.training.checkpoint.manifest import (
    MIGRATIONS,
    SCHEMA,
    Checkpoint,
    Migration,
    NewerSchemaError,
    read_folder,
    read_manifest,
    seal,
    write_folder,
)
from trueloop.training.checkpoint.state_tree import pack

STATE: dict[str, Any] = {
    "model": {"weight": torch.arange(6.0).reshape(2, 3)},
    "optimizer": {"state": {0: {"step": torch.tensor(4.0), "exp_avg": torch.ones(2, 3)}}, "lr": 0.1},
    "position": {"update": 12, "epoch": 3, "nothing": None},
}
METRICS = {"val/loss": 0.25, "val/other": float("nan")}
FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "update-000000012"
    path.mkdir()
    parts = {name: pack(tree) for name, tree in STATE.items()}
    write_folder(path, parts, Checkpoint(path=path, update=12, epoch=3, metrics=METRICS))
    return path


def rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest and give it a valid checksum, as an attacker could."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    del manifest["sha256"]
    change(manifest)
    (folder / "manifest.json").write_bytes(seal(manifest))


def test_the_folder_has_plain_files(folder: Path):
    assert sorted(os.listdir(folder)) == sorted(FILES)
    expected = safetensors.torch.load_file(folder / "optimizer.safetensors")
    assert sorted(expected) == ["state.0.exp_avg", "state.0.step"]
    assert torch.equal(safetensors.torch.load_file(folder / "model.safetensors")["weight"], STATE["model"]["weight"])
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert (manifest["schema"], manifest["update"], manifest["epoch"]) == (SCHEMA, 12, 3)
    sizes = {name: described["size"] for name, described in manifest["files"].items()}
    assert sizes == {name: (folder / name).stat().st_size for name in FILES[:3]}


def test_the_full_state_is_restored(folder: Path):
    checkpoint, stamps = read_manifest(folder)
    assert (checkpoint.path, checkpoint.update, checkpoint.epoch) == (folder, 12, 3)
    assert str(checkpoint.metrics) == str(METRICS)
    assert sorted(stamps) == sorted(FILES[:3])
    state = read_folder(folder)
    assert list(state) == list(STATE)
    assert torch.equal(state["model"]["weight"], STATE["model"]["weight"])
    assert state["optimizer"]["lr"] == 0.1
    assert state["optimizer"]["state"][0]["step"].item() == 4
    assert state["position"] == STATE["position"]


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_detected(folder: Path, name: str):
    full = (folder / name).read_bytes()
    for position in range(len(full)):
        flipped = bytes([full[position] ^ 1 << position % 8])
        (folder / name).write_bytes(full[:position] + flipped + full[position + 1 :])
        with pytest.raises(CheckpointError, match="is damaged"):
            read_folder(folder)
    (folder / name).write_bytes(full)
    read_folder(folder)


@pytest.mark.parametrize("name", FILES)
def test_every_truncation_is_detected_from_the_sizes(folder: Path, name: str):
    full = (folder / name).read_bytes()
    for part in range(64):
        (folder / name).write_bytes(full[: len(full) * part // 64])
        with pytest.raises(CheckpointError, match="is damaged"):
            read_manifest(folder)
    (folder / name).write_bytes(full + b" ")
    with pytest.raises(CheckpointError, match="is damaged"):
        read_manifest(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_reported(folder: Path, name: str):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}( is missing|: it is incomplete)"):
        read_manifest(folder)


@pytest.mark.parametrize(
    "name", ["../secret.json", "/etc/passwd", "a/b.json", "..", "", "x.pkl", "a\\b.json", "a.json\n"]
)
def test_a_manifest_with_files_outside_its_folder_is_refused(folder: Path, name: str):
    (folder.parent / "secret.json").write_text("{}")
    rewrite_manifest(folder, lambda manifest: manifest["files"].update({name: {"size": 2, "sha256": "0" * 64}}))
    for read in (read_manifest, read_folder):
        with pytest.raises(CheckpointError, match="lists a file with an invalid name"):
            read(folder)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_links_and_special_files_are_refused(folder: Path, kind: str):
    file = folder / "model.safetensors"
    moved = file.rename(folder.parent / "elsewhere")
    {"link": lambda: file.symlink_to(moved), "pipe": lambda: os.mkfifo(file), "folder": file.mkdir}[kind]()
    with pytest.raises(CheckpointError, match="model.safetensors is not a plain file"):
        read_folder(folder)


def test_a_manifest_that_is_a_pipe_is_not_opened(folder: Path):
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")
    with pytest.raises(CheckpointError, match=r"there is no manifest\.json"):
        read_manifest(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.pop("update"),
        lambda manifest: manifest.update(files=[]),
        lambda manifest: manifest.update(files={"state.json": {"size": 3}}),
        lambda manifest: manifest["files"].pop("state.json"),
        lambda manifest: manifest["files"].pop("model.safetensors"),
        lambda manifest: manifest.update(metrics={"tensor": "a"}),
    ],
)
def test_an_invalid_manifest_with_a_valid_checksum_is_an_error(folder: Path, change: Callable[[dict[str, Any]], Any]):
    rewrite_manifest(folder, change)
    with pytest.raises(CheckpointError):
        read_folder(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"3", b'{"sha256": 1}', b"[" * 100_000, b"\xff"])
def test_content_that_is_no_manifest_is_an_error(folder: Path, content: bytes):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its own checksum"):
        read_manifest(folder)


def test_a_newer_schema_has_its_own_error(folder: Path):
    rewrite_manifest(folder, lambda manifest: manifest.update(schema=SCHEMA + 1))
    with pytest.raises(
        NewerSchemaError, match=f"schema {SCHEMA + 1}; the newest one that this trueloop can read is {SCHEMA}"
    ) as caught:
        read_folder(folder)
    assert "Upgrade" in caught.value.fix


def test_an_older_schema_is_migrated_step_by_step(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Version 0, of this test, called an update a step and kept the position flat; version 1 wrote no epoch there."""
    state_json = folder / "state.json"
    trees = json.loads(state_json.read_bytes())
    trees |= {"step": 12, "nothing": None}
    del trees["position"]
    state_json.write_text(json.dumps(trees))
    old = json.loads((folder / "manifest.json").read_bytes())
    described = {**old["files"], "state.json": {"size": state_json.stat().st_size, "sha256": sha256(state_json)}}
    old = {"schema": 0, "step": 12, "epoch": 3, "metrics": old["metrics"], "files": described}
    (folder / "manifest.json").write_bytes(seal(old))
    with pytest.raises(NewerSchemaError, match=f"schema 0; the newest one that this trueloop can read is {SCHEMA}"):
        read_manifest(folder)

    def renamed(old: dict[str, Any]) -> dict[str, Any]:
        return {**{name: value for name, value in old.items() if name != "step"}, "update": old["step"]}

    def nested(old: dict[str, Any]) -> dict[str, Any]:
        saved = {name: old[name] for name in ("model", "optimizer")}
        return {**saved, "position": {"update": old["step"], "nothing": old["nothing"]}}

    def counted(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "position": {**state["position"], "epoch": 3}}

    monkeypatch.setitem(MIGRATIONS, 0, Migration(manifest=renamed, state=nested))
    monkeypatch.setitem(MIGRATIONS, 1, Migration(manifest=lambda manifest: manifest, state=counted))
    checkpoint, stamps = read_manifest(folder)
    assert (checkpoint.update, checkpoint.epoch, sorted(stamps)) == (12, 3, sorted(FILES[:3]))
    state = read_folder(folder)
    assert sorted(state) == sorted(STATE)
    assert state["position"] == STATE["position"]
    assert torch.equal(state["model"]["weight"], STATE["model"]["weight"])


def test_schema_1_is_read(folder: Path):
    rewrite_manifest(folder, lambda manifest: manifest.update(schema=1))
    assert read_manifest(folder)[0].update == 12
    assert read_folder(folder)["position"] == STATE["position"]


def test_checksums_are_verified_before_a_migration(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manifest_module, "SCHEMA", SCHEMA + 1)
    never = Migration(manifest=lambda manifest: manifest, state=lambda state: pytest.fail("it saw the damage"))
    monkeypatch.setitem(MIGRATIONS, SCHEMA, never)
    full = (folder / "state.json").read_bytes()
    (folder / "state.json").write_bytes(full.replace(b"12", b"13"))
    with pytest.raises(CheckpointError, match=r"state\.json does not match its checksum"):
        read_folder(folder)


@pytest.mark.parametrize("schema", [None, "1", 1.5, -(10**18), [1]])
def test_an_invalid_schema_is_an_error(folder: Path, schema: Any):
    rewrite_manifest(folder, lambda manifest: manifest.update(schema=schema))
    with pytest.raises(NewerSchemaError, match=f"can read is {SCHEMA}"):
        read_manifest(folder)


def test_every_earlier_schema_has_a_migration():
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA))


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def test_a_planted_pickle_is_never_executed(folder: Path, tmp_path: Path):
    marker = tmp_path / "executed"
    bomb = pickle.dumps(Bomb(marker))
    for name in ("model.pt", "model.pkl", ".metadata", "optimizer.bin", "state.pkl", "data.pickle"):
        (folder / name).write_bytes(bomb)
    assert torch.equal(read_folder(folder)["model"]["weight"], STATE["model"]["weight"])
    for name in FILES:
        full = (folder / name).read_bytes()
        (folder / name).write_bytes(bomb)
        with pytest.raises(CheckpointError):
            read_folder(folder)
        (folder / name).write_bytes(full)
    assert not marker.exists()
    pickle.loads(bomb)  # the bomb is a real one
    assert marker.exists()


def test_verify_checks_every_byte_without_loading(folder: Path):
    checked = manifest_module.verify(folder)
    assert (checked.update, checked.metrics["val/loss"]) == (12, 0.25)
    for name in FILES[:3]:
        data = bytearray((folder / name).read_bytes())
        for at in (0, len(data) // 2, len(data) - 1):
            spoilt = bytearray(data)
            spoilt[at] ^= 1
            (folder / name).write_bytes(spoilt)
            with pytest.raises(CheckpointError, match=f"{name} does not match its checksum"):
                manifest_module.verify(folder)
        (folder / name).write_bytes(data)
    manifest_module.verify(folder)
    (folder / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"state\.json is missing"):
        manifest_module.verify(folder)
    with pytest.raises(CheckpointError, match="there is no manifest"):
        manifest_module.verify(folder / "nowhere")


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        [],
        {"dict": 3},
        {"dict": {"x": "y"}},
        {"dict": {"x": {"float": "zz"}}},
        {"dict": {"x": {"float": "7f"}}},
        {"list": {}},
    ],
)
def test_invalid_metrics_are_damage(folder: Path, metrics: Any):
    rewrite_manifest(folder, lambda manifest: manifest.update(metrics=metrics))
    with pytest.raises(CheckpointError, match="is invalid"):
        read_manifest(folder)


def test_metrics_survive_a_round_trip(folder: Path):
    values = {"a": 0.1, "b": float("-inf"), "c": -0.0, "d": 1e-320}
    rewrite_manifest(folder, lambda manifest: manifest.update(metrics=pack(values)[0]))
    checked = read_manifest(folder)[0].metrics
    assert {name: value.hex() for name, value in checked.items()} == {
        name: value.hex() for name, value in values.items()
    }
