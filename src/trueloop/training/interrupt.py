"""Told to stop: finish the update in hand, save, and say how to go on; told twice, leave at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Literal

Stop = Literal["interrupted", "preempted"]

EXIT_CODES: dict[str, int] = {"interrupted": 130, "preempted": 143}  # 128 + SIGINT, 128 + SIGTERM, as shells have it

# Kubernetes, SLURM, systemd and `timeout` send SIGTERM some seconds before SIGKILL. SLURM can warn earlier, by
# `#SBATCH --signal=USR1@120`.
_PREEMPTING = ("SIGTERM", "SIGUSR1")

# Torchrun passes a signal on to its processes. Where the sender gave it to every process of the job (systemd, some
# set-ups of SLURM), each gets it twice within moments, and the second must not be taken for insistence.
PASSED_ON_S = 2.0


# Linux tells a process of its parent's end once for each thread that the parent had.
ECHO_S = 0.3


class Interrupt:
    """While entered, the first signal only sets `requested`; the second one leaves at once.

    SIGINT (Ctrl-C) is always taken; SIGTERM and SIGUSR1 where nobody else has: a handler of the user's own, or of a
    job launcher, stays. Outside the main thread, where Python does not deliver signals, it does nothing. Leaving at
    once is a KeyboardInterrupt after SIGINT, else a SystemExit with the exit code.
    """

    def __init__(self) -> None:
        self.requested: Stop | None = None
        self.signal = ""
        """The name of the first one: "SIGTERM"."""
        self._before: dict[int, Any] = {}
        self._asked_at = 0.0
        self._launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._asked)
            for number in (getattr(signal, name) for name in _PREEMPTING if hasattr(signal, name)):
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _asked(self, number: int, frame: FrameType | None) -> None:
        again, now = self.requested is not None, time.monotonic()
        if again and self._launcher and now - self._asked_at < (PASSED_ON_S if self._launcher_lives() else ECHO_S):
            return
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if again:
            raise SystemExit(EXIT_CODES["preempted"])
        self._asked_at = now
        self.requested = "interrupted" if number == signal.SIGINT else "preempted"
        self.signal = signal.Signals(number).name

    def _launcher_lives(self) -> bool:
        return os.getppid() == self._launcher
