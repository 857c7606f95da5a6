"""Keep loader processes alive on stop signals, so that the training process can finish its update and save.

SLURM, systemd and a terminal send signals to every process of a job. If a signal ended a loader process, the training
process would fail during the update that should be finished and saved.
"""

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")


@contextmanager
def block_stop_signals() -> Generator[None]:
    """Block stop signals while loader processes are started, so that all their threads inherit the mask.

    Otherwise a thread that starts before `ignore_stop_signals` runs (importing NumPy starts one per core, for OpenBLAS)
    could receive a signal, which would end the process. The mask of the training process is restored afterwards.
    """
    if not hasattr(signal, "sigwaitinfo"):
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _stop_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def ignore_stop_signals(worker: int) -> None:
    """Make this process end only on a signal from its parent; a ``worker_init_fn`` for use with `block_stop_signals`.

    On systems that do not report the sender of a signal (macOS, Windows), torch's behaviour does not change.

    Args:
        worker: index of the worker, passed by torch; not used.

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
            os._exit(0)  # like torch's handler: DataLoader sends SIGTERM to a worker that does not respond
