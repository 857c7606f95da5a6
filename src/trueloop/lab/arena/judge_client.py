"""The client of the judge process, which imports torch; the caller's process does not."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import count
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Any

from trueloop.core.errors import BoardError, MissingExtra
from trueloop.core.untrusted_input import parse_record
from trueloop.lab.arena.tracks import Track
from trueloop.lab.arena.trial import CurveCallback, Job, Point, Trial

MessageQueue = SimpleQueue[Mapping[str, Any] | None]
"""Messages about one job; None when the judge process has ended."""


class _MessageRouter:
    """Routes the messages of one judge process to the callers that wait for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, MessageQueue] = {}
        self._ended = False

    def subscribe(self, number: int, answers: MessageQueue) -> _MessageRouter:
        with self._lock:
            self._waiting[number] = answers
            if self._ended:
                answers.put(None)
        return self

    def unsubscribe(self, number: int) -> None:
        with self._lock:
            self._waiting.pop(number, None)

    def dispatch(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            if (answers := self._waiting.get(message["id"])) is not None:
                answers.put(message)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for answers in self._waiting.values():
                answers.put(None)


class JudgeClient:
    """Runs jobs in a process that the first job starts. Thread-safe: each call of `run` waits for its own result."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._last_error = "no error message."
        self._thread: threading.Thread | None = None
        self._router = _MessageRouter()
        self._versions: Mapping[str, str] = {}
        self._closed = False

    def run(
        self,
        job: Job,
        on_points: CurveCallback = lambda points: None,
        *,
        on_start: Callable[[int], None] = lambda number: None,
    ) -> Trial:
        """Run a job and return its result; the job gets a new ``id``.

        Args:
            job: the job to run.
            on_points: function that receives the new points of the curve.
            on_start: function that receives the id by which the job can be stopped.

        Raises:
            BoardError: the judge process ended; the job may be run again.
        """
        has_points = False

        def forward_points(points: list[Point]) -> None:
            nonlocal has_points
            has_points = True
            on_points(points)

        trial = self._run(job, forward_points, on_start)
        if trial is None and not has_points:  # the idle process had just ended
            trial = self._run(job, forward_points, on_start)
        if trial is None:
            raise BoardError(f"The judge process ended: {self._last_error}", fix="Submit the entry again.")
        return trial

    def _run(self, job: Job, on_points: CurveCallback, on_start: Callable[[int], None]) -> Trial | None:
        number, messages = next(self._ids), MessageQueue()
        with self._lock:
            if self._closed:
                return None
            self._start()
            router = self._router.subscribe(number, messages)
            self._send({"do": "run", "job": asdict(replace(job, id=number))})
        on_start(number)
        try:
            while (message := messages.get()) is not None:
                if message["kind"] == "done":
                    return parse_record(Trial, message["trial"])
                on_points([(u, e, a) for u, e, a in message["points"]])
        finally:
            router.unsubscribe(number)
        return None

    def stop(self, job_id: int) -> None:
        """Stop a running or waiting job; `run` then returns its result."""
        with self._lock:
            self._send({"do": "stop", "id": job_id})

    def versions(self) -> Mapping[str, str]:
        """Return the versions that determine the bits of a run; known after the first job."""
        return self._versions

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def close(self) -> None:
        """End the process and its jobs permanently."""
        with self._lock:
            self._closed = True
            self._end()

    def __enter__(self) -> JudgeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        if not hasattr(os, "fork"):
            raise BoardError("The judge runs entries in forked processes, which this system does not support.")
        self._end()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - stays open until the process ends
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trueloop.lab.arena.judge_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches only this process, which then ends the judge
        )
        self._router = _MessageRouter()
        self._thread = threading.Thread(
            target=self._read_messages, args=(self._process, self._errors, self._router), daemon=True
        )
        self._thread.start()

    def _end(self) -> None:
        """End the process, if there is one, and close its pipes."""
        process, errors, thread = self._process, self._errors, self._thread
        if process is None or errors is None or thread is None:
            return
        self._process = self._errors = self._thread = None
        assert process.stdin is not None
        with suppress(OSError):  # data that was not sent yet cannot be written
            process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        thread.join()
        errors.close()

    def _send(self, command: Mapping[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # the process has ended; waiting callers are notified
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                self._process.stdin.flush()

    def _read_messages(self, process: subprocess.Popen[bytes], errors: IO[bytes], router: _MessageRouter) -> None:
        assert process.stdout is not None
        for text in process.stdout:
            if not text.endswith(b"\n"):  # killed in the middle of a line
                break
            message = json.loads(text)
            if message["kind"] == "ready":
                self._versions = message["versions"]
            else:
                router.dispatch(message)
        process.wait()
        process.stdout.close()
        self._record_last_error(errors)
        router.end()

    def _record_last_error(self, errors: IO[bytes]) -> None:
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
        self._last_error = lines[-1] if lines else "no error message."


def check_installed(track: Track) -> None:
    """Check that this installation can run a track.

    Raises:
        MissingExtra: torch or the package with the track's data is missing.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", "train")
    if any("sklearn" in line for line in track.imports) and importlib.util.find_spec("sklearn") is None:
        raise MissingExtra("scikit-learn", "demo")
