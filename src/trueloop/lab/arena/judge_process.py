"""The judge process, ``python -P -m trueloop.lab.arena.judge_process``: reads jobs and writes results as JSON lines.

The process imports torch and runs each job in its own fork with limits of time and memory. After ``{"kind": "ready",
"versions": {...}}`` it writes ``{"id", "kind": "curve", "points"}`` while a job runs and ``{"id", "kind": "done",
"trial"}`` at its end. The process ends when its input ends.
"""

import json
import os
import platform
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from trueloop.core.errors import TrueloopError
from trueloop.core.untrusted_input import parse_record
from trueloop.failures.load import catalogue
from trueloop.lab.arena.attempt import run_job
from trueloop.lab.arena.trial import MAX_CPU_S, MAX_EXTRA_MIB, MAX_WALL_S, End, Job, Point, Trial
from trueloop.lab.forking import limit_memory, warm_up
from trueloop.version import __version__

MAX_RUNNING: Final = 2  # largest number of jobs that run at the same time
IDLE_TIMEOUT_S: Final = 120.0  # time without a job after which the process ends
NICE: Final = 5  # gives jobs a lower priority than the client that waits for them
KILLED: Final = "The process of the run was killed."
READ_BYTES: Final = 1 << 16  # largest number of bytes to read at once


@dataclass(slots=True, kw_only=True)
class _RunningJob:
    """A job and the forked process that runs it."""

    job: Job
    pid: int
    folder: str
    deadline_s: float
    unparsed: bytes = b""
    """Received bytes of a line that is not complete yet."""
    is_done: bool = False
    """True if the job has sent its result."""
    is_late: bool = False
    """True if the job was killed because it took too long."""


class JudgeProcess:
    """Runs jobs, at most `MAX_RUNNING` at a time, in a single thread, because it forks."""

    def __init__(self, source: int, out: int) -> None:
        self._source, self._out = source, out
        self._selector = selectors.DefaultSelector()
        self._selector.register(source, selectors.EVENT_READ, None)
        self._waiting: deque[Job] = deque()
        self._running: dict[int, _RunningJob] = {}  # by the pipe that the job writes to
        self._unparsed = b""  # received bytes of a command that is not complete yet
        self._last_busy_s = time.monotonic()

    def serve(self) -> None:
        """Run jobs until the input ends or the idle timeout passes; then kill running jobs."""
        try:
            while self._is_busy():
                for key, _ in self._selector.select(timeout=0.5):
                    if key.data is not None:
                        self._read_job(key.data)
                    elif not self._read_commands():
                        return
                self._kill_late_jobs()
                while self._waiting and len(self._running) < MAX_RUNNING:
                    self._start(self._waiting.popleft())
        finally:
            for running in self._running.values():
                os.kill(running.pid, signal.SIGKILL)
                os.waitpid(running.pid, 0)
                shutil.rmtree(running.folder, ignore_errors=True)

    def _is_busy(self) -> bool:
        now = time.monotonic()
        if self._running or self._waiting:
            self._last_busy_s = now
        return now - self._last_busy_s < IDLE_TIMEOUT_S

    def _read_commands(self) -> bool:
        """Execute the received commands; return False if the input has ended."""
        data = os.read(self._source, READ_BYTES)
        *lines, self._unparsed = (self._unparsed + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command["do"] == "stop":
                self._stop(command["id"])
            else:
                self._waiting.append(parse_record(Job, command["job"]))
        return bool(data)

    def _stop(self, job_id: int) -> None:
        for waiting_job in [each for each in self._waiting if each.id == job_id]:
            self._waiting.remove(waiting_job)
            trial = Trial(seed=waiting_job.seed, end=End.STOPPED.value, why=KILLED)
            self._send({"id": job_id, "kind": "done", "trial": asdict(trial)})
        for running in self._running.values():
            if running.job.id == job_id:
                os.kill(running.pid, signal.SIGKILL)

    def _start(self, job: Job) -> None:
        folder = tempfile.mkdtemp(prefix="trueloop-arena-")  # removed by this process, as the job may be killed
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run_in_child(job, Path(folder), write_end, close=(read_end, self._source, self._out, *self._running))
        os.close(write_end)
        deadline_s = time.monotonic() + MAX_WALL_S
        self._running[read_end] = _RunningJob(job=job, pid=pid, folder=folder, deadline_s=deadline_s)
        self._selector.register(read_end, selectors.EVENT_READ, read_end)

    def _read_job(self, pipe: int) -> None:
        running = self._running[pipe]
        data = os.read(pipe, READ_BYTES)
        *lines, running.unparsed = (running.unparsed + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            running.is_done = running.is_done or message["kind"] == "done"
            self._send({"id": running.job.id, **message})
        if not data:
            self._finish_job(pipe)

    def _finish_job(self, pipe: int) -> None:
        running = self._running.pop(pipe)
        self._selector.unregister(pipe)
        os.close(pipe)
        _, status = os.waitpid(running.pid, 0)
        shutil.rmtree(running.folder, ignore_errors=True)
        if not running.is_done:
            trial = _killed_trial(running, status)
            self._send({"id": running.job.id, "kind": "done", "trial": asdict(trial)})

    def _kill_late_jobs(self) -> None:
        for running in self._running.values():
            if not running.is_late and time.monotonic() > running.deadline_s:
                running.is_late = True
                os.kill(running.pid, signal.SIGKILL)

    def _send(self, message: Mapping[str, Any]) -> None:
        send_message(self._out, message)


def send_message(out: int, message: Mapping[str, Any]) -> None:
    """Write one message completely, as a line."""
    data = memoryview(json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n")
    while data:
        data = data[os.write(out, data) :]


def versions() -> dict[str, str]:
    """Return the versions that determine the bits of a run."""
    import torch

    return {
        "trueloop": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def _killed_trial(running: _RunningJob, status: int) -> Trial:
    """Return the result of a job whose process was killed."""
    signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if running.is_late:
        reason = f"The run took more than {MAX_WALL_S:.0f} s."
    elif signal_number == signal.SIGXCPU:
        reason = f"The run took more than {MAX_CPU_S} s of CPU time."
    elif signal_number == signal.SIGKILL:
        reason = KILLED
    else:
        cause = signal.Signals(signal_number).name if signal_number else f"exit code {os.WEXITSTATUS(status)}"
        reason = f"The process of the run ended with {cause}."
    end = End.STOPPED if running.is_late or signal_number in (signal.SIGXCPU, signal.SIGKILL) else End.FAILED
    return Trial(seed=running.job.seed, end=end.value, why=reason)


def _run_in_child(job: Job, folder: Path, write_end: int, close: tuple[int, ...]) -> None:
    """Run a job in the forked child, and exit."""
    code = 1
    try:
        for descriptor in close:
            os.close(descriptor)
        _apply_limits()
        errors = folder / "stderr"
        _redirect_output(errors)

        def send_points(points: list[Point]) -> None:
            send_message(write_end, {"kind": "curve", "points": points})

        try:
            trial = run_job(job, folder, send_points, lambda: _last_line(errors))
        except MemoryError:
            reason = f"The run took more than {MAX_EXTRA_MIB} MiB of memory."
            trial = Trial(seed=job.seed, end=End.STOPPED.value, why=reason)
        except TrueloopError as error:
            trial = Trial(seed=job.seed, end=End.FAILED.value, why=error.what)
        send_message(write_end, {"kind": "done", "trial": asdict(trial)})
        code = 0
    finally:
        os._exit(code)


def _apply_limits() -> None:
    """Limit the CPU time and memory of this process, and lower its priority."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S + 5))
    limit_memory(MAX_EXTRA_MIB << 20)
    os.nice(NICE)


def _redirect_output(errors: Path) -> None:
    devnull = os.open(os.devnull, os.O_RDWR)
    error_file = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, target in ((devnull, 0), (devnull, 1), (error_file, 2)):
        os.dup2(descriptor, target)


def _last_line(errors: Path) -> str:
    lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else ""


def main() -> None:
    """Serve standard input and output; other prints go to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm_up()
    import_module("trueloop.sanitizer.watch")
    catalogue()  # now, so that the memory of a run does not include it
    send_message(out, {"kind": "ready", "versions": versions()})
    JudgeProcess(0, out).serve()


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(1)
