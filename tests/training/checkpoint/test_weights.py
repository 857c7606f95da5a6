from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

from trueloop.core.errors import CheckpointError, InvalidModel
from trueloop.training.checkpoint.weights import load_weights, save_weights


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_weights_are_restored_bitwise_and_in_order(tmp_path: Path):
    model = network()
    save_weights(model, tmp_path / "final" / "model.safetensors")
    weights = load_weights(tmp_path / "final" / "model.safetensors")
    assert list(weights) == list(model.state_dict())
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    other = network(1)
    other.load_state_dict(load_weights(tmp_path / "final" / "model.safetensors"))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in other.state_dict().items())


def test_other_tools_load_the_file(tmp_path: Path):
    model, other = network(), network(1)
    save_weights(model, tmp_path / "m")
    assert os.listdir(tmp_path) == ["m"]
    expected = safetensors.torch.load_file(tmp_path / "m")
    assert all(torch.equal(expected[name], value) for name, value in model.state_dict().items())
    other.load_state_dict(expected)
    tied, blank = Tied(), Tied()
    save_weights(tied, tmp_path / "tied")
    assert safetensors.torch.load_model(blank, tmp_path / "tied") == (set(), [])
    assert torch.equal(blank.head.weight, tied.head.weight)


def test_tied_tensors_are_stored_once(tmp_path: Path):
    tied = Tied()
    save_weights(tied.state_dict(), tmp_path / "m")
    with safetensors.safe_open(tmp_path / "m", "pt") as file:
        assert list(file.keys()) == ["embed.weight"]
        assert json.loads(file.metadata()["aliases"]) == {"head.weight": "embed.weight"}
    weights = load_weights(tmp_path / "m")
    assert weights["head.weight"] is weights["embed.weight"]
    blank = Tied()
    blank.load_state_dict(load_weights(tmp_path / "m"))
    assert torch.equal(blank.embed.weight, tied.embed.weight)


def test_overlapping_views_are_each_stored_in_full(tmp_path: Path):
    base = torch.arange(6.0)
    save_weights({"base": base, "half": base[:3], "turned": base.reshape(2, 3).T, "none": base[:0]}, tmp_path / "m")
    weights = load_weights(tmp_path / "m")
    assert weights["turned"].tolist() == base.reshape(2, 3).T.tolist()
    weights["base"].zero_()
    assert weights["half"].tolist() == [0, 1, 2]
    assert weights["none"].shape == (0,)


def test_channels_last_weights_keep_the_models_layout(tmp_path: Path):
    model = network().to(memory_format=torch.channels_last)
    save_weights(model, tmp_path / "m")
    other = network(1).to(memory_format=torch.channels_last)
    other.load_state_dict(load_weights(tmp_path / "m"))
    assert torch.equal(other[0].weight, model[0].weight)
    assert other[0].weight.stride() == model[0].weight.stride()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 1}, "of type dict"),
        (torch.eye(2).to_sparse(), "torch.sparse_coo"),
        (torch.empty(2, device="meta"), "on meta"),
        (torch.zeros(2, dtype=torch.complex128), "torch.complex128"),
    ],
)
def test_entries_that_safetensors_cannot_store_are_refused(tmp_path: Path, value: object, message: str):
    with pytest.raises(InvalidModel, match="'x' of the state_dict is") as caught:
        save_weights({"x": value}, tmp_path / "m")
    assert message in caught.value.what
    assert os.listdir(tmp_path) == []


def test_a_missing_and_a_damaged_file_are_errors(tmp_path: Path):
    with pytest.raises(CheckpointError, match="No such file"):
        load_weights(tmp_path / "m")
    (tmp_path / "m").write_bytes(b"abc")
    with pytest.raises(CheckpointError, match="is damaged"):
        load_weights(tmp_path / "m")
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "m", metadata={"aliases": '{"b": "absent"}'})
    with pytest.raises(CheckpointError, match="map of tied tensors"):
        load_weights(tmp_path / "m")


def test_a_file_at_the_path_of_the_folder_is_an_error(tmp_path: Path):
    (tmp_path / "final").write_text("mine")
    with pytest.raises(CheckpointError, match="could not be written"):
        save_weights(network(), tmp_path / "final" / "m")
    assert (tmp_path / "final").read_text() == "mine"


def test_a_failed_write_keeps_the_old_file(tmp_path: Path):
    save_weights({"a": torch.ones(3)}, tmp_path / "m")
    script = (
        "import resource, signal, sys, pathlib, torch\n"
        "from trueloop.training.checkpoint.weights import save_weights\n"
        "from trueloop.core.errors import CheckpointError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "try:\n    save_weights({'a': torch.zeros(10_000)}, pathlib.Path(sys.argv[1]))\n"
        "except CheckpointError as error:\n    print(error)\n"
    )
    assert resource.RLIMIT_FSIZE is not None
    completed = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "m"], capture_output=True, text=True, check=True
    )
    assert "could not be written: File too large" in completed.stdout
    assert os.listdir(tmp_path) == ["m"]
    assert load_weights(tmp_path / "m")["a"].tolist() == [1, 1, 1]
