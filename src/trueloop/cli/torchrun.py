"""`trueloop train RECIPE --processes 2`: the same command once per process, started and watched by torch's torchrun."""

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

from trueloop.cli.outcomes import FOLDER, LAUNCHER, Outcome, error_of, first_failed, killed, read_outcomes
from trueloop.cli.rendezvous import host_and_port, is_local, open_store, wait_for_listener
from trueloop.cli.signal_forwarding import SignalForwarder, ignore_signals
from trueloop.core.errors import InvalidConfig, ProcessLost
from trueloop.core.formatting import format_count
from trueloop.training.distributed.launcher_env import local_address_for, read_launch_info
from trueloop.training.interrupt import EXIT_CODES

if TYPE_CHECKING:
    from trueloop.training.config import TrainConfig

RESTARTS: Final = 3
GRACE_S: Final = 600  # to save in, after a signal; SLURM, Kubernetes and a second Ctrl-C end it sooner
JOIN_S: Final = 600  # torchrun's own; and how long a cable may be cut before the machines give one another up
LINGER_S: Final = 1.0  # that the machine all meet at stays after the last process, for the others to take their leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How many processes a run is to have, and where they meet."""

    processes: int
    """On each machine."""
    nodes: int = 1
    """Machines."""
    rendezvous: str | None = None
    """"host:port" of one of them; None on one machine."""
    max_restarts: int = RESTARTS
    """How often all processes are started again after one was lost."""
    patience_s: float = 300
    """How long the rendezvous may be unreachable: machines start at different times."""

    @property
    def size(self) -> int:
        """Processes in all."""
        return self.processes * self.nodes


def launch_from_options(
    processes: int | None,
    nodes: int | None,
    rendezvous: str | None,
    max_restarts: int | None,
    environment: Mapping[str, str] = os.environ,
) -> Launch | None:
    """Return what the flags ask for; None where there is nothing to start: no flag, or this is one of the processes.

    In a SLURM step or a Kubernetes job of one task per machine, the machines and the place to meet are known.

    Raises:
        InvalidConfig: the flags do not fit together, or this is a process of another launcher's.
    """
    given = {"--processes": processes, "--nodes": nodes, "--rendezvous": rendezvous, "--max-restarts": max_restarts}
    flags = [flag for flag, value in given.items() if value is not None]
    if not flags or FOLDER in environment:
        return None
    if "TORCHELASTIC_RUN_ID" in environment or "LOCAL_RANK" in environment:
        raise InvalidConfig(
            f"{flags[0]} is given, but this process is one of {environment.get('WORLD_SIZE', 'several')} already.",
            why="LOCAL_RANK and WORLD_SIZE say that torchrun, or another launcher, has started it.",
            fix=f"Leave out {' and '.join(flags)}: under a launcher, trueloop train joins the processes there are.",
        )
    for flag, least in (("--processes", 1), ("--nodes", 1), ("--max-restarts", 0)):
        value = given[flag]
        if isinstance(value, int) and value < least:
            raise InvalidConfig(f"{flag} is {value}.", fix=f"It must be {least} or more.")
    if processes is None:
        raise InvalidConfig(
            f"{flags[0]} is given without --processes.", fix="Say how many processes each machine has: --processes 8"
        )
    restarts = RESTARTS if max_restarts is None else max_restarts
    launch = Launch(processes=processes, nodes=nodes or 1, rendezvous=rendezvous, max_restarts=restarts)
    return _with_place(launch, nodes, environment)


def _with_place(launch: Launch, nodes: int | None, environment: Mapping[str, str]) -> Launch:
    """Fill in missing options from SLURM or Kubernetes, and check the given ones."""
    job = read_launch_info(environment) if launch.rendezvous is None and nodes != 1 else None
    if job is not None and job.local_size > 1:
        raise InvalidConfig(
            f"--processes is {launch.processes}, but {job.launcher} started {job.local_size} tasks on this machine.",
            why=f"Each of them would start {launch.processes} processes of its own.",
            fix="Start one task per machine (srun --ntasks-per-node=1), or leave out --processes: each task is a "
            "process then.",
        )
    if job is not None and nodes in (None, job.nodes):
        return replace(launch, nodes=job.nodes, rendezvous=f"{job.address}:{job.port}")
    if launch.nodes > 1 and launch.rendezvous is None:
        raise InvalidConfig(
            f"--nodes is {launch.nodes}, but there is no --rendezvous.",
            why="The machines have to meet somewhere.",
            fix="Name one of them and a free port, the same on each: --rendezvous node1:29500",
        )
    if launch.rendezvous is not None:
        host_and_port(launch.rendezvous)
        if nodes is None:
            raise InvalidConfig(
                f"--rendezvous is {launch.rendezvous!r}, but --nodes is not given.",
                fix="Say how many machines meet there: --nodes 2",
            )
    return launch


def check_parallel_config(launch: Launch, config: TrainConfig) -> None:
    """Refuse now what every single process would refuse later.

    Raises:
        InvalidConfig: a setting cannot work, an update has too few examples for so many processes, or the machine too
            few GPUs.
    """
    from trueloop.training.validate import validate

    validate(config)
    if config.effective_batch < launch.size:
        raise InvalidConfig(
            f"effective_batch is {config.effective_batch}, but there are {format_count(launch.size, 'process')}.",
            why="The examples of an update are shared out among the processes; some would have none.",
            fix="Raise effective_batch, which changes what is learnt, or start fewer processes.",
        )
    if config.device.startswith("cuda:") and launch.processes > 1:
        raise InvalidConfig(
            f"device is {config.device!r}, one GPU, but {launch.processes} processes start on this machine.",
            fix='Set device to "cuda": each process takes a GPU of its own. CUDA_VISIBLE_DEVICES limits which.',
        )
    import torch

    gpus = torch.cuda.device_count()
    if launch.processes > gpus and (config.device == "cuda" or (config.device == "auto" and gpus)):
        raise InvalidConfig(
            f"--processes is {launch.processes}, but this machine has {format_count(gpus, 'GPU')}.",
            why="Two processes on one GPU wait for each other, and NCCL refuses them.",
            fix=f"--processes {gpus}" if gpus else '--device cpu, or a machine with GPUs ("nvidia-smi -L")',
        )


def run_launch(launch: Launch, config: TrainConfig, words: Sequence[str], *, silent: bool) -> int:
    """Check what can be checked before, then run this very command line in every process.

    Args:
        launch: how many processes, and where they meet.
        config: of the run.
        words: after `trueloop`.
        silent: say nothing on stderr as long as all goes well.
    """
    check_parallel_config(launch, config)
    return run_processes(launch, worker_command(words), silent=silent)


def run_processes(launch: Launch, words: Sequence[str], *, silent: bool = False) -> int:
    """Run a command once per process until all have ended; on several machines this is done on each.

    Args:
        launch: how many processes, and where they meet.
        words: the command and its arguments.
        silent: say nothing on stderr as long as all goes well.

    Returns:
        The exit code: 0, or 130 and 143 where a signal ended the processes, which have saved before.

    Raises:
        TrueloopError: the error of the process that failed first; or the machines did not meet.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.run import parse_args, run

    from trueloop.training.distributed.rendezvous import keepalive_for_new_connections

    with _ready(launch, SignalException) as folder:
        _announce(launch, silent=silent)
        try:
            wait_for_listener(launch.rendezvous, patience_s=launch.patience_s)
            store = open_store(launch.rendezvous)
            with keepalive_for_new_connections(JOIN_S) if launch.nodes > 1 else nullcontext():
                run(parse_args([*_torchrun_flags(launch), "--no-python", words[0], *map(_escaped, words[1:])]))
        except SignalException as stop:
            return _stopped(read_outcomes(folder), stop.sigval)
        except ChildFailedError as error:
            first = min(error.failures.items(), key=lambda item: (item[1].timestamp, not _by_signal(item[1].exitcode)))
            return _failed(read_outcomes(folder), (first[0], first[1].exitcode), launch)
        except RendezvousError as error:
            if code := _told_to_stop(read_outcomes(folder)):
                return code  # and torchrun waited in vain for machines that were stopped as well
            detail = str(error).partition(". ")[0].rstrip(".")
            raise ProcessLost(
                f"The machines did not meet at {launch.rendezvous}{detail and f': {detail}'}.",
                why=f"{launch.nodes} were to come within {JOIN_S} s; or the one at that address has left.",
                fix="Start the same command on every machine. The run continues from its last whole checkpoint.",
            ) from error
    if store is not None:
        time.sleep(LINGER_S)
    return 0


def worker_command(words: Sequence[str]) -> list[str]:
    """Return the command of one process: this interpreter, this package, the same words.

    Args:
        words: after `trueloop`.
    """
    # `python -m` puts the current folder on the path, where a file may shadow a module; the script `trueloop` does not.
    safe = [] if Path(sys.argv[0]).name == "__main__.py" else ["-P"]
    return [sys.executable, "-u", *safe, "-m", "trueloop", *words]


# Before the start ------------------------------------------------------------------------------------------------


@contextmanager
def _ready(launch: Launch, stop: type[Any]) -> Generator[Path]:
    """Set the variables the processes inherit, take the signals in torchrun's place, keep its log for who asks."""
    folder = Path(tempfile.mkdtemp(prefix="trueloop-"))
    asked = SignalForwarder(folder, stop)
    # Torch 2.13 hands the store of one attempt to the next, where a process finds the address of a dead one, and waits.
    added = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if "OMP_NUM_THREADS" not in os.environ:
        added["OMP_NUM_THREADS"] = str(threads_each(launch.processes))
    added |= {"TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")}  # read when torch is imported
    handlers = {number: signal.getsignal(number) for number in _signals()}
    for number in handlers.keys() - {signal.SIGINT}:
        # Torchrun takes them when the processes run; until then, at the rendezvous, process 1 of a pod would be deaf.
        signal.signal(number, asked)
    before = dict(os.environ)
    try:
        os.environ.update(added, **{FOLDER: str(folder)})
        (folder / LAUNCHER).write_text(str(os.getpid()), encoding="utf-8")
        with asked.replace_handlers(), ignore_signals() if "LOGLEVEL" not in before else nullcontext():
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(before)


def _signals() -> list[signal.Signals]:
    """Return those that are passed on to the processes; under nohup, SIGHUP is not."""
    names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1")
    here = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [number for number in here if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN]


def threads_each(processes: int) -> int:
    """Share the cores out: torch would start a thread per core in every process, and torchrun only one."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // processes)


def _announce(launch: Launch, *, silent: bool) -> None:
    if silent:
        return
    threads = os.environ["OMP_NUM_THREADS"]
    where = f" on each of {launch.nodes} machines, which meet at {launch.rendezvous}" if launch.nodes > 1 else ""
    each = f"{format_count(int(threads), 'thread')} each" if threads.isdigit() else f"OMP_NUM_THREADS={threads}"
    print(f"Starts {format_count(launch.processes, 'process')}{where}; {each} (OMP_NUM_THREADS).", file=sys.stderr)


def _torchrun_flags(launch: Launch) -> list[str]:
    from torch.distributed.run import get_args_parser

    flags = ["--nnodes", str(launch.nodes), "--nproc-per-node", str(launch.processes)]
    flags += ["--max-restarts", str(launch.max_restarts)]
    if launch.rendezvous is None:
        flags += ["--standalone", "--local-addr", "localhost"]  # a machine need not be able to resolve its own name
    else:
        host, port = host_and_port(launch.rendezvous)
        if own := local_address_for(host, port):  # a machine's name may mean nothing to the others, or itself to each
            flags += ["--local-addr", own]
        elsewhere = "" if is_local(launch.rendezvous) else ",is_host=0"
        configuration = f"join_timeout={JOIN_S},read_timeout={JOIN_S}{elsewhere}"
        flags += ["--rdzv-backend", "c10d", "--rdzv-endpoint", launch.rendezvous, "--rdzv-conf", configuration]
        flags += ["--rdzv-id", os.environ.get("SLURM_JOB_ID", "trueloop")]
    wanted = {  # neither is in older versions of torch, which wait 30 s
        "--signals-to-handle": ",".join(number.name for number in _signals()),
        "--shutdown-timeout": str(GRACE_S),
    }
    known = get_args_parser()._option_string_actions  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    return flags + [word for flag, value in wanted.items() if flag in known for word in (flag, value)]


def _escaped(word: str) -> str:
    """Escape a `$`: torchrun replaces `${local_rank}` and makes one of two."""
    return word.replace("$", "$$")


# After the end ---------------------------------------------------------------------------------------------------


def _by_signal(exit_code: int) -> bool:
    return exit_code < 0 and exit_code != -signal.SIGTERM  # that one torchrun sends to those that are left


def _stopped(outcomes: Sequence[Outcome], number: signal.Signals) -> int:
    """Print how a run ended that received a stop signal."""
    failed = first_failed(outcomes)
    if failed and not failed.lost:  # one that finished before the signal leaves the others alone
        _show(failed)
        raise error_of(failed)
    return EXIT_CODES["interrupted" if number == signal.SIGINT else "preempted"]


def _failed(outcomes: Sequence[Outcome], first: tuple[int, int], launch: Launch) -> int:
    """Say what went wrong first; the other processes only fell with it."""
    rank, exit_code = first
    if not _by_signal(exit_code):
        failed = first_failed(outcomes)
        if failed:
            _show(failed)
            raise error_of(failed)
        if code := _told_to_stop(outcomes):
            return code
    raise killed(rank, exit_code, restarts=launch.max_restarts)


def _told_to_stop(outcomes: Sequence[Outcome]) -> int:
    """Return the exit code if all processes received the stop signal without torchrun; else 0."""
    codes = {outcome.code for outcome in outcomes} - {0}
    return max(codes) if codes and codes <= {*EXIT_CODES.values()} else 0


def _show(failed: Outcome) -> None:
    if failed.traceback:
        print(f"Rank {failed.rank}:\n{failed.traceback}", file=sys.stderr, end="", flush=True)
