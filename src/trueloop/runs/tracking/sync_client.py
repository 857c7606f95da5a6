"""Start and monitor the process that syncs a journal to a store, from the training process."""

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

DRAIN_TIMEOUT_S = 5.0  # wait for the store at the end of training; after that, the sync process continues alone

# A copy of the pipe in a forked loader process would hide the end of training from the sync process.
_PIPES = handles_closed_after_fork()


class SyncClient:
    """A `Reporter` that runs a separate process to sync the journal to a store; it must be called after the journal.

    Args:
        run_dir: the run folder.
        target: the store.
        on_problem: function that is called at most once, if the store is down, slow, or rejects the run.

    Cost: a few milliseconds to start; one comparison per event.
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
        """Track the newest update, and report a problem of the sync process once."""
        if isinstance(event, UpdatesDone):
            self._update = event.rows[-1].update if event.rows else self._update
        elif isinstance(event, RunEnded):
            self._update = event.update
            self.close()  # the sync finishes while curves are drawn; nothing may be journaled after the end
            return
        if self._problem and not self._reported and self._pipe in _PIPES:
            self._reported = True
            self._on_problem(self._make_note("store_down", self._problem))

    def close(self) -> None:
        """Let the sync process copy the rest of the journal and end; closing twice is harmless."""
        if self._pipe in _PIPES:
            _PIPES.discard(self._pipe)
            os.close(self._pipe)
        self._pipe = -1

    def wait(self, seconds: float = DRAIN_TIMEOUT_S) -> Notice | None:
        """Wait briefly for the sync to finish; return a note if the sync is incomplete and no problem was reported."""
        self.close()
        if self._listener and not self._problem:
            self._listener.join(seconds)
        if self._done or (self._problem and self._reported):
            return None
        if self._problem:
            return self._make_note("store_down", self._problem)
        pid = self._process.pid if self._process else 0
        return self._make_note(
            "store_behind",
            f"The store {self._target.display} is still being written: process {pid} continues in the background. "
            f"If it is interrupted: {self._target.sync_command(self._run_dir)}",
        )

    def _start(self) -> None:
        command = [sys.executable, "-P", "-m", "trueloop.runs.tracking.sync_process", str(self._run_dir)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        read_end, self._pipe = os.pipe()
        _PIPES.add(self._pipe)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a module of trueloop
                [*command, "--store", "-"],
                stdin=read_end,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C goes to the trainer only
            )
            # JSON stays on one line even if a folder name contains a newline.
            os.write(self._pipe, f"{json.dumps(self._target.url)}\n".encode())
        except OSError as error:
            self._problem = (
                f"The store {self._target.display} is not written: no process can be started ({error}). "
                f"Later: {self._target.sync_command(self._run_dir)}"
            )
            return
        finally:
            os.close(read_end)
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Handle the messages of the sync process, on a thread that waits for them."""
        assert process.stdout is not None
        with process.stdout as messages:
            for line in messages:
                with suppress(ValueError):
                    self._handle_message(json.loads(line))
        code = process.wait()
        if not self._done and not self._problem:
            command = self._target.sync_command(self._run_dir)
            self._problem = (
                f"The process that writes the store {self._target.display} ended early (exit code {code}). "
                f"The journal is complete; {command} copies what is missing."
            )

    def _handle_message(self, record: dict[str, Any]) -> None:
        if record.get("event") == "done":
            self._done = True
        elif record.get("event") in ("down", "failed"):
            self._problem = self._target.hide(str(record.get("message", "")))

    def _make_note(self, kind: str, message: str) -> Notice:
        return Notice(update=self._update, kind=kind, message=message, details={"store": self._target.display})
