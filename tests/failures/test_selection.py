"""What to watch for and what not to hear of: words, pyproject.toml, comments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import SourceLocation
from trueloop.failures.selection import FailureSelection, get_failure, select_failures

pytestmark = pytest.mark.usefixtures("made_up")


def codes(choice: FailureSelection) -> list[str]:
    return [entry.code for entry in choice.entries()]


def test_without_a_word_everything_is_watched(tmp_path: Path):
    choice = select_failures([], [], folder=tmp_path)
    assert codes(choice) == ["GRD901", "MEM901", "MDL901", "ENV901"]
    assert not choice.is_suppressed("GRD901", None)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["GRD901"], ["GRD901"]),
        (["grd901,MEM901"], ["GRD901", "MEM901"]),
        (["GRD", " mem901 "], ["GRD901", "MEM901"]),
        (["gradient"], ["GRD901"]),
        (["made-up-note"], ["MDL901"]),
        (["made_up_note"], ["MDL901"]),
        ([""], ["GRD901", "MEM901", "MDL901", "ENV901"]),
    ],
)
def test_words_select(tmp_path: Path, words: list[str], expected: list[str]):
    assert codes(select_failures(words, [], folder=tmp_path)) == expected


def test_what_is_ignored_is_watched_and_not_told(tmp_path: Path):
    choice = select_failures([], ["GRD"], folder=tmp_path)
    assert "GRD901" in codes(choice)
    assert choice.is_suppressed("GRD901", None)
    assert not choice.is_suppressed("MEM901", None)


@pytest.mark.parametrize("word", ["GRD902", "made-up-eror", "nonsense", "GR"])
def test_a_word_that_means_nothing_is_refused(tmp_path: Path, word: str):
    with pytest.raises(InvalidConfig, match=f"'{word}' \\(select\\) is neither") as caught:
        select_failures([word], [], folder=tmp_path)
    assert "trueloop failures" in caught.value.fix
    assert ("Did you mean" in caught.value.fix) == (word in ("GRD902", "made-up-eror"))


def test_the_projects_own_words_count(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text('[tool.trueloop]\nselect = ["GRD", "MEM"]\nignore = ["MEM901"]\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\n")  # none of ours: the search goes on above
    choice = select_failures([], ["GRD901"], folder=below)
    assert codes(choice) == ["GRD901", "MEM901"]
    assert choice.is_suppressed("MEM901", None)
    assert choice.is_suppressed("GRD901", None)
    assert codes(select_failures(["MDL"], [], folder=below)) == ["MDL901"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('[tool.trueloop]\nselect = "GRD"\n', "sets select = 'GRD'"),
        ("[tool.trueloop]\nignore = [1]\n", r"sets ignore = \[1\]"),
        ('[tool.trueloop]\nignore = ["NOPE"]\n', r"'NOPE' \(ignore in .*pyproject.toml\) is neither"),
        ("[tool.trueloop\n", "is not TOML"),
    ],
)
def test_a_project_that_says_it_wrongly_is_told(tmp_path: Path, text: str, match: str):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(InvalidConfig, match=match):
        select_failures([], [], folder=tmp_path)


def test_somebody_elses_broken_file_is_not_our_business(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text("[tool.other\n")
    assert len(codes(select_failures([], [], folder=tmp_path))) == 4


def test_a_comment_silences_its_line(program: Callable[..., Path]):
    path = str(program("step()  # trueloop: ignore[GRD901]\nstep()\n"))
    choice = FailureSelection()
    assert choice.is_suppressed("GRD901", SourceLocation(path, 1))
    assert not choice.is_suppressed("MEM901", SourceLocation(path, 1))
    assert not choice.is_suppressed("GRD901", SourceLocation(path, 2))
    assert not choice.is_suppressed("GRD901", SourceLocation(path, 99))
    assert not choice.is_suppressed("GRD901", SourceLocation("<a cell that is gone>", 1))


def test_a_failure_is_found_by_its_name():
    assert get_failure("made_up_error").code == "GRD901"
    with pytest.raises(InvalidConfig, match="'made-up-eror' is not a failure") as caught:
        get_failure("made-up-eror")
    assert caught.value.fix.startswith("Did you mean made-up-error?")
