"""Signals on their way from the user through torchrun to the processes of a run."""

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
    """The first signal is passed on to the processes, which save; the second leaves at once, and they with it.

    Torchrun's own handler raises the second time, too, and what that ends in is to wait for the processes once more.

    Args:
        folder: of the launcher's own, removed when it leaves.
        stop: torchrun's exception; it passes the signal on.
    """

    def __init__(self, folder: Path, stop: type[Any]) -> None:
        self._folder, self._stop = folder, stop
        self._asked_at: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take one; a handler for `signal.signal`."""
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            raise self._stop(f"got signal {number}", signal.Signals(number))
        if (
            number == signal.SIGINT or now - self._asked_at > FORWARDED_WITHIN_S
        ):  # else it was sent by two who did not know
            shutil.rmtree(self._folder, ignore_errors=True)
            time.sleep(
                max(0.0, self._asked_at + 2 * DUPLICATE_WITHIN_S - now)
            )  # the processes must not take this for an echo
            os._exit(EXIT_CODES["interrupted" if number == signal.SIGINT else "preempted"])

    @contextmanager
    def replace_handlers(self) -> Generator[None]:
        """Have torchrun install this handler where it would install its own."""
        from torch.distributed.elastic.multiprocessing import api

        own = api.__dict__["_terminate_process_handler"]
        api.__dict__["_terminate_process_handler"] = self
        try:
            yield
        finally:
            api.__dict__["_terminate_process_handler"] = own


@contextmanager
def ignore_signals() -> Generator[None]:
    """Keep torchrun from saying in its own words what is said here: each of its modules has a level of its own."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    parent = logging.getLogger("torch.distributed.elastic")  # of those that are made from here on
    passes_on, nothing = parent.propagate, logging.NullHandler()  # with no handler at all, Python prints by itself
    parent.propagate = False
    parent.addHandler(nothing)
    try:
        yield
    finally:
        parent.propagate = passes_on
        parent.removeHandler(nothing)
        for logger, level in levels.items():
            logger.setLevel(level)
