"""Write one checkpoint's folder, and check everything when reading it.

model.safetensors      the tensors of each part of the state
optimizer.safetensors
shard-00001-*          each process's part of sharded tensors; see shard_files.py
state.json             everything that is not a tensor, with references to the tensors
manifest.json          schema, update, epoch, metrics; size and SHA-256 of each file, and of itself; written last

No file is used before its checksum is verified. Checkpoints of an earlier schema are converted by `MIGRATIONS`, one
version at a time.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trueloop.core.errors import CheckpointError
from trueloop.core.sealed_json import seal, unseal
from trueloop.training.checkpoint.durable_files import FileStamp, damaged, sync, unreadable, write_synced

if TYPE_CHECKING:  # a manifest and its files can be checked where torch is not installed
    from torch import Tensor

    from trueloop.training.checkpoint.state_tree import Json

SCHEMA = 2  # 2: tensors may be in shards
MANIFEST, STATE = "manifest.json", "state.json"
PackedState: TypeAlias = "Mapping[str, tuple[Json, Mapping[str, Tensor]]]"

WriteExtra: TypeAlias = "Callable[[Path], Mapping[str, FileStamp]]"
"""Writes more files into a folder, synced to disk, and returns their sizes and checksums."""

FILE = re.compile(r"[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*\.(safetensors|json)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step from a schema to the next one; checksums are checked before it, on the bytes that were written."""

    manifest: Callable[[dict[str, Any]], dict[str, Any]]
    """Converts the manifest's JSON object to the next schema, except for its "schema" entry."""
    state: Callable[[dict[str, Any]], dict[str, Any]]
    """Converts the whole state, tensors included, to what the next schema would have saved."""


# From schema -> the migration to the next one; schema 1 is the first.
MIGRATIONS: dict[int, Migration] = {1: Migration(manifest=lambda manifest: manifest, state=lambda state: state)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One complete checkpoint on disk."""

    path: Path
    """Folder of the checkpoint."""
    update: int
    """Updates done when it was saved."""
    epoch: int
    """Epoch it was saved in, counted as in the loop."""
    metrics: Mapping[str, float]
    """The latest evaluation before it: {"val/loss": 0.1}."""


class NewerSchemaError(CheckpointError):
    """A newer trueloop wrote this checkpoint; skipping it would lose its work, so that never happens silently."""


def write_folder(
    folder: Path, parts: PackedState, checkpoint: Checkpoint, write_extra: WriteExtra | None = None
) -> None:
    """Write every file of a checkpoint and sync it to disk, the manifest last.

    Args:
        folder: exists and is empty.
        parts: results of `state_tree.pack` by name; the name of a part is the name of its tensor file.
        checkpoint: the content of the manifest.
        write_extra: writes further files of the checkpoint, before the others.

    Raises:
        OSError: a file cannot be written; partial files are left.
    """
    from trueloop.training.checkpoint.state_tree import pack
    from trueloop.training.checkpoint.tensor_file import write_tensors

    stamps = dict(write_extra(folder)) if write_extra else {}
    stamps |= {
        f"{name}.safetensors": write_tensors(folder / f"{name}.safetensors", tensors, {"format": "pt"})
        for name, (_, tensors) in parts.items()
        if tensors
    }
    trees = json.dumps({name: tree for name, (tree, _) in parts.items()}, allow_nan=False)
    stamps[STATE] = write_synced(folder / STATE, [trees.encode()])
    manifest = {
        "schema": SCHEMA,
        "update": checkpoint.update,
        "epoch": checkpoint.epoch,
        "metrics": pack(dict(checkpoint.metrics))[0],
        "files": {name: asdict(stamp) for name, stamp in stamps.items()},
    }
    write_synced(folder / MANIFEST, [seal(manifest)])
    sync(folder)


def read_manifest(path: Path) -> tuple[Checkpoint, dict[str, FileStamp]]:
    """Check a checkpoint without reading its files: manifest intact, each file present and of the right size.

    Raises:
        OSError: a file cannot be read.
        CheckpointError: this is not a complete checkpoint.
        NewerSchemaError: a newer trueloop wrote it.
    """
    manifest, steps = _read_sealed(path)
    for step in steps:
        manifest = step.manifest(manifest)
    try:
        stamps = {name: FileStamp(**stamp) for name, stamp in manifest["files"].items()}
        checkpoint = Checkpoint(
            path=path, update=manifest["update"], epoch=manifest["epoch"], metrics=_unpack_metrics(manifest["metrics"])
        )
    except (LookupError, TypeError, AttributeError, ValueError, struct.error) as error:
        raise damaged(path, f"{MANIFEST} is invalid ({error!r})") from error
    for name, stamp in stamps.items():
        _check_file(path, name, stamp)
    if STATE not in stamps:
        raise damaged(path, f"{MANIFEST} does not name {STATE}")
    return checkpoint, stamps


def verify(path: Path) -> Checkpoint:
    """Check every byte of a checkpoint against its manifest, without loading it; needs no torch.

    Raises:
        CheckpointError: this is not a complete checkpoint, or it cannot be read.
        NewerSchemaError: a newer trueloop wrote it.

    Cost: one read of all files.
    """
    try:
        checkpoint, stamps = read_manifest(path)
        for name, stamp in stamps.items():
            _check_content(path, name, stamp)
    except OSError as error:
        raise unreadable(path, error) from error
    return checkpoint


def read_folder(path: Path) -> dict[str, Any]:
    """Read the whole state, after checking every byte against the manifest.

    Shards are checked as well but not read: the state has a `state_tree.ShardReference` for them, see `shard_files`.

    Raises:
        OSError: a file cannot be read.
        CheckpointError: this is not a complete checkpoint.
        NewerSchemaError: a newer trueloop wrote it.
    """
    from trueloop.training.checkpoint.state_tree import unpack

    _, stamps = read_manifest(path)
    _, steps = _read_sealed(path)
    content = (path / STATE).read_bytes()
    if hashlib.sha256(content).hexdigest() != stamps[STATE].sha256:
        raise damaged(path, f"{STATE} does not match its checksum")
    trees: dict[str, Any] = json.loads(content)
    files = [f"{name}.safetensors" for name in trees]
    with ThreadPoolExecutor() as pool:  # each file's checksum takes one core, and nothing else runs meanwhile
        shards = [name for name in stamps if name not in (STATE, *files)]
        checks = pool.map(_check_content, repeat(path), shards, [stamps[name] for name in shards])
        tensors = pool.map(_read_part, repeat(path), files, repeat(stamps))
        state = {name: unpack(tree, own) for (name, tree), own in zip(trees.items(), tensors, strict=True)}
        list(checks)  # raises their errors
    for step in steps:
        state = step.state(state)
    return state


def _unpack_metrics(packed: dict[str, Any]) -> dict[str, float]:
    """Undo what `state_tree.pack` does to metrics: a non-finite number is written as the bytes of its double."""
    numbers = packed["dict"]
    return {
        name: struct.unpack(">d", bytes.fromhex(value["float"]))[0] if isinstance(value, dict) else float(value)
        for name, value in numbers.items()
    }


def _read_sealed(path: Path) -> tuple[dict[str, Any], list[Migration]]:
    """Return the manifest as written, after checking its checksum, and the migrations to the current schema."""
    if not (path / MANIFEST).is_file():
        raise damaged(path, f"there is no {MANIFEST}: it is incomplete, or not a checkpoint")
    content = (path / MANIFEST).read_bytes()
    manifest = unseal(content)
    if manifest is None:
        raise damaged(path, f"{MANIFEST} does not match its own checksum")
    return manifest, _migrations_from(path, manifest.get("schema"))


def _migrations_from(path: Path, schema: object) -> list[Migration]:
    """Return the migrations from a schema to the current one, in order."""
    if not isinstance(schema, int) or schema > SCHEMA or any(old not in MIGRATIONS for old in range(schema, SCHEMA)):
        raise NewerSchemaError(
            f"{path} was written with checkpoint schema {schema!r}; this trueloop knows {SCHEMA}.",
            why="Another trueloop wrote it, most likely a newer one, whose format is unknown to this version.",
            fix="Upgrade: pip install -U trueloop",
        )
    return [MIGRATIONS[old] for old in range(schema, SCHEMA)]


def _check_file(path: Path, name: str, stamp: FileStamp) -> None:
    if not FILE.fullmatch(name):
        raise damaged(path, f"{MANIFEST} names an impossible file: {name!r}")
    try:
        status = (path / name).lstat()
    except FileNotFoundError:
        raise damaged(path, f"{name} is missing") from None
    if not stat.S_ISREG(status.st_mode):
        raise damaged(path, f"{name} is not a plain file")
    if status.st_size != stamp.size:
        raise damaged(path, f"{name} has {status.st_size} bytes instead of {stamp.size}")


def _check_content(path: Path, name: str, stamp: FileStamp) -> None:
    with (path / name).open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != stamp.sha256:
            raise damaged(path, f"{name} does not match its checksum")


def _read_part(path: Path, name: str, stamps: Mapping[str, FileStamp]) -> Mapping[str, Tensor]:
    """Read the tensors of one part; an empty mapping where it has none."""
    from trueloop.training.checkpoint.tensor_file import read_tensors

    if name not in stamps:
        return {}
    file = read_tensors(path / name)
    if file.stamp != stamps[name]:
        raise damaged(path, f"{name} does not match its checksum")
    return file.tensors
