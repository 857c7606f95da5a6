"""The parts of a program run like one file, and the output is stored."""

from __future__ import annotations

import pytest

from trueloop.lab.teaching.run_snippet import SnippetRunner


def test_parts_share_variables_and_output(capsys: pytest.CaptureFixture[str]):
    runner = SnippetRunner()
    runner.run("def double(x):\n    return 2 * x\n\nprint('built', double(1))\n")
    runner.run("four = double(2)\nprint(four, __name__)\n")
    assert (runner.variables["four"], runner.printed) == (4, ["built 2", "4 __main__"])
    assert capsys.readouterr().out == ""


def test_an_error_of_the_program_is_raised():
    with pytest.raises(ZeroDivisionError):
        SnippetRunner().run("1 / 0\n")
