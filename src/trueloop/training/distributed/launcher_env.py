"""Read this process's rank and world size from the environment, set by torchrun, srun, Kubernetes or by hand.

Some of a launcher's variables are often set although it started no process (in a shell of an allocation, a notebook on
a compute node). A program that trusted these variables would wait for processes that never start.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trueloop.core.errors import InvalidConfig

Launcher = Literal["torchrun", "slurm", "kubernetes", "environment"]

DEFAULT_PORT = 29500  # torchrun's default
_LOCAL = ("localhost", "127.0.0.1", "::1")
# These ports are above Linux's ephemeral ports (32768 to 60999), so that no outgoing connection uses them; as in JAX.
_SLURM_PORTS = range(61440, 65536)
# Step numbers that are not srun steps: the script of sbatch, the shell of salloc, and two internal ones.
_NO_STEP = range(0xFFFFFFF0, 2**32)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchInfo:
    """This process's rank among the processes of a run, from the launcher's variables."""

    rank: int
    """Global rank of this process, from 0."""
    size: int
    """Number of processes."""
    local_rank: int
    """Rank of this process on its machine, from 0; also the index of its GPU."""
    local_size: int
    """Number of processes on this machine; the local rank + 1 if the launcher does not set it."""
    node: int
    """Rank of this machine, from 0."""
    nodes: int
    """Number of machines."""
    address: str
    """Host of rank 0, to which the processes connect."""
    port: int
    """Port on the host of rank 0."""
    restarts: int = 0
    """Number of times the launcher has restarted all processes."""
    launcher: Launcher


def read_launch_info(environment: Mapping[str, str] = os.environ) -> LaunchInfo | None:
    """Return rank and world size of this process; None if it is the only one, even if some variables are set.

    Under torchrun, a single process has a `LaunchInfo` as well (``size`` 1), because an elastic job may shrink to it.

    Args:
        environment: variables by name.

    Raises:
        InvalidConfig: a launcher's variables are incomplete or contradict one another; the message names the variable.
    """
    env = _Environment(environment)
    step = _is_srun_task(environment)
    if "TORCHELASTIC_RUN_ID" in environment or _has_rank_variables(env, in_step=step):
        info = _read_torchrun(env)
        return None if info.size == 1 and info.launcher != "torchrun" else info
    return _read_slurm(env) if step else None


def was_restarted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if torchrun restarted this process, or SLURM requeued its job, with the same command line."""
    counts = (environment.get(name, "") for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
    return any(count.isdigit() and int(count) > 0 for count in counts)


class _Environment:
    """Reads environment variables as text or numbers; the error for an invalid variable has its name."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def __contains__(self, name: str) -> bool:
        return bool(self._environment.get(name, "").strip())  # `RANK= python ...` in a shell means "not set"

    def text(self, *names: str) -> str:
        return next((self._environment[name].strip() for name in names if name in self), "")

    def number(self, name: str, default: int | None = None, *, below: int | None = None, of: str = "") -> int:
        if name not in self and default is not None:
            return default
        text = self.text(name)
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise _invalid_environment(f"{name} is {text!r}, not a whole number." if text else f"{name} is not set.")
        if below is not None and int(text) >= below:
            raise _invalid_environment(f"{name} is {text}, but {of} is {below}.")
        return int(text)


def _invalid_environment(problem: str) -> InvalidConfig:
    return InvalidConfig(
        problem,
        why="RANK or WORLD_SIZE says that this process is one of several, but the variables to connect them are not "
        "all valid.",
        fix="Start with torchrun or `trueloop train RECIPE --processes N`, which set everything; or unset RANK and "
        "WORLD_SIZE to train with one process.",
    )


def _has_rank_variables(env: _Environment, *, in_step: bool) -> bool:
    """Return True if a rank is set; an indexed Kubernetes Job sets JOB_COMPLETION_INDEX instead of RANK."""
    has_rank = "RANK" in env or ("JOB_COMPLETION_INDEX" in env and "WORLD_SIZE" in env)
    if has_rank or "WORLD_SIZE" not in env:
        return has_rank
    # An sbatch script often exports WORLD_SIZE and MASTER_ADDR but not RANK, as srun sets SLURM_PROCID.
    if not in_step and env.number("WORLD_SIZE") > 1:
        raise _invalid_environment(f"WORLD_SIZE is {env.text('WORLD_SIZE')}, but RANK is not set.")
    return False


def _read_torchrun(env: _Environment) -> LaunchInfo:
    """Read torchrun's variables, with defaults for the variables that other launchers do not set."""
    size = env.number("WORLD_SIZE")
    if size < 1:
        raise _invalid_environment("WORLD_SIZE is 0.")
    name = "RANK" if "RANK" in env else "JOB_COMPLETION_INDEX"
    rank = env.number(name, below=size, of="WORLD_SIZE")
    address = env.text("MASTER_ADDR")
    if size > 1 and not address:
        raise _invalid_environment("MASTER_ADDR is not set.")
    launcher = _launcher(env)
    # Kubernetes runs one process per pod. If processes are started by hand on one machine (localhost), the rank is the
    # local rank. A srun task that exports RANK=$SLURM_PROCID may have its local rank only in SLURM_LOCALID.
    one_machine = launcher == "environment" and address in (*_LOCAL, "")
    local_rank = env.number("LOCAL_RANK", rank if one_machine else env.number("SLURM_LOCALID", 0))
    local_size = env.number("LOCAL_WORLD_SIZE", size if one_machine else local_rank + 1)
    if local_rank >= local_size:
        raise _invalid_environment(f"LOCAL_RANK is {local_rank}, but LOCAL_WORLD_SIZE is {local_size}.")
    return LaunchInfo(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        node=env.number("GROUP_RANK", rank // local_size),
        nodes=env.number("GROUP_WORLD_SIZE", -(-size // local_size)),
        address=address or "localhost",
        port=env.number("MASTER_PORT", DEFAULT_PORT, below=65536, of="the number of ports"),
        restarts=env.number("TORCHELASTIC_RESTART_COUNT", 0),
        launcher=launcher,
    )


def _launcher(env: _Environment) -> Launcher:
    if "TORCHELASTIC_RUN_ID" in env:
        return "torchrun"
    if "KUBERNETES_SERVICE_HOST" in env or "JOB_COMPLETION_INDEX" in env:
        return "kubernetes"
    return "environment"


def local_address_for(host: str, port: int) -> str:
    """Return this machine's address in the network of another host; "" if there is no route to that host.

    Args:
        host: name or address of the other host.
        port: any port; nothing is sent.
    """
    try:
        family, socket_type, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket_type, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


# SLURM -----------------------------------------------------------------------------------------------------------


def _is_srun_task(environment: Mapping[str, str]) -> bool:
    """Return True if srun started this process as one of several.

    SLURM_NTASKS cannot show it: it belongs to the job, and is also set in the shell of salloc, in the script of sbatch
    and in a notebook. SLURM_STEP_NUM_TASKS is set by srun in each task.
    """
    step, tasks = environment.get("SLURM_STEP_ID", ""), environment.get("SLURM_STEP_NUM_TASKS", "")
    if not (step.isdigit() and tasks.isdigit() and "SLURM_PROCID" in environment):
        return False
    return int(step) not in _NO_STEP and int(tasks) > 1


def _read_slurm(env: _Environment) -> LaunchInfo:
    size = env.number("SLURM_STEP_NUM_TASKS")
    if env.number("WORLD_SIZE", size) != size:
        raise _invalid_environment(f"WORLD_SIZE is {env.text('WORLD_SIZE')}, but srun has started {size} tasks.")
    node = env.number("SLURM_NODEID", 0)
    nodes = env.number("SLURM_STEP_NUM_NODES", env.number("SLURM_NNODES", 1))
    local_rank = env.number("SLURM_LOCALID", 0)
    tasks = tasks_per_node(env.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    # A MASTER_ADDR from the sbatch script takes precedence; it may be an address in another network.
    address = env.text("MASTER_ADDR") or first_host(
        env.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    )
    if not address:
        raise InvalidConfig(
            f"SLURM_JOB_NODELIST is {env.text('SLURM_JOB_NODELIST')!r}, which contains no valid host name.",
            why=f"The {size} tasks of srun connect to the first host of the job.",
            fix="In the batch script: export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)",
        )
    job = env.number("SLURM_JOB_ID", 0) + env.number("SLURM_STEP_ID", 0)
    return LaunchInfo(
        rank=env.number("SLURM_PROCID", below=size, of="SLURM_STEP_NUM_TASKS"),
        size=size,
        local_rank=local_rank,
        local_size=tasks[node] if node < len(tasks) else local_rank + 1,
        node=node,
        nodes=nodes,
        address=address,
        port=env.number("MASTER_PORT", _SLURM_PORTS[job % len(_SLURM_PORTS)], below=65536, of="the number of ports"),
        restarts=env.number("SLURM_RESTART_COUNT", 0),
        launcher="slurm",
    )


def first_host(nodes: str) -> str:
    """Return the first host of a list in SLURM's notation: "node[007-012,020],gpu3" -> "node007"; "" if invalid.

    Args:
        nodes: SLURM_JOB_NODELIST. Several brackets stand for all combinations; the first host has the first number of
            each.
    """
    entry = re.match(r"(?:[^,\[\]]|\[[^\]]*\])+(?=,|$)", nodes)
    host = re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", entry[0]) if entry else ""
    return host if re.fullmatch(r"[\w.-]+", host) else ""


def tasks_per_node(text: str) -> list[int]:
    """Return the number of tasks on each node, from SLURM's notation: "2(x3),1" -> [2, 2, 2, 1]; [] if invalid."""
    parts = [re.fullmatch(r"([0-9]+)(?:\(x([0-9]{1,6})\))?", part) for part in text.split(",")]
    return [int(part[1]) for part in parts if part for _ in range(int(part[2] or 1))] if all(parts) else []
