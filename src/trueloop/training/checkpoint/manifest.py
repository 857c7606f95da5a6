"""Write the folder of one checkpoint, and check all its content when reading it.

model.safetensors      tensors of the part "model" of the state; one such file for each part that has tensors
optimizer.safetensors
shard-00001-*          the parts of sharded tensors that one process has; see shard_files.py
state.json             everything that is not a tensor, with references to the tensors
manifest.json          schema, update, epoch, metrics; size and SHA-256 of each file, and its own SHA-256; written last

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
from trueloop.training.checkpoint.durable_files import FileStamp, damage_error, sync, unreadable, write_synced

if TYPE_CHECKING:  # a manifest and its files can be checked where torch is not installed
    from torch import Tensor

    from trueloop.training.checkpoint.state_tree import Json

SCHEMA = 2  # 2: tensors may be in shards
MANIFEST, STATE = "manifest.json", "state.json"
PackedState: TypeAlias = "Mapping[str, tuple[Json, Mapping[str, Tensor]]]"

WriteExtra: TypeAlias = "Callable[[Path], Mapping[str, FileStamp]]"
"""Function that writes further files into a folder, synced to disk, and returns their sizes and checksums."""

FILE = re.compile(r"[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*\.(safetensors|json)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """Conversion from one schema to the next one; it runs after the checksums of the original bytes are checked."""

    manifest: Callable[[dict[str, Any]], dict[str, Any]]
    """Function that converts the manifest's JSON object to the next schema, except for its "schema" entry."""
    state: Callable[[dict[str, Any]], dict[str, Any]]
    """Function that converts the state, including tensors, to what the next schema would have saved."""


# Schema -> the migration to the next schema; schema 1 is the first.
MIGRATIONS: dict[int, Migration] = {1: Migration(manifest=lambda manifest: manifest, state=lambda state: state)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One complete checkpoint on disk."""

    path: Path
    """Folder of the checkpoint."""
    update: int
    """Number of updates done when the checkpoint was saved."""
    epoch: int
    """Number of epochs completed when the checkpoint was saved."""
    metrics: Mapping[str, float]
    """Metrics of the checkpoint's weights: {"val/loss": 0.1}; empty if they were not evaluated."""


class NewerSchemaError(CheckpointError):
    """A newer trueloop wrote this checkpoint. It is never skipped silently, as the training in it would be lost."""


def write_folder(
    folder: Path, parts: PackedState, checkpoint: Checkpoint, write_extra: WriteExtra | None = None
) -> None:
    """Write every file of a checkpoint and sync it to disk, the manifest last.

    Args:
        folder: an existing, empty folder.
        parts: results of `state_tree.pack` by name; each part's tensors are written to a file of that name.
        checkpoint: content of the manifest.
        write_extra: function that writes further files of the checkpoint; it is called first.

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
    """Check a checkpoint without reading its files: the manifest is intact, and each file has the right size.

    Raises:
        OSError: a file cannot be read.
        CheckpointError: the folder is not a complete checkpoint.
        NewerSchemaError: a newer trueloop wrote it.
    """
    manifest, migrations = _read_raw_manifest(path)
    for migration in migrations:
        manifest = migration.manifest(manifest)
    try:
        stamps = {name: FileStamp(**stamp) for name, stamp in manifest["files"].items()}
        checkpoint = Checkpoint(
            path=path, update=manifest["update"], epoch=manifest["epoch"], metrics=_unpack_metrics(manifest["metrics"])
        )
    except (LookupError, TypeError, AttributeError, ValueError, struct.error) as error:
        raise damage_error(path, f"{MANIFEST} is invalid ({error!r})") from error
    for name, stamp in stamps.items():
        _check_file(path, name, stamp)
    if STATE not in stamps:
        raise damage_error(path, f"{MANIFEST} does not list {STATE}")
    return checkpoint, stamps


def verify(path: Path) -> Checkpoint:
    """Check every byte of a checkpoint against its manifest, without loading it; does not import torch.

    Raises:
        CheckpointError: the folder is not a complete checkpoint, or it cannot be read.
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
    """Read the full state, after checking every byte against the manifest.

    Shards are checked but not read: the state has a `state_tree.ShardReference` for each tensor in them.

    Raises:
        OSError: a file cannot be read.
        CheckpointError: the folder is not a complete checkpoint.
        NewerSchemaError: a newer trueloop wrote it.
    """
    from trueloop.training.checkpoint.state_tree import unpack

    _, stamps = read_manifest(path)
    _, migrations = _read_raw_manifest(path)
    content = (path / STATE).read_bytes()
    if hashlib.sha256(content).hexdigest() != stamps[STATE].sha256:
        raise damage_error(path, f"{STATE} does not match its checksum")
    trees: dict[str, Any] = json.loads(content)
    files = [f"{name}.safetensors" for name in trees]
    with ThreadPoolExecutor() as pool:  # computing a checksum takes one core, and the others are idle now
        shards = [name for name in stamps if name not in (STATE, *files)]
        checks = pool.map(_check_content, repeat(path), shards, [stamps[name] for name in shards])
        tensors = pool.map(_read_part, repeat(path), files, repeat(stamps))
        state = {name: unpack(tree, part) for (name, tree), part in zip(trees.items(), tensors, strict=True)}
        list(checks)  # raises the errors of the checks
    for migration in migrations:
        state = migration.state(state)
    return state


def _unpack_metrics(packed: dict[str, Any]) -> dict[str, float]:
    """Undo what `state_tree.pack` does to metrics: it writes a non-finite number as the bytes of its double."""
    numbers = packed["dict"]
    return {
        name: struct.unpack(">d", bytes.fromhex(value["float"]))[0] if isinstance(value, dict) else float(value)
        for name, value in numbers.items()
    }


def _read_raw_manifest(path: Path) -> tuple[dict[str, Any], list[Migration]]:
    """Check the manifest's checksum; return its original content, and the migrations to the current schema."""
    if not (path / MANIFEST).is_file():
        raise damage_error(path, f"there is no {MANIFEST}: it is incomplete, or not a checkpoint")
    content = (path / MANIFEST).read_bytes()
    manifest = unseal(content)
    if manifest is None:
        raise damage_error(path, f"{MANIFEST} does not match its own checksum")
    return manifest, _migrations_from(path, manifest.get("schema"))


def _migrations_from(path: Path, schema: object) -> list[Migration]:
    """Return the migrations from a schema to the current one, in order."""
    if not isinstance(schema, int) or schema > SCHEMA or any(old not in MIGRATIONS for old in range(schema, SCHEMA)):
        raise NewerSchemaError(
            f"{path} has checkpoint schema {schema!r}; the newest one that this trueloop can read is {SCHEMA}.",
            why="Most likely a newer trueloop wrote it, in a format that this version does not know.",
            fix="Upgrade: pip install -U trueloop",
        )
    return [MIGRATIONS[old] for old in range(schema, SCHEMA)]


def _check_file(path: Path, name: str, stamp: FileStamp) -> None:
    if not FILE.fullmatch(name):
        raise damage_error(path, f"{MANIFEST} lists a file with an invalid name: {name!r}")
    try:
        status = (path / name).lstat()
    except FileNotFoundError:
        raise damage_error(path, f"{name} is missing") from None
    if not stat.S_ISREG(status.st_mode):
        raise damage_error(path, f"{name} is not a plain file")
    if status.st_size != stamp.size:
        raise damage_error(path, f"{name} has {status.st_size} bytes instead of {stamp.size}")


def _check_content(path: Path, name: str, stamp: FileStamp) -> None:
    with (path / name).open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != stamp.sha256:
            raise damage_error(path, f"{name} does not match its checksum")


def _read_part(path: Path, name: str, stamps: Mapping[str, FileStamp]) -> Mapping[str, Tensor]:
    """Read the tensors of one part; return an empty mapping if it has none."""
    from trueloop.training.checkpoint.tensor_file import read_tensors

    if name not in stamps:
        return {}
    file = read_tensors(path / name)
    if file.stamp != stamps[name]:
        raise damage_error(path, f"{name} does not match its checksum")
    return file.tensors
