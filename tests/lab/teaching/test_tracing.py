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


def test_a_marked_line_is_reported_after_each_run():
    observed: list[tuple[MarkedLine, object]] = []
    printed = run_marked(
        TEXT, ("add", "fails", "caught"), lambda marked, variables: observed.append((marked, variables["x"].tolist()))
    )
    assert [(marked.mark, value) for marked, value in observed] == [
        ("add", [1.0, 1.0]),
        ("add", [2.0, 2.0]),
        ("add", [4.0, 4.0]),
        ("caught", [4.0, 4.0]),
    ]
    assert printed == "x is [4.0, 4.0]"


def test_marked_lines_have_their_assigned_names():
    lines = marked_lines(TEXT, ("add", "caught"))
    assert lines[5] == MarkedLine(mark="add", line=5, text="x = x + turn", assigns=("x",))
    assert list(lines) == [5, 10]


def test_the_generator_and_the_trace_function_are_restored():
    torch.manual_seed(3)
    state, tracer = torch.get_rng_state(), sys.gettrace()
    numbers: list[float] = []
    for _ in range(2):
        text = "import torch\ntorch.manual_seed(0)\nx = torch.rand(1)  # numbers"
        run_marked(text, ("numbers",), lambda marked, variables: numbers.append(variables["x"].item()))
    assert numbers[0] == numbers[1]
    assert torch.equal(torch.get_rng_state(), state)
    assert sys.gettrace() is tracer


def test_an_error_of_the_program_is_raised():
    tracer = sys.gettrace()
    with pytest.raises(ZeroDivisionError):
        run_marked("x = 1 / 0  # never", ("never",), lambda marked, variables: pytest.fail("it did not finish"))
    assert sys.gettrace() is tracer
