"""Store an exported model: one model file, and a manifest with its description and checksums.

    FOLDER/model.pt2        or model.onnx, model.ts
    FOLDER/manifest.json    inputs, outputs, reading, answer, origin, parity; SHA-256 of the model file and of itself

A file is loaded only after its checksum is verified.
"""

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.core.paths import is_file
from trueloop.core.sealed_json import seal, unseal
from trueloop.core.untrusted_input import Bounds, parse_record, safe_repr
from trueloop.export.io_description import FILES, Answer, Array, Kind, Reading

SCHEMA: Final = 1
MANIFEST: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The part of a manifest that trueloop reads."""

    kind: Kind
    inputs: Annotated[tuple[Array, ...], Bounds(1, 64)]
    outputs: Annotated[tuple[Array, ...], Bounds(1, 64)]
    reading: Reading = field(default_factory=Reading)
    answer: Answer = field(default_factory=Answer)

    @property
    def largest_batch(self) -> int | None:
        """Largest number of samples per batch; None = unbounded."""
        return self.inputs[0].shape[0].highest if self.inputs[0].shape else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """An exported model with verified checksums."""

    folder: Path
    description: Description
    metadata: Mapping[str, Any]
    """Other content of the manifest, for the user: run, versions, parity."""
    digest: str
    """SHA-256 of the manifest. It identifies the artifact, because the manifest contains the checksums of all files."""

    @property
    def file(self) -> Path:
        """Path of the model file."""
        return self.folder / FILES[self.description.kind]

    @property
    def name(self) -> str:
        """Name of the run, or else of the folder."""
        run = self.metadata.get("run")
        return str((run.get("name") if isinstance(run, Mapping) else "") or self.folder.name)


def write_manifest(folder: Path, description: Description, metadata: Mapping[str, Any]) -> str:
    """Write the manifest of a folder and return its digest.

    Args:
        folder: folder that contains only the model file.
        description: the part of the manifest that trueloop reads.
        metadata: JSON-ready facts for the user.

    Raises:
        OSError: a file cannot be read or written.
    """
    files = {path.name: _file_stamp(path) for path in sorted(folder.iterdir())}
    description_json = json.loads(json.dumps(asdict(description)))
    text = seal({"schema": SCHEMA, **description_json, "metadata": dict(metadata), "files": files})
    (folder / MANIFEST).write_bytes(text)
    return hashlib.sha256(text).hexdigest()


def open_artifact(folder: Path, *, expected: str = "") -> Artifact:
    """Verify the checksums of an artifact, without running or unpickling anything in it.

    Args:
        folder: folder from `trueloop export`, or the manifest or model file in it.
        expected: expected digest, or its first 12 digits or more; "" = any.

    Raises:
        CheckpointError: the folder is not an artifact, is damaged, or has another digest.

    Cost: one read of all files.
    """
    if is_file(folder) and folder.name in (MANIFEST, *FILES.values()):
        folder = folder.parent
    text = _read_manifest(folder)
    digest = hashlib.sha256(text).hexdigest()
    _check_digest(folder, digest, expected)
    content = unseal(text)
    if content is None:
        raise _damage_error(folder, f"{MANIFEST} does not match its own checksum")
    if content.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{folder} was exported with schema {safe_repr(content.get('schema'))}; this trueloop reads {SCHEMA}.",
            fix="Use the trueloop that exported it, or export the run again.",
        )
    description, metadata = _parse_description(folder, content)
    _check_files(folder, description.kind, content.get("files"))
    return Artifact(folder=folder, description=description, metadata=metadata, digest=digest)


def _read_manifest(folder: Path) -> bytes:
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise _damage_error(folder, f"{MANIFEST} has more than {MAX_MANIFEST_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{str(folder)!r} is not an exported model: {MANIFEST} cannot be read ({error.strerror or error}).",
            why="Only files with verified checksums are run.",
            fix="Create one: trueloop export RUN --to pt2",
        ) from error


def _check_digest(folder: Path, digest: str, expected: str) -> None:
    if not expected:
        return
    if len(expected) < 12:
        raise InvalidConfig(f"The digest {expected!r} is too short.", fix="Give at least 12 of its digits.")
    if not digest.startswith(expected.lower().removeprefix("sha256:")):
        raise CheckpointError(
            f"{folder} is not the requested artifact: its digest begins with {digest[:16]}.",
            why="It was replaced, or this is the wrong folder.",
            fix="Use the folder whose export printed the expected digest.",
        )


def _parse_description(folder: Path, content: Mapping[str, Any]) -> tuple[Description, Mapping[str, Any]]:
    fields = {key: content[key] for key in ("kind", "inputs", "outputs", "reading", "answer") if key in content}
    try:
        description = parse_record(Description, fields)
    except InvalidConfig as error:
        raise _damage_error(folder, f"{MANIFEST} is invalid: {error.what}") from error
    metadata = content.get("metadata")
    return description, metadata if isinstance(metadata, dict) else {}


def _check_files(folder: Path, kind: Kind, files: Any) -> None:
    if not isinstance(files, dict) or set(files) != {FILES[kind]}:
        raise _damage_error(folder, f"{MANIFEST} must list {FILES[kind]} only")
    for name, stamp in files.items():
        path = folder / name
        try:
            is_regular = stat.S_ISREG(path.lstat().st_mode)
            actual = _file_stamp(path) if is_regular else None
        except OSError as error:
            raise _damage_error(folder, f"{name} cannot be read ({error.strerror or error})") from error
        if actual is None:
            raise _damage_error(folder, f"{name} is not a regular file")
        if actual != stamp:
            raise _damage_error(folder, f"{name} does not match its checksum")


def _file_stamp(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _damage_error(folder: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{folder} is damaged: {reason}.",
        why="Its outputs would not be those of the exported model.",
        fix="Copy it again from an intact source, or export the run again.",
    )
