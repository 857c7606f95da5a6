"""The cheat sheet in the documentation is up to date."""

from pathlib import Path

from trueloop.lab.cheatsheet import render_markdown, render_table

PAGE = Path(__file__).parents[2] / "docs" / "cheatsheet.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == render_markdown(), (
        "python -m trueloop.lab.cheatsheet > docs/cheatsheet.md"
    )


def test_a_vertical_bar_in_a_cell_is_escaped():
    assert render_table(("a", "b"), [("x | y", "z")]).splitlines()[2] == "| x \\| y | z |"
