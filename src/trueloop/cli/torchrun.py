"""Run `trueloop train RECIPE --processes 2`: torchrun starts and supervises the same command once per process."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trueloop.cli.outcomes import FOLDER, LAUNCHER, Outcome, as_error, first_failed, lost_process_error, read_outcomes
from trueloop.cli.rendezvous import host_and_port, is_local, open_store, wait_for_listener
from trueloop.cli.signal_forwarding import SignalForwarder, torchrun_log_disabled
from trueloop.core.errors import InvalidConfig, ProcessLost
from trueloop.core.formatting import format_count
from trueloop.training.distributed.launcher_env import local_address_for, read_launch_info
from trueloop.training.interrupt import EXIT_CODES

if TYPE_CHECKING:
    from trueloop.training.config import TrainConfig

RESTARTS: Final = 3
GRACE_S: Final = 600  # time to save after a signal; SLURM, Kubernetes or a second Ctrl-C end the processes sooner
JOIN_S: Final = 600  # timeout of torchrun's rendezvous, and of an interrupted connection between machines
LINGER_S: Final = 1.0  # time after the end in which the rendezvous store stays open, so that other machines can finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The number of processes to start, and their rendezvous."""

    processes: int
    """Number of processes on each machine."""
    nodes: int = 1
    """Number of machines."""
    rendezvous: str | None = None
    """Address "host:port" on one of the machines; None for a single machine."""
    max_restarts: int = RESTARTS
    """Number of times that all processes are restarted after one was lost."""
    timeout_s: float = 300
    """Seconds to wait until the rendezvous can be reached: machines start at different times."""

    @property
    def size(self) -> int:
        """Total number of processes."""
        return self.processes * self.nodes


def launch_from_options(
    processes: int | None,
    nodes: int | None,
    rendezvous: str | None,
    max_restarts: int | None,
    environment: Mapping[str, str] = os.environ,
) -> Launch | None:
    """Return the launch that the flags request; None without flags, and in a process that was already launched.

    In a SLURM step or a Kubernetes job of one task per machine, the machines and the rendezvous are known.

    Raises:
        InvalidConfig: the flags do not fit together, or another launcher started this process.
    """
    values = {"--processes": processes, "--nodes": nodes, "--rendezvous": rendezvous, "--max-restarts": max_restarts}
    flags = [flag for flag, value in values.items() if value is not None]
    if not flags or FOLDER in environment:
        return None
    if "TORCHELASTIC_RUN_ID" in environment or "LOCAL_RANK" in environment:
        raise InvalidConfig(
            f"{flags[0]} was passed, but this process is already one of {environment.get('WORLD_SIZE', 'several')}.",
            why="LOCAL_RANK or TORCHELASTIC_RUN_ID is set: torchrun or another launcher has started this process.",
            fix=f"Omit {' and '.join(flags)}: under a launcher, trueloop train joins the launcher's processes.",
        )
    for flag, minimum in (("--processes", 1), ("--nodes", 1), ("--max-restarts", 0)):
        value = values[flag]
        if isinstance(value, int) and value < minimum:
            raise InvalidConfig(f"{flag} is {value}.", fix=f"It must be {minimum} or more.")
    if processes is None:
        raise InvalidConfig(
            f"{flags[0]} was passed without --processes.", fix="Pass the number of processes per machine: --processes 8"
        )
    restarts = RESTARTS if max_restarts is None else max_restarts
    launch = Launch(processes=processes, nodes=nodes or 1, rendezvous=rendezvous, max_restarts=restarts)
    return _with_rendezvous(launch, nodes, environment)


def _with_rendezvous(launch: Launch, nodes: int | None, environment: Mapping[str, str]) -> Launch:
    """Add missing options from SLURM or Kubernetes, and check the options that the user passed."""
    job = read_launch_info(environment) if launch.rendezvous is None and nodes != 1 else None
    if job is not None and job.local_size > 1:
        raise InvalidConfig(
            f"--processes is {launch.processes}, but {job.launcher} started {job.local_size} tasks on this machine.",
            why=f"Each of these tasks would start {launch.processes} processes.",
            fix="Start one task per machine (srun --ntasks-per-node=1), or omit --processes, so that each task is one "
            "process.",
        )
    if job is not None and nodes in (None, job.nodes):
        return replace(launch, nodes=job.nodes, rendezvous=f"{job.address}:{job.port}")
    if launch.nodes > 1 and launch.rendezvous is None:
        raise InvalidConfig(
            f"--nodes is {launch.nodes}, but there is no --rendezvous.",
            why="The machines need an address at which they connect to each other.",
            fix="Pass the address of one machine with a free port, the same on each: --rendezvous node1:29500",
        )
    if launch.rendezvous is not None:
        host_and_port(launch.rendezvous)
        if nodes is None:
            raise InvalidConfig(
                f"--rendezvous is {launch.rendezvous!r}, but --nodes is missing.",
                fix="Pass the number of machines: --nodes 2",
            )
    return launch


def check_parallel_config(launch: Launch, config: TrainConfig) -> None:
    """Check the settings before the launch; otherwise every process would report the same error.

    Raises:
        InvalidConfig: a setting is invalid, an update has fewer examples than there are processes, or the machine has
            too few GPUs.
    """
    from trueloop.training.validate import validate

    validate(config)
    if config.effective_batch < launch.size:
        raise InvalidConfig(
            f"effective_batch is {config.effective_batch}, but there are {format_count(launch.size, 'process')}.",
            why="The processes share the examples of an update; some would have no example.",
            fix="Raise effective_batch, which changes what is learnt, or start fewer processes.",
        )
    if config.device.startswith("cuda:") and launch.processes > 1:
        raise InvalidConfig(
            f"device is {config.device!r}, a single GPU, but {launch.processes} processes start on this machine.",
            fix='Set device to "cuda": each process uses another GPU. CUDA_VISIBLE_DEVICES limits the choice.',
        )
    import torch

    gpus = torch.cuda.device_count()
    if launch.processes > gpus and (config.device == "cuda" or (config.device == "auto" and gpus)):
        raise InvalidConfig(
            f"--processes is {launch.processes}, but this machine has {format_count(gpus, 'GPU')}.",
            why="Two processes on one GPU wait for each other, and NCCL refuses them.",
            fix=f"--processes {gpus}" if gpus else '--device cpu, or a machine with GPUs ("nvidia-smi -L")',
        )


def run_launch(launch: Launch, config: TrainConfig, arguments: Sequence[str], *, silent: bool) -> int:
    """Check the settings, then run this command line in every process; see `run_processes`.

    Args:
        launch: the processes to start.
        config: settings of the run.
        arguments: arguments of `trueloop` on the command line.
        silent: True to print nothing on stderr except errors.
    """
    check_parallel_config(launch, config)
    return run_processes(launch, worker_command(arguments), silent=silent)


def run_processes(launch: Launch, command: Sequence[str], *, silent: bool = False) -> int:
    """Run a command once per process, and wait until all processes of this machine have ended.

    Args:
        launch: the processes to start.
        command: the command and its arguments.
        silent: True to print nothing on stderr except errors.

    Returns:
        The exit code: 0, or 130 or 143 if a signal ended the processes after they saved their state.

    Raises:
        TrueloopError: the error of the process that failed first; or the machines did not connect.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.run import parse_args, run

    from trueloop.training.distributed.rendezvous import keepalive_for_new_connections

    with _prepare_launch(launch, SignalException) as folder:
        _announce(launch, silent=silent)
        try:
            wait_for_listener(launch.rendezvous, timeout_s=launch.timeout_s)
            store = open_store(launch.rendezvous)
            with keepalive_for_new_connections(JOIN_S) if launch.nodes > 1 else nullcontext():
                run(parse_args([*_torchrun_flags(launch), "--no-python", command[0], *map(_escape, command[1:])]))
        except SignalException as stop:
            return _end_after_signal(read_outcomes(folder), stop.sigval)
        except ChildFailedError as error:
            ends = {rank: (end.timestamp, not _is_killed(end.exitcode)) for rank, end in error.failures.items()}
            first_rank = min(ends, key=lambda rank: ends[rank])
            exit_code = error.failures[first_rank].exitcode
            return _end_after_failure(read_outcomes(folder), first_rank, exit_code, launch)
        except RendezvousError as error:
            if code := _stop_code(read_outcomes(folder)):
                return code  # torchrun waited for machines that were stopped as well
            detail = str(error).partition(". ")[0].rstrip(".")
            raise ProcessLost(
                f"The machines did not connect at {launch.rendezvous}{detail and f': {detail}'}.",
                why=f"Fewer than {launch.nodes} machines connected within {JOIN_S} s, or the machine at that address "
                "has ended.",
                fix="Start the same command on every machine. The run continues from its last complete checkpoint.",
            ) from error
    if store is not None:
        time.sleep(LINGER_S)
    return 0


def worker_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that calls `trueloop` with these arguments in this interpreter."""
    # `python -m` adds the current folder to the path, where a file may shadow a module; the script `trueloop` does not.
    safe_path = [] if Path(sys.argv[0]).name == "__main__.py" else ["-P"]
    return [sys.executable, "-u", *safe_path, "-m", "trueloop", *arguments]


# Before the start ------------------------------------------------------------------------------------------------


@contextmanager
def _prepare_launch(launch: Launch, stop: type[Any]) -> Generator[Path]:
    """Set the variables that the processes inherit, handle signals instead of torchrun, and silence torchrun's log.

    If the variable LOGLEVEL is set, the log is not silenced.
    """
    folder = Path(tempfile.mkdtemp(prefix="trueloop-"))
    forwarder = SignalForwarder(folder, stop)
    variables = {
        # Torch 2.13 shares the store between attempts: a process would wait for the address of one that has ended.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads_per_process(launch.processes))),
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),  # read when torch is imported
    }
    handlers = {number: signal.getsignal(number) for number in _forwarded_signals()}
    for number in handlers.keys() - {signal.SIGINT}:
        # Torchrun handles signals only while the processes run: at the rendezvous, process 1 of a pod ignores signals.
        signal.signal(number, forwarder)
    old_environment = dict(os.environ)
    try:
        os.environ.update(variables, **{FOLDER: str(folder)})
        (folder / LAUNCHER).write_text(str(os.getpid()), encoding="utf-8")
        with forwarder.replace_handlers(), nullcontext() if "LOGLEVEL" in os.environ else torchrun_log_disabled():
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(old_environment)


def _forwarded_signals() -> list[signal.Signals]:
    """Return the signals that are forwarded to the processes, without SIGHUP under nohup."""
    names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1")
    available = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [number for number in available if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN]


def threads_per_process(processes: int) -> int:
    """Return the cores per process: by default, a process uses a thread per core, or under torchrun only one thread."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // processes)


def _announce(launch: Launch, *, silent: bool) -> None:
    if silent:
        return
    threads = os.environ["OMP_NUM_THREADS"]
    machines = f" on each of {launch.nodes} machines, which connect at {launch.rendezvous}" if launch.nodes > 1 else ""
    each = f"{format_count(int(threads), 'thread')} each" if threads.isdigit() else f"OMP_NUM_THREADS={threads}"
    print(f"Starting {format_count(launch.processes, 'process')}{machines}; {each} (OMP_NUM_THREADS).", file=sys.stderr)


def _torchrun_flags(launch: Launch) -> list[str]:
    from torch.distributed.run import get_args_parser

    flags = ["--nnodes", str(launch.nodes), "--nproc-per-node", str(launch.processes)]
    flags += ["--max-restarts", str(launch.max_restarts)]
    if launch.rendezvous is None:
        flags += ["--standalone", "--local-addr", "localhost"]  # a machine may be unable to resolve its own name
    else:
        host, port = host_and_port(launch.rendezvous)
        if address := local_address_for(host, port):  # other machines may not resolve this machine's name
            flags += ["--local-addr", address]
        is_host = "" if is_local(launch.rendezvous) else ",is_host=0"
        configuration = f"join_timeout={JOIN_S},read_timeout={JOIN_S}{is_host}"
        flags += ["--rdzv-backend", "c10d", "--rdzv-endpoint", launch.rendezvous, "--rdzv-conf", configuration]
        flags += ["--rdzv-id", os.environ.get("SLURM_JOB_ID", "trueloop")]
    newer_flags = {  # older versions of torch lack these flags, and wait 30 s
        "--signals-to-handle": ",".join(number.name for number in _forwarded_signals()),
        "--shutdown-timeout": str(GRACE_S),
    }
    supported = get_args_parser()._option_string_actions  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    return flags + [word for flag, value in newer_flags.items() if flag in supported for word in (flag, value)]


def _escape(word: str) -> str:
    """Escape `$` in an argument: torchrun replaces `${local_rank}` by the rank, and `$$` by `$`."""
    return word.replace("$", "$$")


# After the end ---------------------------------------------------------------------------------------------------


def _is_killed(exit_code: int) -> bool:
    return exit_code < 0 and exit_code != -signal.SIGTERM  # torchrun sends SIGTERM to the remaining processes


def _end_after_signal(outcomes: Sequence[Outcome], number: signal.Signals) -> int:
    """Return the exit code of a run that received a stop signal, or raise the error of a process that failed."""
    failed = first_failed(outcomes)
    if failed and not failed.lost:  # losing a process that had ended before is not a failure
        _print_traceback(failed)
        raise as_error(failed)
    return EXIT_CODES["interrupted" if number == signal.SIGINT else "preempted"]


def _end_after_failure(outcomes: Sequence[Outcome], rank: int, exit_code: int, launch: Launch) -> int:
    """Raise the error of the process that failed first, or return the exit code if a signal stopped the processes.

    Args:
        outcomes: outcomes of the processes on this machine.
        rank: rank of the process that ended first.
        exit_code: exit code of that process, negative for a signal.
        launch: the started processes.
    """
    if not _is_killed(exit_code):
        failed = first_failed(outcomes)
        if failed:
            _print_traceback(failed)
            raise as_error(failed)
        if code := _stop_code(outcomes):
            return code
    raise lost_process_error(rank, exit_code, restarts=launch.max_restarts)


def _stop_code(outcomes: Sequence[Outcome]) -> int:
    """Return the exit code if all processes received a stop signal that torchrun did not forward; else 0."""
    codes = {outcome.code for outcome in outcomes} - {0}
    return max(codes) if codes and codes <= {*EXIT_CODES.values()} else 0


def _print_traceback(failed: Outcome) -> None:
    if failed.traceback:
        print(f"Rank {failed.rank}:\n{failed.traceback}", file=sys.stderr, end="", flush=True)
