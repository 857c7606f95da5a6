"""`trueloop explain`: a page by code or name, and a helpful word where there is none."""

from __future__ import annotations

import pytest

from trueloop.faces.cli.app import main

pytestmark = pytest.mark.usefixtures("made_up")


@pytest.mark.parametrize("word", ["GRD901", "grd901", "made-up-error"])
def test_a_page_has_everything_its_file_tells(word: str, capsys: pytest.CaptureFixture[str]):
    assert main(["explain", word]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:8] == [
        "GRD901 A made-up-error",
        "error · gradient/made-up-error · found by trueloop run",
        "",
        "Something made up happens.",
        "",
        "Symptom",
        "  None: it is made up.",
        "",
    ]
    for heading in ("Why nothing raises", "Look-alikes", "Fix", "References", "A program that has it"):
        assert heading in lines
    assert "  bad = 1" in lines
    assert lines[-1] == "In short: Do otherwise."


def test_a_name_that_is_none_is_corrected(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "GRD910"]) == 1
    assert capsys.readouterr().err.startswith(
        "error: 'GRD910' is not a failure of the catalogue.\nfix: Did you mean GR"
    )


def test_without_a_name_it_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert main(["explain"]) == 2
