from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from trueloop.core.errors import InvalidConfig
from trueloop.training.memory import device as module
from trueloop.training.memory.device import move_to_device, resolve_device

CPU = torch.device("cpu")
META = torch.device("meta")  # another device that every machine has


class Pair(NamedTuple):
    inputs: Tensor
    name: str


@dataclass(frozen=True, slots=True)
class Frozen:
    inputs: Tensor
    name: str
    total: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.inputs.sum())


@dataclass
class Open:
    inputs: list[Tensor]


class Graph:
    def __init__(self, nodes: Tensor) -> None:
        self.nodes = nodes

    def to(self, device: torch.device) -> Graph:
        return self if self.nodes.device == device else Graph(self.nodes.to(device))


def one() -> Tensor:
    return torch.ones(2)


BATCHES = [
    one(),
    (one(), one()),
    [one(), "text", 3],
    {"a": one(), "b": {"c": [one()]}},
    OrderedDict(a=one()),
    defaultdict(list, {"a": one()}),
    UserDict(a=one()),
    Pair(one(), "n"),
    Frozen(one(), "n"),
    Open([one()]),
    Graph(one()),
    pack_sequence([torch.ones(3), torch.ones(1)]),
    torch.max(torch.ones(2, 2), dim=0),
    (),
    [],
    {},
    None,
    "text",
    3,
    b"",
    Open,
    torch.Size([2]),
]


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: type(batch).__name__)
def test_a_batch_already_on_the_device_is_returned_unchanged(batch: Any):
    assert move_to_device(batch, CPU) is batch


def test_nested_tensors_are_moved_and_the_batch_is_not_modified():
    batch = {"a": one(), "b": [one(), (one(), "x")], "n": 1}
    moved = move_to_device(batch, META)
    assert moved["a"].device == moved["b"][0].device == moved["b"][1][0].device == META
    assert (moved["b"][1][1], moved["n"]) == ("x", 1)
    assert (type(moved), type(moved["b"]), type(moved["b"][1])) == (dict, list, tuple)
    assert batch["a"].device == batch["b"][0].device == batch["b"][1][0].device == CPU


def test_other_objects_are_shared():
    saved = [1, 2]
    moved = move_to_device((one(), saved), META)
    assert moved[1] is saved


def test_named_tuples_and_dataclasses_keep_their_type():
    pair, frozen, opened = (
        move_to_device(Pair(one(), "n"), META),
        move_to_device(Frozen(one(), "n"), META),
        move_to_device(Open([one()]), META),
    )
    assert (type(pair), pair.inputs.device, pair.name) == (Pair, META, "n")
    assert (type(frozen), frozen.inputs.device, frozen.total.device, frozen.name) == (Frozen, META, META, "n")
    assert (type(opened), opened.inputs[0].device) == (Open, META)


def test_mappings_keep_their_type_and_extras():
    moved = move_to_device(defaultdict(list, {"a": one()}), META)
    assert (type(moved), moved.default_factory, moved["a"].device) == (defaultdict, list, META)
    user = move_to_device(UserDict(a=one()), META)
    assert (type(user), user["a"].device) == (UserDict, META)
    assert list(move_to_device(OrderedDict(b=one(), a=one()), META)) == ["b", "a"]


def test_objects_with_to_are_moved_by_it():
    assert move_to_device([Graph(one())], META)[0].nodes.device == META
    packed = move_to_device(pack_sequence([torch.ones(3), torch.ones(1)]), META)
    assert (type(packed), packed.data.device, packed.batch_sizes.device) == (PackedSequence, META, CPU)


def test_named_tuples_of_torch_are_moved():
    moved = move_to_device(torch.max(torch.ones(2, 2), dim=0), META)
    assert (moved.values.device, moved.indices.device) == (META, META)


def machine(monkeypatch: pytest.MonkeyPatch, *, cuda: int, mps: bool, current: int = 0) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("name", "cuda", "mps", "expected"),
    [
        ("auto", 0, False, "cpu"),
        ("auto", 0, True, "mps:0"),
        ("auto", 2, True, "cuda:0"),
        ("cpu", 2, True, "cpu"),
        ("cuda", 2, False, "cuda:0"),
        ("cuda:1", 2, False, "cuda:1"),
        ("mps", 0, True, "mps:0"),
    ],
)
def test_an_existing_device(monkeypatch: pytest.MonkeyPatch, name: str, cuda: int, mps: bool, expected: str):
    machine(monkeypatch, cuda=cuda, mps=mps)
    assert resolve_device(name) == torch.device(expected)


@pytest.mark.parametrize("name", ["cuda", "auto"])
def test_cuda_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch, name: str):
    machine(monkeypatch, cuda=3, mps=False, current=2)
    assert resolve_device(name) == torch.device("cuda", 2)


@pytest.mark.parametrize(
    ("name", "cuda", "mps", "present"),
    [
        ("cuda", 0, False, "cpu."),
        ("cuda:2", 2, False, "cuda:0, cuda:1, cpu."),
        ("cuda:x", 1, False, "cuda:0, cpu."),
        ("mps", 1, False, "cuda:0, cpu."),
        ("gpu", 0, True, "cpu, mps."),
        ("", 0, False, "cpu."),
    ],
)
def test_a_missing_device_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, cuda: int, mps: bool, present: str):
    machine(monkeypatch, cuda=cuda, mps=mps)
    with pytest.raises(InvalidConfig) as caught:
        resolve_device(name)
    assert caught.value.what == f"This machine has no device {name!r}."
    assert f"It has: {present}" in caught.value.why


def test_a_build_without_cuda_is_reported(monkeypatch: pytest.MonkeyPatch):
    machine(monkeypatch, cuda=0, mps=False)
    monkeypatch.setattr(module.torch.backends, "cuda", SimpleNamespace(is_built=lambda: False))
    with pytest.raises(InvalidConfig, match="This build of torch has no CUDA"):
        resolve_device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_batch_reaches_the_gpu_from_pinned_memory():
    device = resolve_device("cuda")
    moved = move_to_device({"a": torch.arange(5).pin_memory(), "b": torch.arange(5)}, device)
    assert moved["a"].device == moved["b"].device == device
    assert moved["a"].tolist() == moved["b"].tolist() == [0, 1, 2, 3, 4]
    assert move_to_device(moved, device) is moved
