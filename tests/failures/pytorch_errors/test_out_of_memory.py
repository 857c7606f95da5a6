"""Out of memory: the numbers and what to change first; a test function raises the literal message of CUDA."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from trueloop.core.findings import ExplainedError
from trueloop.failures.pytorch_error import RaisedError, RecentEvents
from trueloop.failures.pytorch_errors.out_of_memory import ERROR

MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.68 GiB of which 1.12 GiB is free"
    ". Including non-PyTorch memory, this process has 22.55 GiB memory in use. Of the allocated memory 20.10 GiB is "
    "allocated by PyTorch, and 2.03 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
    "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
    "Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
RAISED = RaisedError(type="OutOfMemoryError", message=MESSAGE, location=None)


def explanation_text(raised: RaisedError) -> str:
    match = re.match(ERROR.message_patterns[0], raised.message)
    assert match
    explanation = ERROR.explain(raised, match)
    assert explanation
    return f"{explanation.meaning} {explanation.fix}"


def test_the_numbers_and_the_order(assert_message_explained: Callable[..., ExplainedError]):
    words = ("2.00 GiB were requested, and 1.12 GiB of 23.68 GiB are free", "a smaller batch", "expandable_segments")
    assert_message_explained(MESSAGE, "out-of-memory", *words, "the first update", error="torch.OutOfMemoryError")


def test_a_known_leak_comes_first():
    explanation = explanation_text(replace(RAISED, recent=RecentEvents(update=700, found_codes=frozenset({"MEM001"}))))
    assert "the finding MEM001 below names the cause" in explanation
    assert "First fix MEM001. Try in this order" in explanation


def test_later_in_the_run():
    explanation = explanation_text(replace(RAISED, recent=RecentEvents(update=700)))
    assert "700 updates succeeded before" in explanation
    assert "first update" not in explanation


def test_memory_of_the_machine(assert_explained: Callable[..., ExplainedError]):
    assert_explained("import torch\ntorch.empty(10**15)  # <- raised\n", "out-of-memory", "3,638.0 TiB were requested")


def test_the_same_message_raised_by_the_program(assert_unexplained: Callable[[str], BaseException]):
    assert_unexplained("import torch\nraise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')\n")
    assert_unexplained("import torch\nraise torch.OutOfMemoryError('CUDA out of memory.')\n")
