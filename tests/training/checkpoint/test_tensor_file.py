from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trueloop.core.errors import CheckpointError
from trueloop.training.checkpoint import tensor_file
from trueloop.training.checkpoint.tensor_file import DTYPES, read_tensors, write_tensors


def bits(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], list[int]]:
    return tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).tolist()


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], start: int = 0) -> Tensor:
    memory = torch.arange(start, start + math.prod(shape) * dtype.itemsize).to(torch.uint8)
    return (memory % 2 if dtype is torch.bool else memory).to(torch.uint8).view(dtype).reshape(shape)


contents = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"])).filter(lambda name: name != "__metadata__"),
    st.builds(
        tensor_of,
        st.sampled_from(list(DTYPES.values())),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        st.integers(0, 255),
    ),
    max_size=6,
)


@given(contents)
@settings(max_examples=150, deadline=None)
def test_the_safetensors_library_reads_the_same_tensors(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Tensor]
):
    path = tmp_path_factory.mktemp("t") / "a.safetensors"
    stamp = write_tensors(path, tensors, {"format": "pt", "ü": "x"})
    reference, actual = safetensors.torch.load_file(path), read_tensors(path)
    expected = {name: bits(tensor) for name, tensor in tensors.items()}
    assert {name: bits(tensor) for name, tensor in reference.items()} == expected
    assert {name: bits(tensor) for name, tensor in actual.tensors.items()} == expected
    assert list(actual.tensors) == list(tensors)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == actual.metadata == {"format": "pt", "ü": "x"}
    assert stamp == actual.stamp
    assert stamp.size == path.stat().st_size
    assert stamp.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@given(contents)
@settings(max_examples=100, deadline=None)
def test_files_of_the_safetensors_library_are_read(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Tensor]
):
    path = tmp_path_factory.mktemp("t") / "a.safetensors"
    safetensors.torch.save_file(tensors, path)
    assert {n: bits(t) for n, t in read_tensors(path).tensors.items()} == {n: bits(t) for n, t in tensors.items()}


def test_every_tensor_is_aligned_and_has_its_own_memory(tmp_path: Path):
    tensors = {"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(5, dtype=torch.float64), "c": torch.ones(1)}
    write_tensors(tmp_path / "a", tensors, {})
    read = read_tensors(tmp_path / "a").tensors
    assert {tensor.data_ptr() % 64 for tensor in read.values()} == {0}
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in read.values())


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 17])
def test_a_tensor_is_read_in_any_number_of_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int):
    monkeypatch.setattr(tensor_file, "CHUNK", 8)
    tensors = {"a": torch.arange(size, dtype=torch.uint8), "b": torch.arange(size, dtype=torch.int64)}
    stamp = write_tensors(tmp_path / "a", tensors, {})
    read = read_tensors(tmp_path / "a")
    assert read.stamp == stamp
    assert stamp.sha256 == hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest()
    assert all(torch.equal(read.tensors[name], tensors[name]) for name in tensors)


def test_every_tensor_starts_aligned_in_the_file(tmp_path: Path):
    write_tensors(tmp_path / "a", {"a": torch.ones(3, dtype=torch.int8), "b": torch.ones(5).double()}, {"odd": "é"})
    content = (tmp_path / "a").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert list(header) == ["__metadata__", "a", "b"]
    assert (header["a"]["data_offsets"], header["b"]["data_offsets"]) == ([40, 43], [0, 40])


def test_an_existing_file_is_never_written_into(tmp_path: Path):
    (tmp_path / "a").write_text("x")
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "a", {}, {})
    assert (tmp_path / "a").read_text() == "x"


def test_truncation_anywhere_is_detected(tmp_path: Path):
    path = tmp_path / "a"
    write_tensors(path, {"a": torch.arange(20), "b": torch.arange(3, dtype=torch.int8)}, {})
    full = path.read_bytes()
    for size in range(len(full)):
        path.write_bytes(full[:size])
        with pytest.raises(CheckpointError, match="is damaged"):
            read_tensors(path)
    path.write_bytes(full + b"\0")
    with pytest.raises(CheckpointError, match="has 164 bytes of tensors, but its header describes 163"):
        read_tensors(path)


def test_a_flipped_bit_is_detected_or_changes_the_checksum(tmp_path: Path):
    path = tmp_path / "a"
    stamp = write_tensors(path, {"a": torch.arange(4), "b": torch.arange(3, dtype=torch.int8)}, {"format": "pt"})
    full = path.read_bytes()
    for position in range(len(full)):
        for bit in range(8):
            path.write_bytes(full[:position] + bytes([full[position] ^ 1 << bit]) + full[position + 1 :])
            try:
                assert read_tensors(path).stamp != stamp
            except CheckpointError:
                continue


def header_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str, shape: list[Any], start: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[1]",
        b"[" * 100_000,
        b"\xff\xfe",
        {"a": 3},
        {"a": {}},
        {"__metadata__": 3},
        {"a": entry("F32", [2], 0, 4)},
        {"a": entry("F99", [2], 0, 8)},
        {"a": entry("F32", [-2], 0, -8)},
        {"a": entry("F32", [2.0], 0, 8)},
        {"a": entry("BOOL", [True] * 3, 0, 1)},
        {"a": entry("F32", [2**60], 0, 2**62)},
        {"a": entry("F32", [0, 2**70], 0, 0)},
        {"a": entry("F32", [2], "0", 8)},
        {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 0, 8)},
        {"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)},
    ],
    ids=lambda header: repr(header)[:40],
)
@pytest.mark.parametrize("data", [b"", b"\0" * 8])
def test_an_invalid_header_is_damage(tmp_path: Path, header: Any, data: bytes):
    with pytest.raises(CheckpointError, match="is damaged"):
        read_tensors(header_file(tmp_path / "a", header, data))


def test_a_header_longer_than_the_file_allocates_no_memory(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(CheckpointError, match="shorter than its header says"):
        read_tensors(tmp_path / "a")


def test_a_pickle_is_not_a_tensor_file(tmp_path: Path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "a")
    with pytest.raises(CheckpointError, match="is damaged"):
        read_tensors(tmp_path / "a")


def test_a_dtype_that_this_torch_lacks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a"
    write_tensors(path, {"scale": torch.arange(3, dtype=torch.int16)}, {})
    monkeypatch.delitem(DTYPES, "I16")
    with pytest.raises(CheckpointError, match=r"'scale' has the type int16, which torch .* does not have"):
        read_tensors(path)
