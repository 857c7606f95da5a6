"""Where the board lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueloop.core.errors import BoardError
from trueloop.lab.arena.leaderboard_path import board_at, usual_board


def test_each_system_has_its_folder():
    assert usual_board({"XDG_DATA_HOME": "/data"}, platform="linux") == Path("/data/trueloop/arena.sqlite3")
    assert usual_board({}, platform="linux") == Path.home() / ".local/share/trueloop/arena.sqlite3"
    assert usual_board({}, platform="darwin").parts[-5:-2] == (Path.home().name, "Library", "Application Support")
    assert usual_board({"LOCALAPPDATA": "/local"}, platform="win32") == Path("/local/trueloop/arena.sqlite3")


def test_a_named_board_that_is_not_there_is_not_made(tmp_path: Path):
    with pytest.raises(BoardError, match="There is no board"):
        board_at(tmp_path / "typo.sqlite3")
    assert list(tmp_path.iterdir()) == []


def test_the_users_own_is_made_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trueloop.lab.arena.leaderboard_path.usual_board", lambda: tmp_path / "a" / "arena.sqlite3")
    assert board_at(None).waiting() == 0
