"""Write and read safetensors files: eight bytes of header length, a JSON header, then the tensors' bytes.

This module does not use the safetensors library, for four reasons: checksums are computed from the bytes in memory, in
the same pass; a full disk raises an OSError with its number; no temporary file is left; and each tensor that is read
has its own memory with torch's alignment. The tests compare every file with the library.

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
from trueloop.training.checkpoint.durable_files import FileStamp, damage_error, write_synced

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
CHUNK = 2**22  # number of bytes read before their checksum is computed in the background
RESERVED = "__metadata__"  # reserved by the format: no tensor can have this name


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFile:
    """Content of a safetensors file."""

    tensors: dict[str, Tensor]
    """Tensors on the CPU, each with its own memory, in the order in which they were written."""
    metadata: dict[str, str]
    """Texts by name, from the header."""
    stamp: FileStamp
    """Size and checksum of the file's bytes."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> FileStamp:
    """Write a new safetensors file and sync it to disk.

    Args:
        path: path of the file, which must not exist.
        tensors: tensors by name; contiguous, on the CPU, of types in `DTYPES`.
        metadata: texts by name for the header.

    Returns:
        Size and checksum of the file.

    Raises:
        OSError: the file cannot be written; a partial file is left.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # so that each tensor starts aligned
    header: dict[str, Any] = {RESERVED: dict(metadata), **dict.fromkeys(tensors)}  # in the order of ``tensors``
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    return write_synced(path, [len(encoded).to_bytes(8, "little"), encoded, *(_as_bytes(t) for _, t in ordered)])


def read_tensors(path: Path) -> TensorFile:
    """Read a safetensors file completely, and compute the checksum of its bytes.

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
            raise damage_error(path, "it is shorter than its header says")
        encoded = file.read(length)
        hashing.submit(digest.update, prefix + encoded)
        header, metadata = _parse_header(path, encoded)
        for name, entry in _entries_in_file_order(path, header, size - 8 - length):
            memory = torch.empty(entry.nbytes, dtype=torch.uint8, device="cpu")
            view = _as_bytes(memory)
            for start in range(0, entry.nbytes, CHUNK):
                piece = view[start : start + CHUNK]
                if cast("Any", file).readinto(piece) != len(piece):
                    raise damage_error(path, f"it ends inside {name!r}")
                hashing.submit(digest.update, piece)
            tensors[name] = _view_as_tensor(path, memory, entry)
    in_order = {name: tensors[name] for name in header}
    return TensorFile(tensors=in_order, metadata=metadata, stamp=FileStamp(size=size, sha256=digest.hexdigest()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Type, shape and size of one tensor, from the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int


def _parse_header(path: Path, encoded: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the header without its metadata, and the metadata."""
    try:
        header = dict(parse_json(encoded))
        return header, dict(header.pop(RESERVED, {}))
    except (ValueError, TypeError) as error:
        raise damage_error(path, f"its header is not readable ({error})") from error


def _unknown_dtype(path: Path, name: str, dtype: str) -> CheckpointError:
    return CheckpointError(
        f"In {path}, '{name}' has the type {dtype}, which torch {torch.__version__} does not have.",
        why="The file was written with a newer version of torch; another type would change the numbers.",
        fix="Read it with that version of torch.",
    )


def _entries_in_file_order(path: Path, header: dict[str, Any], data_size: int) -> list[tuple[str, _Entry]]:
    """Return all tensors in the order of the file; raise if there are gaps or overlaps between them."""
    entries: list[tuple[str, _Entry]] = []
    position = 0
    try:
        for name, description in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
            start, end = description["data_offsets"]
            if description["dtype"] in _TORCH_NAMES.keys() - DTYPES.keys():
                raise _unknown_dtype(path, name, _TORCH_NAMES[description["dtype"]])
            dtype, shape = DTYPES[description["dtype"]], tuple(description["shape"])
            valid = all(type(size) is int and size >= 0 for size in shape)
            if not valid or start != position or end - start != math.prod(shape) * dtype.itemsize:
                raise ValueError(name)
            entries.append((name, _Entry(dtype=dtype, shape=shape, nbytes=end - start)))
            position = end
    except (KeyError, TypeError, ValueError) as error:
        raise damage_error(path, f"its header is invalid at {error}") from error
    if position != data_size:
        raise damage_error(path, f"it has {data_size} bytes of tensors, but its header describes {position}")
    return entries


def _view_as_tensor(path: Path, memory: Tensor, entry: _Entry) -> Tensor:
    try:
        return memory.view(entry.dtype).reshape(entry.shape)
    except (RuntimeError, TypeError) as error:  # an empty tensor whose other sizes exceed torch's limit
        raise damage_error(path, f"torch has no tensor of shape {entry.shape}") from error


def _as_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor without copying them."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
