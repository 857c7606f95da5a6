"""A loader process ignores signals except those of its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from torch.utils.data import Dataset

from trueloop.data import Loader
from trueloop.data.worker_signals import block_stop_signals

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "sigwaitinfo"), reason="this system does not tell who sent a signal"
)

SCRIPT = """
import sys, time
from trueloop.data.worker_signals import ignore_stop_signals
ignore_stop_signals(0)
print("ready", flush=True)
while True:
    time.sleep(0.01)
    print(".", flush=True)
"""


def send_from_other_process(number: int, pid: int) -> None:
    subprocess.run([sys.executable, "-c", f"import os; os.kill({pid}, {int(number)})"], check=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_only_a_sigterm_from_the_parent_ends_a_worker(number: signal.Signals):
    with (
        block_stop_signals()
    ):  # NumPy, which SCRIPT imports first, may start threads that hold nothing back by themselves
        worker = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    with worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        send_from_other_process(number, worker.pid)
        assert [worker.stdout.readline() for _ in range(20)] == [".\n"] * 20
        worker.terminate()
        assert worker.wait(20) == 0


class WorkerPids(Dataset):
    """Each sample is the process that read it."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        return os.getpid()


def test_the_workers_of_a_loader_continue_after_a_signal():
    stream = Loader(WorkerPids(), effective_batch=4, workers=2, order="sequential").epoch(0)
    pids = {int(pid) for _ in range(2) for pid in next(stream).data}
    assert len(pids) == 2
    for pid in pids:
        send_from_other_process(signal.SIGTERM, pid)
    assert sum(len(micro.data) for micro in stream) == 400 - 8
