"""A program runs as a main program, tracebacks show its lines, and torch's settings are restored."""

from __future__ import annotations

import linecache
import traceback

import pytest
import torch

from trueloop.lab.teaching.program import Program


def test_variables_are_exposed_and_output_is_discarded(capfd: pytest.CaptureFixture[str]):
    program = Program("print('loud')\nname = __name__\nvalue = 1 + 1\n")
    program.run()
    assert (program.variables["name"], program.variables["value"]) == ("__main__", 2)
    assert capfd.readouterr() == ("", "")


def test_a_traceback_shows_the_line():
    with pytest.raises(ZeroDivisionError) as raised:
        Program("x = 1\ny = x / 0  # here\n", name="lesson.py").run()
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line) == ("lesson.py", 2, "y = x / 0  # here")
    assert linecache.getline("lesson.py", 1) == "x = 1\n"


def test_the_default_dtype_is_restored():
    Program("import torch\ntorch.set_default_dtype(torch.float64)\n").run()
    assert torch.get_default_dtype() is torch.float32
