"""Keeps loader processes alive while the training process finishes its update: when to stop is for that one to decide.

SLURM, systemd and a terminal send their signal to every process of a job. A loader process that died of it would take
the training process along, in the middle of the update that is to be finished and saved.
"""

from __future__ import annotations

import os
import signal
import threading

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")


def outlive_signals(worker: int) -> None:
    """Let this process end at a signal from its parent only; a ``worker_init_fn``.

    Where the system does not tell who sent a signal (macOS, Windows), everything stays as torch has it.

    Args:
        worker: its number, as torch passes it; not used.

    Cost: one sleeping thread.
    """
    if not hasattr(signal, "sigwaitinfo"):
        return
    signals = {getattr(signal, name) for name in _NAMES}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # threads started from here on inherit it
    threading.Thread(target=_end_with_parent, args=(signals, os.getppid()), daemon=True).start()


def _end_with_parent(signals: set[signal.Signals], parent: int) -> None:
    while True:
        sender = signal.sigwaitinfo(signals)
        if sender.si_signo == signal.SIGTERM and sender.si_pid == parent:
            os._exit(0)  # as torch's own handler does: this is DataLoader's way to end a worker that hangs
