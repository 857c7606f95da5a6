"""Stop a run on a signal: after the first one, the update is finished and saved; the second one exits immediately."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Literal

StopReason = Literal["interrupted", "preempted"]

EXIT_CODES: dict[str, int] = {"interrupted": 130, "preempted": 143}  # 128 + SIGINT, 128 + SIGTERM, as in shells

# Kubernetes, SLURM, systemd and `timeout` send SIGTERM some seconds before SIGKILL. With `#SBATCH --signal=USR1@120`,
# SLURM sends SIGUSR1 earlier.
_PREEMPTION_SIGNALS = ("SIGTERM", "SIGUSR1")

# Torchrun forwards a signal to its processes. If the sender also signals every process of the job (systemd, some SLURM
# setups), each process gets the signal twice in a short time; the second one must not count as a second request.
FORWARDED_WITHIN_S = 2.0
# Linux reports the end of a parent once for each of its threads.
DUPLICATE_WITHIN_S = 0.3


class Interrupt:
    """A context in which the first signal only sets `requested`, and the second one exits immediately.

    SIGINT (Ctrl-C) is always handled; SIGTERM and SIGUSR1 only if no other handler is installed, such as the user's or
    a job launcher's. Outside the main thread, in which Python handles signals, the context does nothing. The
    immediate exit is a KeyboardInterrupt after SIGINT, else a SystemExit with the exit code.
    """

    def __init__(self) -> None:
        self.requested: StopReason | None = None
        self.signal = ""
        """Name of the first signal: "SIGTERM"."""
        self._previous_handlers: dict[int, Any] = {}
        self._requested_at = 0.0
        self._launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous_handlers[signal.SIGINT] = signal.signal(signal.SIGINT, self._handle_signal)
            for signal_number in (getattr(signal, name) for name in _PREEMPTION_SIGNALS if hasattr(signal, name)):
                if signal.getsignal(signal_number) is signal.SIG_DFL:
                    self._previous_handlers[signal_number] = signal.signal(signal_number, self._handle_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for signal_number, handler in self._previous_handlers.items():
            signal.signal(signal_number, handler)
        self._previous_handlers.clear()

    def _handle_signal(self, signal_number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.requested is None:
            self._requested_at = now
            self.requested = "interrupted" if signal_number == signal.SIGINT else "preempted"
            self.signal = signal.Signals(signal_number).name
            return
        launcher_is_alive = os.getppid() == self._launcher
        within_s = FORWARDED_WITHIN_S if launcher_is_alive else DUPLICATE_WITHIN_S
        if self._launcher and now - self._requested_at < within_s:
            return  # the same request, sent twice
        if signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(EXIT_CODES["preempted"])
