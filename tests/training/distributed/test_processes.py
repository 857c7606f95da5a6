"""The GPU of each process."""

from __future__ import annotations

import pytest
import torch

from trueloop.core.errors import InvalidConfig
from trueloop.training.distributed import processes
from trueloop.training.distributed.launcher_env import LaunchInfo
from trueloop.training.distributed.processes import Processes, local_device


@pytest.fixture
def choose_device(monkeypatch):
    """Return a function of (local rank, visible GPUs) that returns the result of `local_device`."""
    chosen = []

    def choose(local_rank: int, gpus: int, name: str = "auto") -> str:
        info = LaunchInfo(
            rank=local_rank, size=4, local_rank=local_rank, local_size=4, node=0, nodes=1, address="localhost", port=1,
            launcher="slurm",
        )  # fmt: skip
        monkeypatch.setattr(processes, "read_launch_info", lambda: info)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
        device = local_device(name)
        assert chosen[-1:] == ([int(device[5:])] if device.startswith("cuda:") else [])
        return device

    return choose


def test_each_process_has_the_gpu_of_its_local_rank(choose_device):
    assert [choose_device(rank, 4) for rank in range(4)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_process_that_sees_one_gpu_uses_it(choose_device, name):
    assert [choose_device(rank, 1, name) for rank in range(4)] == ["cuda:0"] * 4


def test_too_few_gpus_are_refused(choose_device):
    with pytest.raises(InvalidConfig, match="Process 3 of 4 on this machine has no GPU: there are only 2 GPUs"):
        choose_device(3, 2)


def test_without_a_gpu_the_name_is_returned(choose_device):
    assert choose_device(1, 0) == "auto"


class ProcessDouble(Processes):
    """A double for the second of some processes, with the objects that each of them sends."""

    def __init__(self, said: list[str]) -> None:
        super().__init__(1, len(said), torch.device("cuda", 0))
        self.said = said

    def all_gather_object(self, thing):
        assert thing == self.said[1]
        return self.said


def test_processes_on_one_gpu_are_refused():
    processes._refuse_shared_gpu(ProcessDouble(["GPU-a", "GPU-b", "GPU-c"]), "GPU-b")
    with pytest.raises(InvalidConfig, match="Processes 0 and 2 share one GPU: GPU-a"):
        processes._refuse_shared_gpu(ProcessDouble(["GPU-a", "GPU-b", "GPU-a"]), "GPU-b")
