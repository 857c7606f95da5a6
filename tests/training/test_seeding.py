from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.training.checkpoint.state_tree import pack, unpack
from trueloop.training.seeding import (
    capture_generators,
    preserve_generators,
    restore_generators,
    seed_everything,
)


@pytest.fixture(autouse=True)
def _generators_as_before():
    with preserve_generators():
        yield


def draws() -> list[Any]:
    """Draw an odd number of values from each generator, so that cached normal numbers are part of the state."""
    return [
        [random.random() for _ in range(3)],
        random.gauss(0, 1),
        random.getrandbits(100),
        np.random.rand(3).tolist(),
        np.random.randn(3).tolist(),
        torch.rand(3).tolist(),
        torch.randn(17).tolist(),
        torch.randperm(9).tolist(),
        torch.nn.functional.dropout(torch.ones(20)).tolist(),
    ]


def test_the_same_seed_gives_the_same_numbers():
    seed_everything(5)
    first = draws()
    assert draws() != first
    seed_everything(5)
    assert draws() == first
    seed_everything(6)
    other = draws()
    assert all(mine != theirs for mine, theirs in zip(first, other, strict=True))


@pytest.mark.parametrize("drawn", [0, 1, 700])
def test_generators_continue_bitwise_after_saving_as_json(drawn: int):
    seed_everything(3)
    for _ in range(drawn):
        draws()
    packed, tensors = pack(capture_generators())
    text, copies = json.dumps(packed), {name: tensor.clone() for name, tensor in tensors.items()}
    expected = [draws(), draws()]
    seed_everything(99)
    restore_generators(unpack(json.loads(text), copies))
    assert [draws(), draws()] == expected


def test_a_captured_state_does_not_change():
    state = capture_generators()
    expected = draws()
    for _ in range(2):
        restore_generators(state)
        assert draws() == expected


def test_generators_are_preserved_also_after_an_error():
    seed_everything(1)
    expected = draws()
    seed_everything(1)
    with preserve_generators():
        draws()
        seed_everything(77)
    with pytest.raises(ZeroDivisionError), preserve_generators():
        draws()
        raise ZeroDivisionError
    assert draws() == expected


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_the_smallest_and_largest_seed_are_valid(seed: int):
    seed_everything(seed)
    assert torch.initial_seed() == seed


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, "1", True, None])
def test_invalid_seeds_are_refused_and_nothing_is_seeded(seed: Any):
    seed_everything(4)
    expected = draws()
    seed_everything(4)
    with pytest.raises(InvalidConfig, match=f"seed is {seed!r}"):
        seed_everything(seed)
    assert draws() == expected


def test_deterministic_mode_applies_to_the_process():
    script = (
        "import os, torch\n"
        "from trueloop.training.seeding import seed_everything, use_deterministic_kernels\n"
        "state = lambda: (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic,"
        " torch.backends.cudnn.benchmark, os.environ.get('CUBLAS_WORKSPACE_CONFIG'))\n"
        "torch.backends.cudnn.benchmark = True\n"
        "seed_everything(0)\nprint(state())\n"
        "use_deterministic_kernels()\nprint(state())\n"
        "seed_everything(0)\nprint(state())\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"}
    command = [sys.executable, "-c", script]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert completed.stdout.splitlines() == [
        "(False, False, True, None)",
        "(True, True, False, ':4096:8')",
        "(True, True, False, ':4096:8')",
    ]


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is such a device")
@pytest.mark.parametrize(("name", "value"), [("cuda", [torch.zeros(16, dtype=torch.uint8)]), ("mps", torch.zeros(9))])
def test_states_of_missing_devices_are_refused_without_changes(name: str, value: Any):
    state = capture_generators() | {name: value}
    seed_everything(4)
    expected = draws()
    seed_everything(4)
    with pytest.raises(CheckpointError, match="this machine has"):
        restore_generators(state)
    assert draws() == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_generators_continue_bitwise():
    seed_everything(2)
    torch.rand(3, device="cuda")
    state = capture_generators()
    assert len(state["cuda"]) == torch.cuda.device_count()
    expected = torch.rand(100, device="cuda").tolist()
    restore_generators(state)
    assert torch.rand(100, device="cuda").tolist() == expected
    restore_generators(state)
    with preserve_generators():
        torch.rand(7, device="cuda")
    assert torch.rand(100, device="cuda").tolist() == expected
