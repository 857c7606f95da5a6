from __future__ import annotations

import sys

import pytest
import torch

from trueloop.lab.teaching.tracing import MarkedLine, marked_lines, run_marked

TEXT = """\
import torch

x = torch.ones(2)
for turn in range(3):
    x = x + turn  # add: each turn
    y = "# add"
try:
    x.nothing()  # fails
except AttributeError as error:
    said = type(error).__name__  # caught
print("x is", x.tolist())
"""


def test_a_line_is_seen_after_it_has_run_each_time_it_runs():
    seen: list[tuple[MarkedLine, object]] = []
    printed = run_marked(
        TEXT, ("add", "fails", "caught"), lambda marked, held: seen.append((marked, held["x"].tolist()))
    )
    assert [(marked.mark, value) for marked, value in seen] == [
        ("add", [1.0, 1.0]),
        ("add", [2.0, 2.0]),
        ("add", [4.0, 4.0]),
        ("caught", [4.0, 4.0]),
    ]
    assert printed == "x is [4.0, 4.0]"


def test_a_mark_is_a_comment_and_knows_what_its_line_binds():
    lines = marked_lines(TEXT, ("add", "caught"))
    assert lines[5] == MarkedLine(mark="add", line=5, text="x = x + turn", assigns=("x",))
    assert list(lines) == [5, 10]


def test_the_generator_and_the_tracer_are_as_they_were():
    torch.manual_seed(3)
    state, tracer = torch.get_rng_state(), sys.gettrace()
    drawn: list[float] = []
    for _ in range(2):
        text = "import torch\ntorch.manual_seed(0)\nx = torch.rand(1)  # drawn"
        run_marked(text, ("drawn",), lambda marked, held: drawn.append(held["x"].item()))
    assert drawn[0] == drawn[1]
    assert torch.equal(torch.get_rng_state(), state)
    assert sys.gettrace() is tracer


def test_an_error_of_the_program_goes_through_and_the_tracer_is_put_back():
    tracer = sys.gettrace()
    with pytest.raises(ZeroDivisionError):
        run_marked("x = 1 / 0  # never", ("never",), lambda marked, held: pytest.fail("it did not finish"))
    assert sys.gettrace() is tracer
