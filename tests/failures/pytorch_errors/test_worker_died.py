"""Workers that die: the signal, and what it means."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trueloop.core.findings import ExplainedError

SCRIPT = """
import os, signal, torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        {dies}
for batch in DataLoader(Data(), num_workers=1, multiprocessing_context="fork"):  # <- raised
    pass
"""


@pytest.mark.filterwarnings("ignore")  # a fork of a process with threads, on new Pythons
def test_a_killed_worker(assert_explained: Callable[..., ExplainedError]):
    assert_explained(SCRIPT.format(dies="os.kill(os.getpid(), signal.SIGKILL)"), "worker-died", "no memory was left")


@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_exits(assert_explained: Callable[..., ExplainedError]):
    assert_explained(SCRIPT.format(dies="os._exit(3)"), "worker-died", "exited without an exception", "num_workers=0")


@pytest.mark.filterwarnings("ignore")
def test_an_exception_in_the_dataset_is_not_explained(assert_unexplained: Callable[[str], BaseException]):
    error = assert_unexplained(SCRIPT.format(dies="raise RuntimeError('mat1 and mat2 shapes cannot be multiplied')"))
    assert "Caught RuntimeError in DataLoader worker" in str(error)


def test_message_of_pytorch_about_shared_memory():
    import re

    from trueloop.failures.pytorch_error import RaisedError
    from trueloop.failures.pytorch_errors.worker_died import ERROR

    message = (
        "DataLoader worker (pid 87) is killed by signal: Bus error. It is possible that dataloader's workers are out "
        "of shared memory. Please try to raise your shared memory limit."
    )
    match = re.match(ERROR.message_patterns[0], message)
    assert match
    raised = RaisedError(
        type="RuntimeError",
        message=message,
        location=None,
        causes=(message,),
        pytorch_files=("utils/data/dataloader.py",),
    )
    explanation = ERROR.explain(raised, match)
    assert explanation
    assert "64 MB" in explanation.meaning
    assert "--shm-size" in explanation.fix
