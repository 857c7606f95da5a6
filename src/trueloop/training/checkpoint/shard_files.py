"""Write and read shards with torch.distributed.checkpoint, in the safetensors format.

torch's native format is never used, because its index is a pickle. Each process writes one file, whose metadata has
the offsets of the process's parts.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem

from trueloop.core.errors import CheckpointError, InvalidConfig, MissingExtra
from trueloop.core.json_text import parse_json
from trueloop.training.checkpoint.durable_files import FileStamp, damage_error, unreadable
from trueloop.training.checkpoint.manifest import read_manifest
from trueloop.training.checkpoint.state_tree import ShardReference
from trueloop.training.checkpoint.tensor_file import read_tensors
from trueloop.training.distributed.processes import Processes

if TYPE_CHECKING:  # not in every version of torch
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

SHARD: Final = re.compile(r"shard-\d{5,}-model-\d{5}-of-\d{5}\.safetensors")
_OFFSETS_KEY: Final = "DCP_SHARDING_INFO"  # torch's metadata entry, as JSON: name -> {"saved_offsets": [...]}


def safetensors_storage() -> tuple[type[HuggingFaceStorageWriter], type[HuggingFaceStorageReader]]:
    """Return torch's writer and reader of safetensors.

    Raises:
        InvalidConfig: this torch has none, or only one that writes on a single process.
        MissingExtra: safetensors is not installed.
    """
    if find_spec("safetensors") is None:
        raise MissingExtra("safetensors", "train")
    try:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
    except ImportError:
        pass
    else:
        if "save_distributed" in signature(HuggingFaceStorageWriter).parameters:
            return HuggingFaceStorageWriter, HuggingFaceStorageReader
    raise InvalidConfig(
        f'parallel is "fsdp", but torch {torch.__version__} has no distributed checkpoints in safetensors format.',
        why="torch's native format is unpickled when it is read, which can run any code.",
        fix='Install torch 2.13; or train without a run folder, or with parallel.engine = "ddp".',
    )


def write_shards(sharded: Mapping[str, Tensor], folder: Path, processes: Processes) -> dict[str, FileStamp]:
    """Write this process's parts of sharded tensors and sync them to disk; to be called on all processes.

    Args:
        sharded: DTensors by name, with the same names on every process.
        folder: existing folder that all processes see.
        processes: processes that hold the parts.

    Returns:
        Size and checksum of every process's file.

    Raises:
        OSError: writing failed on some process.
        CheckpointError: torch raised another error on some process.

    Cost: CPU memory for two copies of this process's parts, as torch builds a file in memory first.
    """
    writer_class, _ = safetensors_storage()
    files = _HashingFileSystem()
    writer = writer_class(str(folder), save_distributed=True)
    writer.fs = files
    with _translate_errors(f"The shards of {folder.name} could not be written"):
        processes.run_collective(lambda: dcp.save(dict(sharded), storage_writer=writer))
    return {name: stamp for stamps in processes.all_gather_object(files.stamps()) for name, stamp in stamps.items()}


def read_shards(tensors: dict[str, Any], folder: Path, files: Sequence[str], processes: Processes) -> None:
    """Fill DTensors from shards, on each process its own parts; to be called on all processes.

    Args:
        tensors: DTensors by name, to fill in place; they may have been sharded differently when they were saved.
        folder: folder with the shards, which all processes see.
        files: names of the shard files.
        processes: processes that share the tensors.

    Raises:
        CheckpointError: the shards cannot be read on some process.
    """
    _, reader_class = safetensors_storage()
    reader = reader_class(str(folder))
    reader.fs = _FilteredFileSystem(files)
    try:
        with _translate_errors(f"The shards in {folder} could not be read"):
            processes.run_collective(lambda: dcp.load(tensors, storage_reader=reader))
    except OSError as error:
        raise unreadable(folder, error) from error


def read_full_tensors(folder: Path, references: Mapping[str, ShardReference]) -> dict[str, Tensor]:
    """Read full tensors from all shards of a checkpoint, on a single process and without torch's reader.

    Raises:
        CheckpointError: a shard has changed since it was written, or is missing.

    Cost: reads every shard, one at a time.
    """
    tensors = {name: torch.empty(each.shape, dtype=each.dtype) for name, each in references.items()}
    missing = {name: tensor.numel() for name, tensor in tensors.items()}
    try:
        _, stamps = read_manifest(folder)
        for file in filter(SHARD.fullmatch, stamps):
            shard = read_tensors(folder / file)
            if shard.stamp != stamps[file]:
                raise damage_error(folder, f"{file} does not match its checksum")
            offsets = parse_json(shard.metadata[_OFFSETS_KEY])
            for name in tensors.keys() & shard.tensors.keys():
                missing[name] -= _copy_part(tensors[name], shard.tensors[name], offsets[name]["saved_offsets"])
    except OSError as error:
        raise unreadable(folder, error) from error
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise damage_error(folder, f"its shards are invalid ({error!r})") from error
    incomplete = [name for name, count in missing.items() if count]
    if incomplete:
        raise damage_error(folder, f"its shards contain only a part of {incomplete[0]!r}")
    return tensors


def _copy_part(full: Tensor, part: Tensor, starts: Sequence[int]) -> int:
    """Copy a part into the full tensor; return the number of its elements."""
    if part.dtype != full.dtype:
        raise ValueError(f"{part.dtype} instead of {full.dtype}")
    ends = [start + size for start, size in zip(starts, part.shape, strict=True)]
    full[tuple(map(slice, starts, ends))].copy_(part)
    return part.numel()


@contextmanager
def _translate_errors(problem: str) -> Generator[None]:
    """Convert torch's CheckpointException, a BaseException, to the OSError that caused it, or a CheckpointError."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        if isinstance(cause, OSError):
            raise cause from error  # `CheckpointFolder` adds the folder's name
        raise CheckpointError(f"{problem} by process {rank}: {cause}") from error


class _HashingFileSystem(FileSystem):
    """Writes files, and computes the checksums of the bytes while writing."""

    def __init__(self) -> None:
        self._files: dict[str, _HashingFile] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Generator[io.IOBase]:
        raw = self._files[Path(path).name] = _HashingFile(path, "xb")
        with io.BufferedWriter(raw) as stream:
            yield stream

    def stamps(self) -> dict[str, FileStamp]:
        return {name: file.stamp() for name, file in self._files.items()}


class _HashingFile(io.FileIO):
    """A file that is written from start to end, and its checksum."""

    def __init__(self, path: Any, mode: str) -> None:
        super().__init__(path, mode)
        self._digest, self._size = hashlib.sha256(), 0

    def write(self, data: Any, /) -> int:
        """Write bytes; add those that the system accepted to the checksum and the size."""
        accepted = super().write(data)
        self._digest.update(memoryview(data).cast("B")[:accepted])
        self._size += accepted
        return accepted

    def stamp(self) -> FileStamp:
        """Return size and checksum of the file."""
        return FileStamp(size=self._size, sha256=self._digest.hexdigest())


class _FilteredFileSystem(FileSystem):
    """Lists only the given files of a folder, because torch's reader treats every safetensors file as a shard."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def ls(self, path: Any) -> list[str]:
        return [str(Path(path) / name) for name in self._names]
