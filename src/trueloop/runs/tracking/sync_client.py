"""The process that follows a journal, as the process that trains sees it: started, let go, listened to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trueloop.core.fork_safety import handles_closed_after_fork
from trueloop.core.protocols import Notice, RunEnded, RunEvent, UpdatesDone
from trueloop.runs.tracking.target import Target

DRAIN_TIMEOUT_S = 5.0  # at the end of training, for the store to have everything; it goes on alone after that

_PIPES = handles_closed_after_fork()  # a forked loader process that kept one would hide from the follower that we are gone


class SyncClient:
    """A process of its own that copies this run's journal into a store; a `Reporter`, to be told last.

    Args:
        run_dir: the run's folder.
        target: the store.
        on_problem: hears the one warning, where the store is down, slow or refuses.

    Cost: starting it takes some milliseconds; an event, one comparison.
    """

    def __init__(self, run_dir: Path, target: Target, on_problem: Callable[[Notice], None]) -> None:
        self._run_dir, self._target, self._on_problem = run_dir, target, on_problem
        self._update = 0
        self._problem = ""
        self._reported = self._done = False
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._listener: threading.Thread | None = None
        self._start()

    def report(self, event: RunEvent) -> None:
        """Look whether the follower has met a problem, and pass it on once."""
        if isinstance(event, UpdatesDone):
            self._update = event.rows[-1].update if event.rows else self._update
        elif isinstance(event, RunEnded):
            self._update = event.update
            self.close()  # it finishes while curves are drawn; and nothing is journaled behind the end
            return
        if self._problem and not self._reported and self._pipe in _PIPES:
            self._reported = True
            self._on_problem(self._make_note("store_down", self._problem))

    def close(self) -> None:
        """Let the follower finish what the journal holds; closing twice is harmless."""
        if self._pipe in _PIPES:
            _PIPES.discard(self._pipe)
            os.close(self._pipe)
        self._pipe = -1

    def wait(self, seconds: float = DRAIN_TIMEOUT_S) -> Notice | None:
        """Wait a little for the store to have everything; returns what it lacks, where nobody was told yet."""
        self.close()
        if self._listener and not self._problem:
            self._listener.join(seconds)
        if self._done or (self._problem and self._reported):
            return None
        if self._problem:
            return self._make_note("store_down", self._problem)
        number = self._process.pid if self._process else 0
        return self._make_note(
            "store_behind",
            f"The store {self._target.display} is still being written: process {number} goes on alone. "
            f"Should it be cut off: {self._target.sync_command(self._run_dir)}",
        )

    def _start(self) -> None:
        command = [sys.executable, "-P", "-m", "trueloop.runs.tracking.sync_process", str(self._run_dir)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        reading, self._pipe = os.pipe()
        _PIPES.add(self._pipe)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [*command, "--store", "-"],
                stdin=reading,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the trainer, which decides
            )
            os.write(
                self._pipe, f"{json.dumps(self._target.url)}\n".encode()
            )  # one line, whatever a folder is called
        except OSError as error:
            self._problem = (
                f"The store {self._target.display} is not written: no process can be started ({error}). "
                f"Later: {self._target.sync_command(self._run_dir)}"
            )
            return
        finally:
            os.close(reading)
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Hear what the follower says, on a thread that sleeps until it does."""
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                with suppress(ValueError):
                    self._handle_message(json.loads(line))
        code = process.wait()
        if not self._done and not self._problem:
            again = self._target.sync_command(self._run_dir)
            self._problem = (
                f"The process that writes the store {self._target.display} ended early (exit code {code}). "
                f"The journal is whole; {again} copies what is missing."
            )

    def _handle_message(self, record: dict[str, Any]) -> None:
        if record.get("said") == "done":
            self._done = True
        elif record.get("said") in ("down", "failed"):
            self._problem = self._target.hide(str(record.get("message", "")))

    def _make_note(self, kind: str, message: str) -> Notice:
        return Notice(update=self._update, kind=kind, message=message, details={"store": self._target.display})
