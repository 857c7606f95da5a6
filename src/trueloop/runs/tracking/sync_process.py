"""The process that follows a journal into a store: python -m trueloop.runs.tracking.sync_process RUN --store URL.

It is started by the process that trains, and never imports torch. Its standard input is a pipe from there: when that
ends, and it does however the trainer ends, what the journal holds is copied and this process ends too. What it has to
say goes to standard output, one JSON object per line:

    {"said": "down", "message": ...}      the store does not answer, or is slow; told once
    {"said": "failed", "message": ...}    it will not take the run; this process ends
    {"said": "done", "state": ...}        everything that the journal holds is in the store
"""

from __future__ import annotations

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
POLL_INTERVAL_S = 1.0  # between two looks at the journal
SLOW_STORE_S = 15.0  # one talk with the store that takes longer is told as slow
STORE_TIMEOUT_S = 60.0  # for a store that is down, or a copier before this one, once training is over
MAX_RETRY_INTERVAL_S = 30.0
TERMINATION_GRACE_S = 30.0  # after SIGTERM: a trainer that got one too saves its state, and what it says of that is copied

SendMessage = Callable[[dict[str, Any]], None]


class SyncLoop:
    """Follows one journal until the trainer has gone.

    Args:
        run_dir: the run's folder.
        target: the store.
        trainer_ended: set when the trainer has ended.
        send: what the trainer is to hear.
        open_sink: for another store.
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
        """Follow to the end; returns the exit code: 0 everything is copied, 1 it will not be, 3 the store was down."""
        file = self._wait_for_journal()
        if file is None:
            return 0
        with file:
            while not self._timed_out():
                with journal_lock(file) as mine:
                    if mine:
                        try:
                            return self._sync_until_end(file)
                        except StoreUnavailable as error:
                            self._warn(error)
                        except TrueloopError as error:
                            self._send({"said": "failed", "message": _format_error(error)})
                            return 1
                self._back_off()
        return 3

    def _sync_until_end(self, file: FileIO) -> int:
        with closing(self._with_slow_warning(lambda: self._open_sink(self._target))) as sink:
            copying = JournalSync(file, self._folder, sink)
            while True:
                last = self._trainer_ended.is_set()
                upto = os.fstat(file.fileno()).st_size if last else None  # another trainer may be writing on
                self._with_slow_warning(lambda upto=upto: copying.sync_new_lines(upto))
                self._pause_s = 0.0
                if last:
                    state = self._with_slow_warning(lambda: copying.finish(alive=False))
                    break
                self._trainer_ended.wait(POLL_INTERVAL_S)
        self._send({"said": "done", "state": state})
        return 0

    def _wait_for_journal(self) -> FileIO | None:
        """Open the journal, once there is one."""
        while True:
            last = self._trainer_ended.is_set()
            try:
                return FileIO(self._path)
            except OSError:
                if last:
                    return None
            self._trainer_ended.wait(POLL_INTERVAL_S)

    def _with_slow_warning(self, talk: Callable[[], Any]) -> Any:
        """Talk to the store; say so where it takes long."""
        slow = f"The store {self._target.display} is slow: it has not answered for {SLOW_STORE_S:.0f} s"
        with _timer(SLOW_STORE_S, lambda: self._warn(StoreUnavailable(f"{slow}. Training does not wait for it."))):
            return talk()

    def _warn(self, error: StoreUnavailable) -> None:
        if not self._warned:
            self._warned = True
            self._send({"said": "down", "message": _format_error(error)})

    def _back_off(self) -> None:
        """Wait before the next try, longer each time, and not in step with other processes."""
        self._pause_s = min(MAX_RETRY_INTERVAL_S, max(POLL_INTERVAL_S, 2 * self._pause_s))
        wait_s = self._pause_s * random.uniform(0.7, 1.3)  # noqa: S311 - nothing secret
        if not self._trainer_ended.is_set():
            self._trainer_ended.wait(wait_s)
        else:
            time.sleep(min(wait_s, 5.0))

    def _timed_out(self) -> bool:
        """Say whether the trainer has gone and the store, or the copier before this one, had its time since."""
        if not self._trainer_ended.is_set():
            return False
        now = time.monotonic()
        self._give_up_at = self._give_up_at or now + STORE_TIMEOUT_S
        return now > self._give_up_at


@contextmanager
def _timer(seconds: float, ring: Callable[[], None]) -> Generator[None]:
    timer = _daemon_timer(seconds, ring)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _daemon_timer(seconds: float, ring: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, ring)
    timer.daemon = True
    return timer


def _exit_after_grace(_signal: int, _frame: object) -> None:
    _daemon_timer(TERMINATION_GRACE_S, lambda: os._exit(143)).start()


def _format_error(error: TrueloopError) -> str:
    return " ".join(part for part in (error.what, error.why, error.fix) if part)


def _wait_for_eof(pipe: Any, gone: threading.Event) -> None:
    """Wait for the end of standard input: nothing is ever written into it but the address."""
    while pipe.read(4096):
        pass
    gone.set()


def _print_message(record: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()
    except OSError:  # the trainer has gone; there is nobody left to tell
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process.

    Args:
        arguments: the command line; the address "-" is read from the first line of standard input, a text in JSON, where
            no other user of the machine can see it.
    """
    parser = argparse.ArgumentParser(prog="trueloop.runs.tracking.sync_process")
    parser.add_argument("run", type=Path)
    parser.add_argument("--store", required=True)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides when it is over
    signal.signal(signal.SIGTERM, _exit_after_grace)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    url = json.loads(sys.stdin.buffer.readline()) if given.store == "-" else given.store
    gone = threading.Event()
    threading.Thread(target=_wait_for_eof, args=(sys.stdin.buffer, gone), daemon=True).start()
    try:
        target = parse_target(url, given.run.resolve().parent)
        return SyncLoop(given.run, target, trainer_ended=gone, send=_print_message).run()
    except TrueloopError as error:
        _print_message({"said": "failed", "message": _format_error(error)})
        return 1


if __name__ == "__main__":
    sys.exit(main())
