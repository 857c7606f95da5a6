"""Tests of output files: checked before the work, and written after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueloop.app.output_file import check_writable, write_output
from trueloop.core.errors import InvalidConfig, RunFolderError


def test_the_path_stays_valid_after_a_change_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    place = check_writable(Path("page.html"), "page")
    assert place == tmp_path.resolve() / "page.html"
    write_output(place, "é", "page")
    assert place.read_text(encoding="utf-8") == "é"
    assert check_writable(place, "page") == place


@pytest.mark.parametrize("word", ["", "nowhere/page.html"])
def test_an_unwritable_path_is_rejected_early(tmp_path: Path, word: str):
    with pytest.raises(InvalidConfig, match=r"A page cannot be written to '.*'\.\n") as refused:
        check_writable(tmp_path / word, "page")
    assert refused.value.fix == "Name a file in a folder that you may write to."


def test_a_path_without_permission_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.access", lambda place, _mode: Path(place) != tmp_path / "locked.html")
    (tmp_path / "locked.html").touch()
    with pytest.raises(InvalidConfig, match="locked"):
        check_writable(tmp_path / "locked.html", "page")


def test_a_removed_folder_raises_an_error(tmp_path: Path):
    with pytest.raises(RunFolderError, match="The page could not be written to .*: No such file"):
        write_output(tmp_path / "gone" / "page.html", "", "page")
