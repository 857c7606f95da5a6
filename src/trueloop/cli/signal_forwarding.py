"""Forward signals from the user through torchrun to the processes of a run."""

import logging
import os
import shutil
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from trueloop.training.interrupt import DUPLICATE_WITHIN_S, EXIT_CODES, FORWARDED_WITHIN_S


class SignalForwarder:
    """A signal handler: forwards the first signal to the processes, which save; a second signal ends all processes.

    Torchrun's handler would raise for the second signal too, and then wait for the processes once more.

    Args:
        folder: the launcher's folder, which is removed at its end.
        stop: torchrun's exception, which forwards the signal.
    """

    def __init__(self, folder: Path, stop: type[Any]) -> None:
        self._folder, self._stop = folder, stop
        self._first_signal_at: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle one signal."""
        now = time.monotonic()
        if self._first_signal_at is None:
            self._first_signal_at = now
            raise self._stop(f"got signal {number}", signal.Signals(number))
        # Except for Ctrl-C, a signal that is repeated this soon is the same signal from a second sender.
        if number == signal.SIGINT or now - self._first_signal_at > FORWARDED_WITHIN_S:
            shutil.rmtree(self._folder, ignore_errors=True)
            # The processes must not mistake this signal for a duplicate.
            time.sleep(max(0.0, self._first_signal_at + 2 * DUPLICATE_WITHIN_S - now))
            os._exit(EXIT_CODES["interrupted" if number == signal.SIGINT else "preempted"])

    @contextmanager
    def replace_handlers(self) -> Generator[None]:
        """Let torchrun install this handler instead of its own, during a ``with`` block."""
        from torch.distributed.elastic.multiprocessing import api

        original = api.__dict__["_terminate_process_handler"]
        api.__dict__["_terminate_process_handler"] = self
        try:
            yield
        finally:
            api.__dict__["_terminate_process_handler"] = original


@contextmanager
def torchrun_log_disabled() -> Generator[None]:
    """Silence torchrun's loggers during a ``with`` block: trueloop reports the same events."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    parent = logging.getLogger("torch.distributed.elastic")  # parent of loggers that are created later
    propagate, null_handler = parent.propagate, logging.NullHandler()  # without any handler, Python prints to stderr
    parent.propagate = False
    parent.addHandler(null_handler)
    try:
        yield
    finally:
        parent.propagate = propagate
        parent.removeHandler(null_handler)
        for logger, level in levels.items():
            logger.setLevel(level)
