"""Sharded checkpoints on a single process: names in a tree, and reading all shards.

`tests/distributed/test_shards.py` has the tests with several processes.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from trueloop.core.errors import CheckpointError
from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.checkpoint.sharded import (
    check_folder_shared,
    extract_shards,
    gather_full_tensors,
    load_full_state,
    load_on_all_ranks,
    save_on_all_ranks,
)
from trueloop.training.checkpoint.state_tree import ShardReference
from trueloop.training.checkpoint.tensor_file import write_tensors
from trueloop.training.distributed.parallel import SingleProcess
from trueloop.training.distributed.processes import SINGLE_PROCESS
from trueloop.training.objective import as_objective

WEIGHT = torch.arange(15.0, dtype=torch.float64).reshape(5, 3)
NAMED = ShardReference(name="model.w", shape=(5, 3), dtype=torch.float64)
STATE: dict[str, Any] = {
    "model": OrderedDict(w=NAMED, tied=NAMED, b=torch.ones(2)),
    "optimizer": {
        "state": {0: {"exp_avg": ShardReference(name="optimizer.m", shape=(2,), dtype=torch.float32)}},
        "lr": (1,),
    },
}


def name_of(number: int) -> str:
    return f"shard-{number:05d}-model-00001-of-00001.safetensors"


def write_shards(folder: Path, parts: list[dict[str, tuple[list[int], torch.Tensor]]]) -> dict[str, Any]:
    """Write shards as torch does: each has the offsets of its parts."""
    stamps = {}
    for number, held in enumerate(parts, start=1):
        places = json.dumps({name: {"saved_offsets": offsets} for name, (offsets, _) in held.items()})
        tensors = {name: tensor.contiguous() for name, (_, tensor) in held.items()}
        stamps[name_of(number)] = write_tensors(
            folder / name_of(number), tensors, {"DCP_SHARDING_INFO": places, "format": "pt"}
        )
    return stamps


def saved(root: Path, parts: list[dict[str, tuple[list[int], torch.Tensor]]]) -> CheckpointFolder:
    folder = CheckpointFolder(root)
    folder.write(shards_packed(), update=4, epoch=1, metrics={}, write_extra=lambda into: write_shards(into, parts))
    return folder


def shards_packed() -> Any:
    from trueloop.training.checkpoint.checkpoints import pack_state

    return pack_state(STATE)


THREE = [
    {"model.w": ([0, 0], WEIGHT[:2]), "optimizer.m": ([0], torch.tensor([7.0]))},
    {"model.w": ([2, 0], WEIGHT[2:4]), "optimizer.m": ([1], torch.tensor([8.0]))},
    {"model.w": ([4, 0], WEIGHT[4:]), "optimizer.m": ([2], torch.empty(0))},
]


def test_a_tree_without_sharded_tensors_is_unchanged():
    state = {"model": OrderedDict(w=WEIGHT), "more": [1, (2, "x")]}
    state["model"]._metadata = {"": {"version": 2}}
    apart, sharded = extract_shards(state)
    assert sharded == {}
    assert apart == state
    assert apart["model"]._metadata == {"": {"version": 2}}
    assert apart["model"]["w"] is WEIGHT


def test_one_process_reads_all_shards(tmp_path: Path):
    folder = saved(tmp_path, THREE)
    latest = folder.load_latest()
    assert latest is not None
    checkpoint, state = latest
    assert state["model"]["w"] == NAMED
    assert sorted(path.name for path in checkpoint.path.glob("shard-*")) == [name_of(number) for number in (1, 2, 3)]
    for read in (
        load_full_state(checkpoint, state),
        load_on_all_ranks(latest, SingleProcess(torch.nn.Linear(1, 1), as_objective(len))),
    ):
        assert read is not None
        assert torch.equal(read["model"]["w"], WEIGHT)
        assert read["model"]["tied"] is read["model"]["w"]
        assert read["optimizer"]["state"][0]["exp_avg"].tolist() == [7.0, 8.0]
        assert read["optimizer"]["lr"] == (1,)
    assert state["model"]["w"] == NAMED  # the loaded state is not changed


def test_only_requested_tensors_are_read(tmp_path: Path):
    latest = saved(tmp_path, THREE).load_latest()
    assert latest is not None
    wanted = load_full_state(latest[0], {"model": latest[1]["model"]})
    assert list(wanted) == ["model"]
    assert torch.equal(wanted["model"]["tied"], WEIGHT)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_changed_shard_is_reported_and_skipped(tmp_path: Path, number: int):
    folder = saved(tmp_path, THREE)
    file = tmp_path / "update-000000004" / name_of(number)
    content = file.read_bytes()
    file.write_bytes(content.replace(b"saved", b"svaed"))
    assert folder.load_latest() is None
    assert f"{name_of(number)} does not match its checksum" in folder.problems()[0]


def test_a_missing_shard_is_reported(tmp_path: Path):
    folder = saved(tmp_path, THREE)
    (tmp_path / "update-000000004" / name_of(2)).unlink()
    assert folder.checkpoints() == []
    assert f"{name_of(2)} is missing" in folder.problems()[0]


def test_incomplete_shards_are_refused(tmp_path: Path):
    latest = saved(tmp_path, [THREE[0], THREE[2]]).load_latest()
    assert latest is not None
    with pytest.raises(CheckpointError, match=r"contain only a part of 'model\.w'"):
        load_full_state(*latest)


def test_a_failed_shard_leaves_no_checkpoint(tmp_path: Path):
    folder = CheckpointFolder(tmp_path)

    def torn(into: Path) -> Any:
        (into / name_of(1)).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left"):
        folder.write(shards_packed(), update=4, epoch=1, metrics={}, write_extra=torn)
    assert list(tmp_path.iterdir()) == []


def test_without_shards_saving_is_unchanged():
    called: list[Any] = []
    save_on_all_ranks(lambda *, write_extra: called.append(write_extra), {}, SINGLE_PROCESS)
    save_on_all_ranks(None, {}, SINGLE_PROCESS)
    assert called == [None]
    alone = SingleProcess(torch.nn.Linear(1, 1), as_objective(len))
    assert load_on_all_ranks(None, alone) is None
    check_folder_shared(None, alone)  # one process sees its own folder
    tied = {"a": WEIGHT, "b": WEIGHT}
    assert gather_full_tensors(tied, SINGLE_PROCESS)["b"] is WEIGHT
