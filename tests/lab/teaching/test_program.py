"""A text runs as a main program, with lines that tracebacks know, and leaves nothing changed."""

from __future__ import annotations

import linecache
import traceback

import pytest
import torch

from trueloop.lab.teaching.program import Program


def test_its_names_can_be_read_and_what_it_prints_goes_nowhere(capfd: pytest.CaptureFixture[str]):
    program = Program("print('loud')\nname = __name__\nvalue = 1 + 1\n")
    program.run()
    assert (program.names["name"], program.names["value"]) == ("__main__", 2)
    assert capfd.readouterr() == ("", "")


def test_what_it_raises_names_its_line():
    with pytest.raises(ZeroDivisionError) as raised:
        Program("x = 1\ny = x / 0  # here\n", name="lesson.py").run()
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line) == ("lesson.py", 2, "y = x / 0  # here")
    assert linecache.getline("lesson.py", 1) == "x = 1\n"


def test_the_type_of_new_tensors_is_put_back():
    Program("import torch\ntorch.set_default_dtype(torch.float64)\n").run()
    assert torch.get_default_dtype() is torch.float32
