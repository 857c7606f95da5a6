"""Report to the launcher how each process of a run ended, so that the user sees one error and not one per process.

Every process writes a file to a folder that `trueloop.cli.torchrun` created and named in the environment. The files
also prevent useless restarts: an invalid setting stays invalid after a restart.
"""

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from trueloop.core.errors import ProcessLost, TrueloopError
from trueloop.core.formatting import format_count
from trueloop.training.distributed.launcher_env import LaunchInfo, read_launch_info
from trueloop.training.interrupt import EXIT_CODES

FOLDER: Final = "TRUELOOP_OUTCOMES"
"""Environment variable that names the folder; set in processes that `trueloop train --processes` started."""
LAUNCHER: Final = "launcher"
"""Name of the file in the folder with the pid of the launcher."""

_NETWORK_ERRORS: Final = ("gloo/", "NCCL", "Connection reset", "Connection closed", "Broken pipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one process."""

    rank: int
    restart: int
    """Number of the attempt that the process belonged to, from 0."""
    code: int
    """Exit code of the process."""
    ended_at: float
    """Time of the end in seconds since 1970, by the clock of this machine."""
    what: str = ""
    """Message of the `TrueloopError` that ended the process, with its ``why`` and ``fix``; "" = no such error."""
    why: str = ""
    fix: str = ""
    traceback: str = ""
    """Traceback of another exception that ended the process; "" = no such exception."""
    lost: bool = False
    """True if the process ended because it could not reach another process, whose end is the cause."""

    @property
    def failed(self) -> bool:
        """True if an exception ended the process."""
        return bool(self.what or self.traceback)


def report_outcome(work: Callable[[], int]) -> int:
    """Do the work of a process and return its exit code; a process of a launch writes its outcome to a file.

    Args:
        work: function that returns the exit code. In a process of a launch, its exception is written to the file
            instead of being raised, and the exit code is 1.
    """
    launch = read_launch_info()
    if launch is not None and launch.launcher == "torchrun":
        _end_with_launcher()
    if launch is None or FOLDER not in os.environ:
        return work()
    folder = Path(os.environ[FOLDER])
    final_code = folder / "final"  # this file exists if a process ended in a way that no restart can fix
    if final_code.exists():
        return int(final_code.read_text())
    _outcome_path(folder, launch, launch.restarts).with_suffix(".started").touch()
    if launch.restarts and launch.local_rank == 0:
        _print_restart_reason(read_outcomes(folder, launch.restarts - 1), launch)
    try:
        code = work()
    except Exception as error:  # noqa: BLE001 - the launcher prints the error once for all processes
        if not _is_network_error(error) and (isinstance(error, TrueloopError) or _is_repeated(folder, launch, error)):
            with suppress(FileNotFoundError):
                final_code.write_text("1")
        _write_outcome(folder, launch, 1, error)
        if isinstance(error, ProcessLost) and launch.nodes > 1:  # the rendezvous after a restart may take minutes
            print(f"Rank {launch.rank}: {error.what} {error.why}".rstrip(), file=sys.stderr, flush=True)
        return 1
    except BaseException as end:
        _write_outcome(folder, launch, 130 if isinstance(end, KeyboardInterrupt) else _exit_code(end), None)
        raise
    _write_outcome(folder, launch, code, None)
    return code


def read_outcomes(folder: Path, restart: int | None = None) -> list[Outcome]:
    """Return the outcomes that the processes on this machine have written, sorted by the time of the end.

    Args:
        folder: folder of the outcomes.
        restart: number of the attempt; None = the newest attempt.
    """
    outcomes: list[Outcome] = []
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError, TypeError):
            outcomes.append(Outcome(**json.loads(path.read_text(encoding="utf-8"))))
    if restart is None:
        restart = max((int(path.name.partition("-")[0]) for path in folder.glob("*.started")), default=0)
    return sorted((outcome for outcome in outcomes if outcome.restart == restart), key=lambda outcome: outcome.ended_at)


def _end_with_launcher() -> None:
    """Make Linux send SIGTERM to this process when the launcher dies; otherwise this process would continue."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG
    with suppress(KeyError, OSError, ValueError):
        if os.getppid() != int((Path(os.environ[FOLDER]) / LAUNCHER).read_text()):  # the launcher has died already
            raise SystemExit(EXIT_CODES["preempted"])


def _write_outcome(folder: Path, launch: LaunchInfo, code: int, error: Exception | None) -> None:
    texts: dict[str, str] = {}
    if isinstance(error, TrueloopError):
        texts = {"what": error.what, "why": error.why, "fix": error.fix}
    elif error is not None:
        texts = {"traceback": "".join(traceback.format_exception(error))}
    lost = error is not None and _is_network_error(error)
    outcome = Outcome(rank=launch.rank, restart=launch.restarts, code=code, ended_at=time.time(), lost=lost, **texts)
    path = _outcome_path(folder, launch, launch.restarts)
    temporary = path.with_suffix(".part")
    with suppress(FileNotFoundError):  # the launcher has ended, so nothing reads the outcome
        temporary.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
        temporary.replace(path)


def _outcome_path(folder: Path, launch: LaunchInfo, restart: int) -> Path:
    return folder / f"{restart}-{launch.local_rank}.json"


def _exit_code(end: BaseException) -> int:
    code = getattr(end, "code", 1)
    return code if isinstance(code, int) else int(code is not None)


def _is_network_error(error: Exception) -> bool:
    """Return True if an error only means that another process has ended; gloo and NCCL have no class for this."""
    return isinstance(error, (ConnectionError, ProcessLost)) or any(word in str(error) for word in _NETWORK_ERRORS)


def _is_repeated(folder: Path, launch: LaunchInfo, error: Exception) -> bool:
    """Return True if the previous attempt ended with the same traceback, so that the next attempt would as well."""
    try:
        text = _outcome_path(folder, launch, launch.restarts - 1).read_text(encoding="utf-8")
        previous = json.loads(text)["traceback"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(previous) and previous == "".join(traceback.format_exception(error))


def _print_restart_reason(outcomes: Sequence[Outcome], launch: LaunchInfo) -> None:
    """Print why the processes of this machine were restarted, given the outcomes of the previous attempt."""
    reported = {outcome.rank for outcome in outcomes}
    ranks = range(launch.rank, launch.rank + launch.local_size)
    reasons = [f"rank {rank} was killed" for rank in ranks if rank not in reported]
    if (failed := first_failed(outcomes)) and not (reasons and failed.lost):
        reasons.append(f"rank {failed.rank} failed: {_last_line(failed)}")
    reason = "; ".join(reasons) or "a machine was lost or joined"
    print(f"Restart {launch.restarts}: {reason.rstrip('.')}.", file=sys.stderr, flush=True)


def first_failed(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the first failure that is not just the loss of another process, else the first failure, if any.

    Args:
        outcomes: outcomes of one attempt, sorted by the time of the end.
    """
    return min((outcome for outcome in outcomes if outcome.failed), key=lambda outcome: outcome.lost, default=None)


def _last_line(failed: Outcome) -> str:
    return failed.what or failed.traceback.strip().splitlines()[-1]


def as_error(outcome: Outcome) -> TrueloopError:
    """Return the error of a process, to be raised by the launcher after printing the traceback."""
    if outcome.what:
        return TrueloopError(outcome.what, why=outcome.why, fix=outcome.fix)
    return TrueloopError(
        f"Rank {outcome.rank} failed: {_last_line(outcome)}", fix="The traceback of that process is printed above."
    )


def lost_process_error(rank: int, exit_code: int, *, restarts: int) -> ProcessLost:
    """Return the error for a process that wrote no outcome.

    Args:
        rank: rank of the process.
        exit_code: exit code as in Python's subprocess, negative for a signal.
        restarts: number of allowed restarts.
    """
    try:
        end = f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        end = f"ended with exit code {exit_code}"
    attempts = f"; {format_count(restarts, 'restart')} did not help" if restarts else ""
    memory = (
        " The kernel may have killed it because memory ran out: see `dmesg`." if -exit_code == signal.SIGKILL else ""
    )
    return ProcessLost(
        f"Rank {rank} {end}{attempts}.",
        why=f"The other processes were ended as well.{memory}",
        fix="The same command continues from the last complete checkpoint; --max-restarts does this automatically.",
    )
