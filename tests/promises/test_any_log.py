"""Whatever a program printed, explaining it ends with an answer."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from trueloop.app.explain.explain_error import explain_text
from trueloop.app.explain.tracebacks import parse_errors

PIECES = st.sampled_from(
    [
        "Traceback (most recent call last):",
        "Original Traceback (most recent call last):",
        '  File "a.py", line 3, in f',
        "    x @ y",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)",
        "ValueError",
        "E   ValueError: x",
        "[rank0]: ",
        "[rank12]: ",
        "3: ",
        "  | ",
        "  +-+---------------- 1 ----------------",
        "\x1b[31m",
        "\r",
        "\n",
        "\n\n",
        "During handling of the above exception, another exception occurred:",
        "Cell In[3], line 5",
        "a.py:3: RuntimeError",
        "The above exception was the direct cause of the following exception:",
        "CUDA out of memory. Tried to allocate",
        "2026-11-21T22:00:00Z ",
        "RuntimeError      Traceback (most recent call last)",
        "GRD001",
        "\x00",
        "\ud800",
    ]
)
LOGS = st.lists(st.one_of(PIECES, st.text(max_size=6)), max_size=30).map("".join)
LINES = st.lists(PIECES, max_size=20).map("\n".join)


@given(st.one_of(LOGS, LINES))
@settings(max_examples=150, deadline=None)
def test_any_log_gets_an_answer(text: str):
    answer = explain_text(text)
    assert answer.has_known_errors == bool(answer.errors or answer.failures or answer.trueloop_errors)
    assert all(told.entry.match(told.error.message) for told in answer.errors)
    assert set(answer.to_json()) == {"errors", "failures", "trueloop_errors", "unknown", "nearest"}


@given(LINES)
@settings(max_examples=100, deadline=None)
def test_a_rank_prefix_changes_the_ranks_only(text: str):
    bare = re.sub(r"\[rank\d+\]: |3: |2026-11-21T22:00:00Z ", "", text)
    if "\r" in bare or "\x00" in bare:
        return
    marked = "".join(f"[rank4]: {line}\n" for line in bare.splitlines())
    alone, ranked = parse_errors(bare), parse_errors(marked)
    assert [(each.type, each.message, each.frames, each.role) for each in ranked] == [
        (each.type, each.message, each.frames, each.role) for each in alone
    ]
    assert all(each.ranks == (4,) for each in ranked)
