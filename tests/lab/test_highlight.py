"""The highlighted pieces joined are the text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.lab.highlight import highlight

FILES = [Path(highlight.__code__.co_filename), Path(__file__)]


def joined(lines: list[list[tuple[str, str]]]) -> str:
    return "\n".join("".join(text for _, text in line) for line in lines)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_pieces_of_a_file_joined_are_its_text(file: Path):
    assert joined(highlight(file.read_text())) == file.read_text()


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\f"), max_size=200))
def test_the_pieces_of_any_text_joined_are_the_text(text: str):
    assert joined(highlight(text)) == text


def test_pieces_have_their_kinds():
    lines = highlight('for x in range(3):  # so\n    """Two\n    lines."""\n    print(f"{x}é")')
    assert ("keyword", "for") in lines[0]
    assert ("builtin", "range") in lines[0]
    assert ("number", "3") in lines[0]
    assert ("comment", "# so") in lines[0]
    assert lines[1] == [("", "    "), ("string", '"""Two')]
    assert lines[2] == [("string", '    lines."""')]
    assert ("builtin", "print") in lines[3]
