"""Write and read safetensors files: eight bytes of header length, a JSON header, then the tensors' bytes.

It is written and read here, not by the safetensors library, for four reasons: the checksum is that of the very bytes
in memory, computed in the same pass; a full disk is an OSError with its number; no other file is left; and each
tensor read has memory of its own, aligned as torch aligns it. The tests hold every file against the library.

Source: https://huggingface.co/docs/safetensors/index#format
"""

import hashlib
import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from trueloop.core.errors import CheckpointError
from trueloop.core.json_text import parse_json
from trueloop.training.checkpoint.durable_files import FileStamp, damaged, write_synced

_TORCH_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, dtype)
    for name, dtype in _TORCH_NAMES.items()
    if hasattr(torch, dtype)  # torch 2.6 has no float8_e8m0fnu
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
CHUNK = 2**22  # bytes read before their checksum begins; one tensor may be gigabytes
RESERVED = "__metadata__"  # reserved by the format: no tensor can have this name


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFile:
    """Content of a safetensors file."""

    tensors: dict[str, Tensor]
    """Tensors on the CPU, each with its own memory, in the order they were written."""
    metadata: dict[str, str]
    """Free text by name, from the header."""
    stamp: FileStamp
    """Size and checksum of the file's bytes."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> FileStamp:
    """Write a new safetensors file and sync it to disk.

    Args:
        path: does not exist yet.
        tensors: contiguous, on the CPU, of types in `DTYPES`.
        metadata: free text by name.

    Returns:
        Size and checksum of what was written.

    Raises:
        OSError: the file cannot be written; a partial file is left.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # so that each starts aligned
    header: dict[str, Any] = {RESERVED: dict(metadata), **dict.fromkeys(tensors)}  # named in the order given
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return write_synced(path, [len(text).to_bytes(8, "little"), text, *(_as_bytes(tensor) for _, tensor in ordered)])


def read_tensors(path: Path) -> TensorFile:
    """Read a whole safetensors file, with the checksum of the bytes that became the tensors.

    Raises:
        OSError: the file cannot be read.
        CheckpointError: the file is not a complete safetensors file.

    Cost: one read, no copy; the checksum is computed while reading.
    """
    digest = hashlib.sha256()
    size = path.stat().st_size
    tensors: dict[str, Tensor] = {}
    with path.open("rb") as file, ThreadPoolExecutor(1) as hashing:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > size - 8:
            raise damaged(path, "it is shorter than its own header says")
        text = file.read(length)
        hashing.submit(digest.update, prefix + text)
        header, metadata = _parse_header(path, text)
        for name, entry in _entries_in_file_order(path, header, size - 8 - length):
            memory = torch.empty(entry.nbytes, dtype=torch.uint8, device="cpu")
            view = _as_bytes(memory)
            for start in range(0, entry.nbytes, CHUNK):
                piece = view[start : start + CHUNK]
                if cast("Any", file).readinto(piece) != len(piece):
                    raise damaged(path, f"it ends inside {name!r}")
                hashing.submit(digest.update, piece)
            tensors[name] = _view_as_tensor(path, memory, entry)
    in_order = {name: tensors[name] for name in header}
    return TensorFile(tensors=in_order, metadata=metadata, stamp=FileStamp(size=size, sha256=digest.hexdigest()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One tensor as the header describes it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int


def _parse_header(path: Path, text: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the header without its metadata, and the metadata."""
    try:
        header = dict(parse_json(text))
        return header, dict(header.pop(RESERVED, {}))
    except (ValueError, TypeError) as error:
        raise damaged(path, f"its header is not readable ({error})") from error


def _unknown_dtype(path: Path, name: str, dtype: str) -> CheckpointError:
    return CheckpointError(
        f"{path} holds '{name}' as {dtype}, which torch {torch.__version__} does not have.",
        why="It was written with a newer version of torch; no other type would be the same numbers.",
        fix="Read it with that version.",
    )


def _entries_in_file_order(path: Path, header: dict[str, Any], data_size: int) -> list[tuple[str, _Entry]]:
    """Return all tensors in the order of the file, which they must fill without gap or overlap."""
    entries: list[tuple[str, _Entry]] = []
    position = 0
    try:
        for name, described in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
            start, end = described["data_offsets"]
            if described["dtype"] in _TORCH_NAMES.keys() - DTYPES.keys():
                raise _unknown_dtype(path, name, _TORCH_NAMES[described["dtype"]])
            dtype, shape = DTYPES[described["dtype"]], tuple(described["shape"])
            sound = all(type(size) is int and size >= 0 for size in shape)
            if not sound or start != position or end - start != math.prod(shape) * dtype.itemsize:
                raise ValueError(name)
            entries.append((name, _Entry(dtype=dtype, shape=shape, nbytes=end - start)))
            position = end
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"its header makes no sense at {error}") from error
    if position != data_size:
        raise damaged(path, f"it holds {data_size} bytes of tensors, its header describes {position}")
    return entries


def _view_as_tensor(path: Path, memory: Tensor, entry: _Entry) -> Tensor:
    try:
        return memory.view(entry.dtype).reshape(entry.shape)
    except (RuntimeError, TypeError) as error:  # an empty tensor whose other sizes exceed torch's limit
        raise damaged(path, f"torch has no tensor of shape {entry.shape}") from error


def _as_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
