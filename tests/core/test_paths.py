"""Test path checks that never raise."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueloop.core.paths import is_file, is_folder, path_exists


def test_files_folders_and_links_to_them(tmp_path: Path):
    file, link, lost = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    file.touch()
    link.symlink_to(file)
    lost.symlink_to(tmp_path / "nothing")
    places = (file, link, lost, tmp_path)
    assert [path_exists(place) for place in places] == [True, True, False, True]
    assert [is_file(place) for place in places] == [True, True, False, False]
    assert [is_folder(place) for place in places] == [False, False, False, True]


@pytest.mark.parametrize("word", ["a" * 5000, "a\0b", "loop/x"])
def test_an_impossible_path_does_not_exist(tmp_path: Path, word: str):
    (tmp_path / "loop").symlink_to("loop")
    assert not any(ask(tmp_path / word) for ask in (path_exists, is_file, is_folder))
