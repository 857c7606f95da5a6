"""A text that is shown runs as one file would, in parts, and what it prints is kept."""

from __future__ import annotations

import pytest

from trueloop.engines.teach.shown import run_shown


def test_parts_share_their_names_and_what_they_print_is_kept(capsys: pytest.CaptureFixture[str]):
    scope = run_shown("def double(x):\n    return 2 * x\n\nprint('built', double(1))\n")
    assert run_shown("four = double(2)\nprint(four)\n", into=scope) is scope
    assert (scope["four"], scope["printed"]) == (4, ["built 2", "4"])
    assert capsys.readouterr().out == ""
