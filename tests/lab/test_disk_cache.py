"""What is kept is found again by its key; what cannot be read is as if it were not there."""

from __future__ import annotations

import pytest

from trueloop.lab import disk_cache as module
from trueloop.lab.disk_cache import DiskCache, cache_folder

KEY = "ab" * 20


def test_it_is_found_again(tmp_path):
    kept = DiskCache(tmp_path / "a" / "b")
    assert kept.get(KEY) is None
    kept.put(KEY, {"x": [1, None]})
    assert DiskCache(tmp_path / "a" / "b").get(KEY) == {"x": [1, None]}
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == [f"{KEY}.json"]


@pytest.mark.parametrize("spoilt", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_spoilt_is_not_there(tmp_path, spoilt):
    (tmp_path / f"{KEY}.json").write_bytes(spoilt)
    assert DiskCache(tmp_path).get(KEY) is None


def test_what_is_too_large_is_not_read(tmp_path, monkeypatch):
    DiskCache(tmp_path).put(KEY, {"x": "y" * 100})
    monkeypatch.setattr(module, "MAX_BYTES", 50)
    assert DiskCache(tmp_path).get(KEY) is None


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path):
    (tmp_path / "file").write_text("")
    kept = DiskCache(tmp_path / "file")
    kept.put(KEY, {"x": 1})
    assert kept.get(KEY) is None
    DiskCache(tmp_path).put(KEY, {"x": float("nan")})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_oldest_go(tmp_path, monkeypatch):
    import os

    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    kept = DiskCache(tmp_path)
    for place, letter in enumerate("abc"):
        kept.put(letter * 40, {"x": letter})
        os.utime(tmp_path / f"{letter * 40}.json", (place, place))
    kept.put("d" * 40, {"x": "d"})
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["c", "d"]


def test_the_folder_is_the_users(tmp_path, monkeypatch):
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "trueloop"
    monkeypatch.setenv("HOME", str(tmp_path))
    for environment in ({}, {"XDG_CACHE_HOME": "relative"}):
        assert cache_folder(environment) == tmp_path / ".cache" / "trueloop"
