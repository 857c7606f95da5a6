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
from trueloop.runs.tracking.sync_journal import Copying, open_target
from trueloop.runs.tracking.target import Target, target_of

NICENESS = 10
EVERY_S = 1.0  # between two looks at the journal
SLOW_S = 15.0  # one talk with the store that takes longer is told as slow
PATIENCE_S = 60.0  # for a store that is down, or a copier before this one, once training is over
LONGEST_PAUSE_S = 30.0
GRACE_S = 30.0  # after SIGTERM: a trainer that got one too saves its state, and what it says of that is copied

Say = Callable[[dict[str, Any]], None]


class Following:
    """Follows one journal until the trainer has gone.

    Args:
        run_dir: the run's folder.
        target: the store.
        gone: set when the trainer has ended.
        say: what the trainer is to hear.
        open_sink: for another store.
    """

    def __init__(
        self,
        run_dir: Path,
        target: Target,
        *,
        gone: threading.Event,
        say: Say,
        open_sink: Callable[[Target], Sink] = open_target,
    ) -> None:
        self._path = run_dir / JOURNAL_NAME
        self._folder = run_dir.resolve().name
        self._target, self._gone, self._say, self._open = target, gone, say, open_sink
        self._pause_s = 0.0
        self._warned = False
        self._give_up_at: float | None = None

    def run(self) -> int:
        """Follow to the end; returns the exit code: 0 everything is copied, 1 it will not be, 3 the store was down."""
        file = self._journal()
        if file is None:
            return 0
        with file:
            while not self._hopeless():
                with journal_lock(file) as mine:
                    if mine:
                        try:
                            return self._copy(file)
                        except StoreUnavailable as error:
                            self._warn(error)
                        except TrueloopError as error:
                            self._say({"said": "failed", "message": _words(error)})
                            return 1
                self._rest()
        return 3

    def _copy(self, file: FileIO) -> int:
        with closing(self._watched(lambda: self._open(self._target))) as sink:
            copying = Copying(file, self._folder, sink)
            while True:
                last = self._gone.is_set()
                upto = os.fstat(file.fileno()).st_size if last else None  # another trainer may be writing on
                self._watched(lambda upto=upto: copying.advance(upto))
                self._pause_s = 0.0
                if last:
                    state = self._watched(lambda: copying.finish(alive=False))
                    break
                self._gone.wait(EVERY_S)
        self._say({"said": "done", "state": state})
        return 0

    def _journal(self) -> FileIO | None:
        """Open the journal, once there is one."""
        while True:
            last = self._gone.is_set()
            try:
                return FileIO(self._path)
            except OSError:
                if last:
                    return None
            self._gone.wait(EVERY_S)

    def _watched(self, talk: Callable[[], Any]) -> Any:
        """Talk to the store; say so where it takes long."""
        slow = f"The store {self._target.shown} is slow: it has not answered for {SLOW_S:.0f} s"
        with _alarm(SLOW_S, lambda: self._warn(StoreUnavailable(f"{slow}. Training does not wait for it."))):
            return talk()

    def _warn(self, error: StoreUnavailable) -> None:
        if not self._warned:
            self._warned = True
            self._say({"said": "down", "message": _words(error)})

    def _rest(self) -> None:
        """Wait before the next try, longer each time, and not in step with other processes."""
        self._pause_s = min(LONGEST_PAUSE_S, max(EVERY_S, 2 * self._pause_s))
        wait_s = self._pause_s * random.uniform(0.7, 1.3)  # noqa: S311 - nothing secret
        if not self._gone.is_set():
            self._gone.wait(wait_s)
        else:
            time.sleep(min(wait_s, 5.0))

    def _hopeless(self) -> bool:
        """Say whether the trainer has gone and the store, or the copier before this one, had its time since."""
        if not self._gone.is_set():
            return False
        now = time.monotonic()
        self._give_up_at = self._give_up_at or now + PATIENCE_S
        return now > self._give_up_at


@contextmanager
def _alarm(seconds: float, ring: Callable[[], None]) -> Generator[None]:
    timer = _alarm_clock(seconds, ring)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _alarm_clock(seconds: float, ring: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, ring)
    timer.daemon = True
    return timer


def _end_soon(_signal: int, _frame: object) -> None:
    _alarm_clock(GRACE_S, lambda: os._exit(143)).start()


def _words(error: TrueloopError) -> str:
    return " ".join(part for part in (error.what, error.why, error.fix) if part)


def _watch(pipe: Any, gone: threading.Event) -> None:
    """Wait for the end of standard input: nothing is ever written into it but the address."""
    while pipe.read(4096):
        pass
    gone.set()


def _say_in_json(record: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()
    except OSError:  # the trainer has gone; there is nobody left to tell
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def main(words: Sequence[str] | None = None) -> int:
    """Run the process.

    Args:
        words: the command line; the address "-" is read from the first line of standard input, a text in JSON, where
            no other user of the machine can see it.
    """
    parser = argparse.ArgumentParser(prog="trueloop.runs.tracking.sync_process")
    parser.add_argument("run", type=Path)
    parser.add_argument("--store", required=True)
    given = parser.parse_args(words)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides when it is over
    signal.signal(signal.SIGTERM, _end_soon)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    url = json.loads(sys.stdin.buffer.readline()) if given.store == "-" else given.store
    gone = threading.Event()
    threading.Thread(target=_watch, args=(sys.stdin.buffer, gone), daemon=True).start()
    try:
        target = target_of(url, given.run.resolve().parent)
        return Following(given.run, target, gone=gone, say=_say_in_json).run()
    except TrueloopError as error:
        _say_in_json({"said": "failed", "message": _words(error)})
        return 1


if __name__ == "__main__":
    sys.exit(main())
