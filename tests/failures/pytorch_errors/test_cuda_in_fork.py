"""CUDA in a forked process, in the words of torch/cuda/__init__.py, which need a GPU."""

from __future__ import annotations

from collections.abc import Callable

from trueloop.core.findings import ExplainedError

MESSAGE = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)


def test_in_a_process_of_the_programs_own(as_torch: Callable[..., ExplainedError]):
    as_torch(MESSAGE, "cuda-in-fork", "A forked process touched the GPU", "spawn")


def test_in_a_worker(as_torch: Callable[..., ExplainedError]):
    caught = "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    as_torch(f"{caught}RuntimeError: {MESSAGE}", "cuda-in-fork", "A worker of the DataLoader touched the GPU")
