"""Variables of real launchers are read, other ones ignored, and incomplete ones refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.training.distributed.launcher_env import LaunchInfo, first_host, read_launch_info, tasks_per_node

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "host-a",
    "MASTER_PORT": "40001",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SRUN = {  # as srun of SLURM sets them in a task
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "node[007-010]",
    "SLURM_NTASKS": "7",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3",
}
PODS = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "WORLD_SIZE": "3", "MASTER_ADDR": "train-0.train"}


def test_torchrun():
    assert read_launch_info(TORCHRUN) == LaunchInfo(
        rank=5, size=8, local_rank=1, local_size=4, node=1, nodes=2, address="host-a", port=40001, restarts=2,
        launcher="torchrun",
    )  # fmt: skip


def test_torchrun_with_one_process_has_launch_info():
    alone = {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    result = read_launch_info({**alone, "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"})
    assert result is not None
    assert (result.size, result.launcher) == (1, "torchrun")


def test_torchrun_inside_srun_is_torchrun():
    assert read_launch_info({**SRUN, **TORCHRUN}) == read_launch_info(TORCHRUN)


@pytest.mark.slow(reason="starts torchrun")
def test_variables_set_by_a_real_torchrun():
    script = (
        "import json, dataclasses; from trueloop.training.distributed.launcher_env import read_launch_info;"
        "print(json.dumps(dataclasses.asdict(read_launch_info())))"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    completed = subprocess.run(
        [*command, "--no-python", sys.executable, "-c", script],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    results = re.findall(r"{.*?}", completed.stdout)  # two processes may write on one line
    message = sorted(map(json.loads, results), key=lambda process: process["rank"])
    assert [(process["rank"], process["local_rank"]) for process in message] == [(0, 0), (1, 1)]
    assert all(
        (process["size"], process["local_size"], process["node"], process["nodes"]) == (2, 2, 0, 1)
        for process in message
    )
    assert {process["launcher"] for process in message} == {"torchrun"}
    assert message[0]["port"] == message[1]["port"] > 0


# SLURM -----------------------------------------------------------------------------------------------------------


def test_srun():
    assert read_launch_info(SRUN) == LaunchInfo(
        rank=6, size=7, local_rank=0, local_size=1, node=3, nodes=4, address="node007", port=61440 + 4711 - 4096,
        launcher="slurm",
    )  # fmt: skip


def test_tasks_of_a_step_share_a_port_and_two_steps_do_not():
    first = read_launch_info({**SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0"})
    last, other = read_launch_info(SRUN), read_launch_info({**SRUN, "SLURM_STEP_ID": "1"})
    assert first
    assert last
    assert other
    assert (first.address, first.port) == (last.address, last.port)
    assert first.local_size == 2
    assert other.port != last.port


def test_a_batch_script_may_set_address_and_size():
    result = read_launch_info({**SRUN, "MASTER_ADDR": "10.1.0.7", "MASTER_PORT": "1234", "WORLD_SIZE": "7"})
    assert result
    assert (result.address, result.port, result.launcher) == ("10.1.0.7", 1234, "slurm")
    with pytest.raises(InvalidConfig, match=r"WORLD_SIZE is 8, but srun has started 7"):
        read_launch_info({**SRUN, "WORLD_SIZE": "8"})
    with pytest.raises(InvalidConfig, match=r"MASTER_PORT is 65536, but the number of ports is 65536"):
        read_launch_info({**SRUN, "MASTER_PORT": "65536"})


def test_a_rank_set_by_hand_under_srun_has_its_local_rank():
    by_hand = {"RANK": "1", "WORLD_SIZE": "7", "MASTER_ADDR": "10.1.0.7", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
    result = read_launch_info({**SRUN, **by_hand})
    assert result
    assert (result.rank, result.local_rank, result.launcher) == (1, 1, "environment")


def test_a_job_of_a_federation_has_an_id_of_ten_digits():
    result = read_launch_info({**SRUN, "SLURM_JOB_ID": "2214592513"})
    assert result
    assert 61440 <= result.port < 65536


def test_a_requeued_job_counts_its_restarts():
    result = read_launch_info({**SRUN, "SLURM_RESTART_COUNT": "3"})
    assert result
    assert result.restarts == 3


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "a,b"},  # the shell of salloc
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},  # the script of sbatch
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},  # srun --pty bash, srun jupyter
        {**SRUN, "SLURM_STEP_ID": str(0xFFFFFFFA)},  # salloc with LaunchParameters=use_interactive_step
        {"WORLD_SIZE": "1"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "", "WORLD_SIZE": ""},  # unset in a shell
        {"JOB_COMPLETION_INDEX": "3", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},  # a sweep: each index is a run
        {"LOCAL_RANK": "0"},  # without a size or a rank
        {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
    ],
)
def test_without_a_launcher(variables: dict[str, str]):
    assert read_launch_info(variables) is None


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("node7", "node7"),
        ("node[007-012,020],gpu3", "node007"),
        ("gpu-a.cluster.org,gpu-b", "gpu-a.cluster.org"),
        ("rack[1-2]n[03-04]-ib", "rack1n03-ib"),
        ("[12-13]", "12"),
        ("", ""),
        ("node[", ""),
        ("node[a]", ""),
    ],
)
def test_the_first_host(text: str, host: str):
    assert first_host(text) == host


def test_tasks_per_node():
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("4") == [4]
    assert tasks_per_node("") == tasks_per_node("many") == []


def test_an_invalid_list_of_nodes():
    with pytest.raises(InvalidConfig, match=r"node\[.*no valid host") as error:
        read_launch_info({**SRUN, "SLURM_STEP_NODELIST": "node[", "SLURM_JOB_NODELIST": "node["})
    assert "scontrol show hostnames" in error.value.fix


# Kubernetes, and by hand -----------------------------------------------------------------------------------------


def test_a_pytorch_job():
    assert read_launch_info({**PODS, "RANK": "2", "MASTER_PORT": "23456"}) == LaunchInfo(
        rank=2, size=3, local_rank=0, local_size=1, node=2, nodes=3, address="train-0.train", port=23456,
        launcher="kubernetes",
    )  # fmt: skip


def test_an_indexed_job_gives_the_rank_by_its_index():
    assert read_launch_info({**PODS, "JOB_COMPLETION_INDEX": "1"}) == read_launch_info({**PODS, "RANK": "1"})


def test_on_one_machine_the_rank_is_the_local_rank():
    result = read_launch_info({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"})
    assert result == LaunchInfo(
        rank=1,
        size=2,
        local_rank=1,
        local_size=2,
        node=0,
        nodes=1,
        address="localhost",
        port=29500,
        launcher="environment",
    )


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ({"RANK": "1"}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "4"}, "RANK is not set"),
        ({"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}, "RANK is 4, but WORLD_SIZE is 4"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set"),
        ({"RANK": "one", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "RANK is 'one'"),
        ({"RANK": "-1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "RANK is '-1'"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE is 0"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "tcp://10.0.0.7:80"}, "MASTER_PORT is"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "70000"}, "MASTER_PORT is 70000"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, "LOCAL_RANK is 4, but LOCAL_WORLD_SIZE is 4"),
        ({**PODS, "JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX is 3, but WORLD_SIZE is 3"),
    ],
)
def test_incomplete_variables_are_refused(message: dict[str, str], word: str):
    with pytest.raises(InvalidConfig) as error:
        read_launch_info(message)
    assert word in error.value.what
    assert "unset RANK" in error.value.fix
