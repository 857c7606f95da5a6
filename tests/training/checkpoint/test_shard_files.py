"""Checksums and errors of shard files. `tests/distributed/test_shards.py` has the tests with several processes."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.training.checkpoint import shard_files
from trueloop.training.checkpoint.durable_files import FileStamp
from trueloop.training.checkpoint.manifest import Checkpoint, write_folder
from trueloop.training.checkpoint.shard_files import SHARD, read_full_tensors, safetensors_storage
from trueloop.training.checkpoint.state_tree import ShardReference
from trueloop.training.checkpoint.tensor_file import write_tensors

NAME = "shard-00001-model-00001-of-00001.safetensors"


def test_size_and_checksum_are_computed_while_writing(tmp_path: Path):
    files = shard_files._HashingFileSystem()
    content = bytes(range(256)) * 5000
    with files.create_stream(tmp_path / "a", "wb") as stream:
        stream.write(content[:7])
        stream.flush()
        stream.write(memoryview(content)[7:])
    stamp = files.stamps()["a"]
    assert (tmp_path / "a").read_bytes() == content
    assert (stamp.size, stamp.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_checkpoint_exception_of_torch_is_converted():
    cause = ValueError("Size mismatch between saved torch.Size([5]) and current: torch.Size([6]) for w")
    with (
        pytest.raises(CheckpointError, match=r"^It failed by process 3: Size mismatch"),
        shard_files._translate_errors("It failed"),
    ):
        raise CheckpointException("", {3: (cause, None)})  # pyright: ignore[reportArgumentType]
    with pytest.raises(OSError, match="full"), shard_files._translate_errors("It failed"):
        raise CheckpointException("", {0: (OSError(28, "full"), None)})  # pyright: ignore[reportArgumentType]


def test_a_torch_without_distributed_safetensors_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.distributed.checkpoint.hf_storage", None)
    with pytest.raises(InvalidConfig, match="has no distributed checkpoints in safetensors format"):
        safetensors_storage()


@pytest.mark.parametrize(
    "places",
    [
        "no JSON",
        "{}",
        '{"w": {"saved_offsets": [9]}}',
        '{"w": {"saved_offsets": [0, 0]}}',
        '{"w": {"saved_offsets": "0"}}',
    ],
)
def test_invalid_shards_are_damaged(tmp_path: Path, places: str):
    assert SHARD.fullmatch(NAME)

    def write_extra(into: Path) -> dict[str, FileStamp]:
        return {NAME: write_tensors(into / NAME, {"w": torch.ones(2)}, {"DCP_SHARDING_INFO": places})}

    write_folder(tmp_path, {}, Checkpoint(path=tmp_path, update=1, epoch=1, metrics={}), write_extra)
    with pytest.raises(CheckpointError, match="is damaged: its shards"):
        read_full_tensors(tmp_path, {"w": ShardReference(name="w", shape=(2,), dtype=torch.float32)})


def test_another_dtype_is_not_converted(tmp_path: Path):
    def write_extra(into: Path) -> dict[str, FileStamp]:
        return {
            NAME: write_tensors(
                into / NAME, {"w": torch.ones(2)}, {"DCP_SHARDING_INFO": '{"w": {"saved_offsets": [0]}}'}
            )
        }

    write_folder(tmp_path, {}, Checkpoint(path=tmp_path, update=1, epoch=1, metrics={}), write_extra)
    assert read_full_tensors(tmp_path, {"w": ShardReference(name="w", shape=(2,), dtype=torch.float32)})[
        "w"
    ].tolist() == [1, 1]
    with pytest.raises(CheckpointError, match=r"float32 instead of torch\.float64"):
        read_full_tensors(tmp_path, {"w": ShardReference(name="w", shape=(2,), dtype=torch.float64)})
