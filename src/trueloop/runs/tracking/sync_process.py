"""Run the process that syncs a journal to a store: python -m trueloop.runs.tracking.sync_process RUN --store URL.

The training process (the trainer) starts this process, which never imports torch. Its standard input is a pipe from the
trainer. When the trainer ends in any way, the pipe reaches end of file; this process then copies the rest of the
journal and exits. It writes messages to standard output, one JSON object per line:

    {"event": "down", "message": ...}      the store does not answer, or is slow; sent once
    {"event": "failed", "message": ...}    the store cannot accept the run; this process exits
    {"event": "done", "state": ...}        the complete journal is in the store
"""

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from trueloop.core.errors import TrueloopError
from trueloop.runs.journal import JOURNAL_NAME
from trueloop.runs.tracking.journal_file import journal_lock
from trueloop.runs.tracking.sink import Sink, StoreUnavailable
from trueloop.runs.tracking.sync_journal import JournalSync, open_target
from trueloop.runs.tracking.target import Target, parse_target

NICENESS = 10
POLL_INTERVAL_S = 1.0  # seconds between two reads of the journal
SLOW_STORE_S = 15.0  # a store call that takes longer is reported as slow
STORE_TIMEOUT_S = 60.0  # wait after training, for a store that is down or for another sync process
MAX_RETRY_INTERVAL_S = 30.0
TERMINATION_GRACE_S = 30.0  # time after SIGTERM to sync the last lines of the trainer, which also received SIGTERM

SendMessage = Callable[[dict[str, Any]], None]


class SyncLoop:
    """Syncs one journal until the trainer has ended.

    Args:
        run_dir: the run folder.
        target: the store.
        trainer_ended: event that is set when the trainer has ended.
        send: function that sends a message to the trainer.
        open_sink: function that opens the store, for stores that are not built in.
    """

    def __init__(
        self,
        run_dir: Path,
        target: Target,
        *,
        trainer_ended: threading.Event,
        send: SendMessage,
        open_sink: Callable[[Target], Sink] = open_target,
    ) -> None:
        self._path = run_dir / JOURNAL_NAME
        self._folder = run_dir.resolve().name
        self._target, self._trainer_ended, self._send, self._open_sink = target, trainer_ended, send, open_sink
        self._pause_s = 0.0
        self._warned = False
        self._give_up_at: float | None = None

    def run(self) -> int:
        """Sync until the trainer has ended. Return the exit code: 0 = done, 1 = run rejected, 3 = store was down."""
        file = self._wait_for_journal()
        if file is None:
            return 0
        with file:
            while not self._timed_out():
                with journal_lock(file) as acquired:
                    if acquired:
                        try:
                            return self._sync_until_end(file)
                        except StoreUnavailable as error:
                            self._warn(error)
                        except TrueloopError as error:
                            self._send({"event": "failed", "message": _format_error(error)})
                            return 1
                self._back_off()
        return 3

    def _sync_until_end(self, file: FileIO) -> int:
        with closing(self._with_slow_warning(lambda: self._open_sink(self._target))) as sink:
            sync = JournalSync(file, self._folder, sink)
            while True:
                is_final = self._trainer_ended.is_set()
                upto = os.fstat(file.fileno()).st_size if is_final else None  # a new trainer may append lines
                self._with_slow_warning(lambda upto=upto: sync.sync_new_lines(upto))
                self._pause_s = 0.0
                if is_final:
                    state = self._with_slow_warning(lambda: sync.finish(alive=False))
                    break
                self._trainer_ended.wait(POLL_INTERVAL_S)
        self._send({"event": "done", "state": state})
        return 0

    def _wait_for_journal(self) -> FileIO | None:
        """Open the journal as soon as it exists; None if the trainer ended without one."""
        while True:
            is_final = self._trainer_ended.is_set()
            try:
                return FileIO(self._path)
            except OSError:
                if is_final:
                    return None
            self._trainer_ended.wait(POLL_INTERVAL_S)

    def _with_slow_warning(self, call: Callable[[], Any]) -> Any:
        """Call the store, and warn if the call takes longer than `SLOW_STORE_S`."""
        slow = f"The store {self._target.display} is slow: it has not answered for {SLOW_STORE_S:.0f} s"
        with _timer(SLOW_STORE_S, lambda: self._warn(StoreUnavailable(f"{slow}. Training does not wait for it."))):
            return call()

    def _warn(self, error: StoreUnavailable) -> None:
        if not self._warned:
            self._warned = True
            self._send({"event": "down", "message": _format_error(error)})

    def _back_off(self) -> None:
        """Wait before the next attempt, with exponential back-off and jitter."""
        self._pause_s = min(MAX_RETRY_INTERVAL_S, max(POLL_INTERVAL_S, 2 * self._pause_s))
        wait_s = self._pause_s * random.uniform(0.7, 1.3)  # noqa: S311 - not security-relevant
        if not self._trainer_ended.is_set():
            self._trainer_ended.wait(wait_s)
        else:
            time.sleep(min(wait_s, 5.0))

    def _timed_out(self) -> bool:
        """Return True if `STORE_TIMEOUT_S` has passed since the trainer ended."""
        if not self._trainer_ended.is_set():
            return False
        now = time.monotonic()
        self._give_up_at = self._give_up_at or now + STORE_TIMEOUT_S
        return now > self._give_up_at


@contextmanager
def _timer(seconds: float, on_timeout: Callable[[], None]) -> Generator[None]:
    timer = _daemon_timer(seconds, on_timeout)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _daemon_timer(seconds: float, on_timeout: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, on_timeout)
    timer.daemon = True
    return timer


def _exit_after_grace(_signal: int, _frame: object) -> None:
    _daemon_timer(TERMINATION_GRACE_S, lambda: os._exit(143)).start()


def _format_error(error: TrueloopError) -> str:
    return " ".join(part for part in (error.what, error.why, error.fix) if part)


def _wait_for_eof(pipe: Any, trainer_ended: threading.Event) -> None:
    """Wait for the end of standard input; after the address of the store, the trainer writes nothing to it."""
    while pipe.read(4096):
        pass
    trainer_ended.set()


def _print_message(record: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()
    except OSError:  # the trainer has ended, so there is no reader
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process.

    Args:
        arguments: the command line; the store "-" stands for the first line of standard input, a JSON string that no
            other user of the machine can see.
    """
    parser = argparse.ArgumentParser(prog="trueloop.runs.tracking.sync_process")
    parser.add_argument("run", type=Path)
    parser.add_argument("--store", required=True)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides when to stop
    signal.signal(signal.SIGTERM, _exit_after_grace)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    url = json.loads(sys.stdin.buffer.readline()) if options.store == "-" else options.store
    trainer_ended = threading.Event()
    threading.Thread(target=_wait_for_eof, args=(sys.stdin.buffer, trainer_ended), daemon=True).start()
    try:
        target = parse_target(url, options.run.resolve().parent)
        return SyncLoop(options.run, target, trainer_ended=trainer_ended, send=_print_message).run()
    except TrueloopError as error:
        _print_message({"event": "failed", "message": _format_error(error)})
        return 1


if __name__ == "__main__":
    sys.exit(main())
