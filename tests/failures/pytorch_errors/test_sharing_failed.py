"""Tensors that cannot be passed between processes, with literal messages: a full /dev/shm would disturb other tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trueloop.core.findings import ExplainedError


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("unable to write to file </torch_18692_1954506624>", "--shm-size"),
        ("unable to resize file </torch_7_8_9> to the right size: No space left on device (28)", "--shm-size"),
        ("unable to allocate shared memory(shm) for file </torch_1_2>: Success (0)", "--shm-size"),
        ("unable to open shared memory object </torch_1_2> in read-write mode: Too many open files (24)", "ulimit -n"),
        ("unable to mmap 4194304 bytes from file </torch_1_2>: Cannot allocate memory (12)", "--shm-size"),
        ("Too many open files. Communication with the workers is no longer possible. Please increase", "ulimit -n"),
        ("received 0 items of ancdata", "set_sharing_strategy"),
    ],
)
def test_messages_of_pytorch(message: str, fix: str, assert_message_explained: Callable[..., ExplainedError]):
    assert_message_explained(message, "sharing-failed", "", fix)
