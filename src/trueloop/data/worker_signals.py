"""Keeps loader processes alive while the training process finishes its update: when to stop is for that one to decide.

SLURM, systemd and a terminal send their signal to every process of a job. A loader process that died of it would take
the training process along, in the middle of the update that is to be finished and saved.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")


@contextmanager
def block_stop_signals() -> Generator[None]:
    """Start loader processes in here: they, and every thread of theirs, begin with the signals held back.

    A thread that exists before `ignore_stop_signals` runs (NumPy's OpenBLAS starts one per core when it is imported) would
    otherwise still take a signal, and the process would die of it. The training process gets its own afterwards.
    """
    if not hasattr(signal, "sigwaitinfo"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _stop_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_stop_signals(worker: int) -> None:
    """Let this process end at a signal from its parent only; a ``worker_init_fn``, for processes of `block_stop_signals`.

    Where the system does not tell who sent a signal (macOS, Windows), everything stays as torch has it.

    Args:
        worker: its number, as torch passes it; not used.

    Cost: one sleeping thread.
    """
    if not hasattr(signal, "sigwaitinfo"):
        return
    signals = _stop_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    threading.Thread(target=_end_with_parent, args=(signals, os.getppid()), daemon=True).start()


def _stop_signals() -> set[signal.Signals]:
    return {getattr(signal, name) for name in _NAMES}


def _end_with_parent(signals: set[signal.Signals], parent: int) -> None:
    while True:
        sender = signal.sigwaitinfo(signals)
        if sender.si_signo == signal.SIGTERM and sender.si_pid == parent:
            os._exit(0)  # as torch's own handler does: this is DataLoader's way to end a worker that hangs
