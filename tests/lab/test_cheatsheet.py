"""The cheat sheet of the documentation is the one that is generated."""

from pathlib import Path

from trueloop.lab.cheatsheet import render_markdown, render_table

PAGE = Path(__file__).parents[2] / "docs" / "cheatsheet.md"


def test_the_page_is_what_is_generated():
    assert PAGE.read_text(encoding="utf-8") == render_markdown(), (
        "python -m trueloop.lab.cheatsheet > docs/cheatsheet.md"
    )


def test_a_stroke_in_a_cell_does_not_end_it():
    assert render_table(("a", "b"), [("x | y", "z")]).splitlines()[2] == "| x \\| y | z |"
