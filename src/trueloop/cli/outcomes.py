"""Reports how each process of a run ended to the launcher: one error for the user, not one per process.

Every process writes a file into a folder that `torchrun` made and named in the environment. It also prevents
useless restarts: a setting that cannot work will not work the fourth time either.
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
"""The variable that names the folder; set in processes that `trueloop train --processes` has started."""
LAUNCHER: Final = "launcher"
"""The file in it with the number of the process that started them."""

_OF_NETWORK: Final = ("gloo/", "NCCL", "Connection reset", "Connection closed", "Broken pipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one process."""

    rank: int
    restart: int
    """Which attempt it belonged to, from 0."""
    code: int
    """Its exit code."""
    ended_at: float
    """Seconds since 1970, by the clock of this machine."""
    what: str = ""
    why: str = ""
    fix: str = ""
    """Of a `TrueloopError`."""
    traceback: str = ""
    """Of any other exception."""
    lost: bool = False
    """It could not reach another process: what happened to that one is the cause."""

    @property
    def failed(self) -> bool:
        """An exception ended it."""
        return bool(self.what or self.traceback)


def report_outcome(act: Callable[[], int]) -> int:
    """Do the work of a process; if `trueloop train` has started it, write how it ended to a file.

    Args:
        act: returns the exit code. An exception of it is written down instead of printed, and the code is 1.
    """
    place = read_launch_info()
    if place is not None and place.launcher == "torchrun":
        _end_with_launcher()
    if place is None or FOLDER not in os.environ:
        return act()
    folder = Path(os.environ[FOLDER])
    final = (
        folder / "final"
    )  # an earlier attempt of this process, or of its neighbour, ended in a way that no restart can fix
    if final.exists():
        return int(final.read_text())
    _path(folder, place, place.restarts).with_suffix(".started").touch()
    if place.restarts and place.local_rank == 0:
        _log_restart_reason(read_outcomes(folder, place.restarts - 1), place)
    try:
        code = act()
    except Exception as error:  # noqa: BLE001 - the launcher prints it, once for all processes
        if not _is_of_network(error) and (isinstance(error, TrueloopError) or _same_again(folder, place, error)):
            with suppress(FileNotFoundError):
                final.write_text("1")
        _write(folder, place, 1, error)
        if isinstance(error, ProcessLost) and place.nodes > 1:  # to meet the others again may take minutes
            print(f"Rank {place.rank}: {error.what} {error.why}".rstrip(), file=sys.stderr, flush=True)
        return 1
    except BaseException as end:
        _write(folder, place, 130 if isinstance(end, KeyboardInterrupt) else _code(end), None)
        raise
    _write(folder, place, code, None)
    return code


def read_outcomes(folder: Path, restart: int | None = None) -> list[Outcome]:
    """Return what the processes on this machine have written, first end first.

    Args:
        folder: where they write.
        restart: the attempt that is asked for; None = the newest one.
    """
    found: list[Outcome] = []
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError, TypeError):
            found.append(Outcome(**json.loads(path.read_text(encoding="utf-8"))))
    if restart is None:
        restart = max((int(path.name.partition("-")[0]) for path in folder.glob("*.started")), default=0)
    return sorted((outcome for outcome in found if outcome.restart == restart), key=lambda outcome: outcome.ended_at)


def _end_with_launcher() -> None:
    """Ask Linux for a SIGTERM when the launcher dies: nothing else would end this process, or restart it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG
    with suppress(KeyError, OSError, ValueError):
        if os.getppid() != int((Path(os.environ[FOLDER]) / LAUNCHER).read_text()):  # it died in the meantime
            raise SystemExit(EXIT_CODES["preempted"])


def _write(folder: Path, place: LaunchInfo, code: int, error: Exception | None) -> None:
    words: dict[str, str] = {}
    if isinstance(error, TrueloopError):
        words = {"what": error.what, "why": error.why, "fix": error.fix}
    elif error is not None:
        words = {"traceback": "".join(traceback.format_exception(error))}
    lost = error is not None and _is_of_network(error)
    outcome = Outcome(rank=place.rank, restart=place.restarts, code=code, ended_at=time.time(), lost=lost, **words)
    path = _path(folder, place, place.restarts)
    part = path.with_suffix(".part")
    with suppress(FileNotFoundError):  # the launcher has ended, and nothing reads it
        part.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
        part.replace(path)


def _path(folder: Path, place: LaunchInfo, restart: int) -> Path:
    return folder / f"{restart}-{place.local_rank}.json"


def _code(end: BaseException) -> int:
    code = getattr(end, "code", 1)
    return code if isinstance(code, int) else int(code is not None)


def _is_of_network(error: Exception) -> bool:
    """Whether it only says that another process is gone: gloo and NCCL raise no class of their own for that."""
    return isinstance(error, (ConnectionError, ProcessLost)) or any(word in str(error) for word in _OF_NETWORK)


def _same_again(folder: Path, place: LaunchInfo, error: Exception) -> bool:
    """Whether the attempt before ended in this very line: then the next one would, too."""
    try:
        before = json.loads(_path(folder, place, place.restarts - 1).read_text(encoding="utf-8"))["traceback"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(before) and before == "".join(traceback.format_exception(error))


def _log_restart_reason(before: Sequence[Outcome], place: LaunchInfo) -> None:
    """Let the first process on the machine print why it was restarted."""
    if not place.restarts or place.local_rank:
        return
    reported = {outcome.rank for outcome in before}
    reasons = [
        f"rank {rank} was killed" for rank in range(place.rank, place.rank + place.local_size) if rank not in reported
    ]
    if (failed := first_failed(before)) and not (reasons and failed.lost):
        reasons.append(f"rank {failed.rank} failed: {_last_line(failed)}")
    why = "; ".join(reasons) or "a machine was lost, or came"
    print(f"Restart {place.restarts}: {why.rstrip('.')}.", file=sys.stderr, flush=True)


def first_failed(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the root failure: the first one that is not just the loss of another process.

    Args:
        outcomes: of one attempt, in the order of their ends.
    """
    return min((outcome for outcome in outcomes if outcome.failed), key=lambda outcome: outcome.lost, default=None)


def _last_line(failed: Outcome) -> str:
    return failed.what or failed.traceback.strip().splitlines()[-1]


def error_of(outcome: Outcome) -> TrueloopError:
    """Return the error of a process as the launcher's own; a traceback has been printed before."""
    if outcome.what:
        return TrueloopError(outcome.what, why=outcome.why, fix=outcome.fix)
    return TrueloopError(
        f"Rank {outcome.rank} failed: {_last_line(outcome)}", fix="The traceback above is that process's."
    )


def killed(rank: int, exit_code: int, *, restarts: int) -> ProcessLost:
    """Return the error of a process that wrote no outcome.

    Args:
        rank: of the process.
        exit_code: as Python's subprocess has it: negative for a signal.
        restarts: that were allowed.
    """
    try:
        how = f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        how = f"ended with exit code {exit_code}"
    again = f"; {format_count(restarts, 'restart')} did not help" if restarts else ""
    memory = " Often it is the kernel, because memory ran out: see `dmesg`." if exit_code == -signal.SIGKILL else ""
    return ProcessLost(
        f"Rank {rank} {how}{again}.",
        why=f"The others were ended too.{memory}",
        fix="The same command continues from the last complete checkpoint; --max-restarts does so automatically.",
    )
