"""CUDA in a forked process, with the message of torch/cuda/__init__.py, which needs a GPU."""

from __future__ import annotations

from collections.abc import Callable

from trueloop.core.findings import ExplainedError

MESSAGE = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)


def test_in_a_process_of_the_program(assert_message_explained: Callable[..., ExplainedError]):
    assert_message_explained(MESSAGE, "cuda-in-fork", "A forked process used the GPU", "spawn")


def test_in_a_worker(assert_message_explained: Callable[..., ExplainedError]):
    caught = "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    assert_message_explained(f"{caught}RuntimeError: {MESSAGE}", "cuda-in-fork", "A DataLoader worker used the GPU")
