"""Tests of `failures.selection`: arguments, pyproject.toml and comments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import SourceLocation
from trueloop.failures.selection import FailureSelection, get_failure, select_failures

pytestmark = pytest.mark.usefixtures("made_up")


def codes(selection: FailureSelection) -> list[str]:
    return [entry.code for entry in selection.entries()]


def test_the_default_selects_all_failures(tmp_path: Path):
    selection = select_failures([], [], folder=tmp_path)
    assert codes(selection) == ["GRD901", "MEM901", "MDL901", "ENV901"]
    assert not selection.is_suppressed("GRD901", None)


@pytest.mark.parametrize(
    ("names", "expected"),
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
def test_select_by_code_family_or_slug(tmp_path: Path, names: list[str], expected: list[str]):
    assert codes(select_failures(names, [], folder=tmp_path)) == expected


def test_an_ignored_failure_is_selected_and_suppressed(tmp_path: Path):
    selection = select_failures([], ["GRD"], folder=tmp_path)
    assert "GRD901" in codes(selection)
    assert selection.is_suppressed("GRD901", None)
    assert not selection.is_suppressed("MEM901", None)


@pytest.mark.parametrize("word", ["GRD902", "made-up-eror", "nonsense", "GR"])
def test_an_unknown_name_is_refused(tmp_path: Path, word: str):
    with pytest.raises(InvalidConfig, match=f"'{word}' \\(select\\) is neither") as caught:
        select_failures([word], [], folder=tmp_path)
    assert "trueloop failures" in caught.value.fix
    assert ("Did you mean" in caught.value.fix) == (word in ("GRD902", "made-up-eror"))


def test_settings_of_the_project_are_used(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text('[tool.trueloop]\nselect = ["GRD", "MEM"]\nignore = ["MEM901"]\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").write_text(
        "[tool.other]\n"
    )  # without [tool.trueloop]: the search continues above
    selection = select_failures([], ["GRD901"], folder=below)
    assert codes(selection) == ["GRD901", "MEM901"]
    assert selection.is_suppressed("MEM901", None)
    assert selection.is_suppressed("GRD901", None)
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
def test_invalid_settings_of_the_project_are_refused(tmp_path: Path, text: str, match: str):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(InvalidConfig, match=match):
        select_failures([], [], folder=tmp_path)


def test_an_invalid_file_without_trueloop_is_skipped(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text("[tool.other\n")
    assert len(codes(select_failures([], [], folder=tmp_path))) == 4


def test_a_comment_suppresses_findings_of_its_line(program: Callable[..., Path]):
    path = str(program("step()  # trueloop: ignore[GRD901]\nstep()\n"))
    selection = FailureSelection()
    assert selection.is_suppressed("GRD901", SourceLocation(path, 1))
    assert not selection.is_suppressed("MEM901", SourceLocation(path, 1))
    assert not selection.is_suppressed("GRD901", SourceLocation(path, 2))
    assert not selection.is_suppressed("GRD901", SourceLocation(path, 99))
    assert not selection.is_suppressed("GRD901", SourceLocation("<a deleted cell>", 1))


def test_get_failure_by_slug():
    assert get_failure("made_up_error").code == "GRD901"
    with pytest.raises(InvalidConfig, match="'made-up-eror' is not a failure") as caught:
        get_failure("made-up-eror")
    assert caught.value.fix.startswith("Did you mean made-up-error?")
