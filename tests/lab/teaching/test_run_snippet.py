"""A text that is shown runs as one file would, in parts, and what it prints is kept."""

from __future__ import annotations

import pytest

from trueloop.lab.teaching.run_snippet import SnippetRunner


def test_parts_share_their_names_and_what_they_print_is_kept(capsys: pytest.CaptureFixture[str]):
    shown = SnippetRunner()
    shown.run("def double(x):\n    return 2 * x\n\nprint('built', double(1))\n")
    shown.run("four = double(2)\nprint(four, __name__)\n")
    assert (shown.names["four"], shown.printed) == (4, ["built 2", "4 __main__"])
    assert capsys.readouterr().out == ""


def test_what_the_program_raises_leaves_it():
    with pytest.raises(ZeroDivisionError):
        SnippetRunner().run("1 / 0\n")
