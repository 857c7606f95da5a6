"""Test the live folder: private to its user, and only with feeds."""

from __future__ import annotations

import os

import pytest

from trueloop.runs.live.folder import (
    FEED_NAME,
    POSITION_NAME,
    ensure_private_folder,
    is_program_name,
    live_folder,
    new_program_name,
    program_names,
    remove_ended_programs,
)


def test_the_folder_is_in_the_runtime_directory_of_the_session(tmp_path, monkeypatch):
    assert live_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "trueloop"
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    for environment in ({}, {"XDG_RUNTIME_DIR": str(tmp_path / "none")}):
        assert str(live_folder(environment).parent) in (str(tmp_path), f"/run/user/{os.getuid()}")


def test_only_its_user_can_read_the_folder(tmp_path):
    folder = tmp_path / "a" / "b"
    ensure_private_folder(folder)
    ensure_private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_readable_by_others_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(PermissionError):
        ensure_private_folder(tmp_path / "open")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError):
        ensure_private_folder(tmp_path / "link")
    feed(tmp_path / "open", 1)
    feed(tmp_path, 2)
    assert program_names(tmp_path / "open") == program_names(tmp_path / "link") == [], "nor is what lies in it believed"
    (tmp_path / "open").chmod(0o700)
    assert len(program_names(tmp_path / "open")) == 1


def test_names_cannot_lead_out_of_the_folder():
    assert is_program_name(new_program_name(1_700_000_000.0, rank=None))
    assert is_program_name(new_program_name(1_700_000_000.0, rank=3))
    for word in ("", ".", "..", "../20260101-000000-1", "20260101-000000-1/..", "20260101-000000-1\n", "x"):
        assert not is_program_name(word)


def feed(folder, number):
    path = folder / f"20260101-00000{number}-7"
    path.mkdir()
    for name in (FEED_NAME, POSITION_NAME):
        (path / name).write_text("{}\n")
    return path


def test_the_newest_and_foreign_files_are_kept(tmp_path):
    paths = [feed(tmp_path, number) for number in range(4)]
    (paths[0] / "mine.txt").write_text("mine")
    (tmp_path / "lab.json").write_text("{}")
    (tmp_path / "20260101-000009-7").symlink_to(tmp_path)
    assert program_names(tmp_path) == [path.name for path in reversed(paths)]
    remove_ended_programs(tmp_path, lambda path: path == paths[1], keep=1)
    assert [path.exists() for path in paths] == [True, True, False, True], "one still runs, one holds something else"
    assert (paths[0] / "mine.txt").read_text() == "mine"
    assert program_names(tmp_path / "none") == []
