"""Memory that is gone: the numbers, and what to change first. CUDA's words are torch's own, raised by a look-alike."""

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


def said(raised: RaisedError) -> str:
    match = re.match(ERROR.message_patterns[0], raised.message)
    assert match
    explanation = ERROR.explain(raised, match)
    assert explanation
    return f"{explanation.meaning} {explanation.fix}"


def test_the_numbers_and_the_order(as_torch: Callable[..., ExplainedError]):
    words = ("2.00 GiB were asked for, and 1.12 GiB of 23.68 GiB are free", "a smaller batch", "expandable_segments")
    as_torch(MESSAGE, "out-of-memory", *words, "the first update", error="torch.OutOfMemoryError")


def test_a_leak_that_was_found_comes_first():
    explanation = said(replace(RAISED, recent=RecentEvents(update=700, found_codes=frozenset({"MEM001"}))))
    assert "MEM001, below, says by what" in explanation
    assert "Stop keeping graphs first (MEM001). In this order" in explanation


def test_later_in_the_run():
    explanation = said(replace(RAISED, recent=RecentEvents(update=700)))
    assert "700 updates went well before" in explanation
    assert "first update" not in explanation


def test_the_machine_itself(explained: Callable[..., ExplainedError]):
    explained("import torch\ntorch.empty(10**15)  # <- raised\n", "out-of-memory", "3,638.0 TiB were asked for")


def test_the_programs_own_words(unexplained: Callable[[str], BaseException]):
    unexplained("import torch\nraise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')\n")
    unexplained("import torch\nraise torch.OutOfMemoryError('CUDA out of memory.')\n")
