"""A stored answer is found by its key, and an unreadable one counts as missing."""

from __future__ import annotations

import pytest

from trueloop.lab import disk_cache as module
from trueloop.lab.disk_cache import DiskCache, cache_folder

KEY = "ab" * 20


def test_a_stored_answer_is_found(tmp_path):
    cache = DiskCache(tmp_path / "a" / "b")
    assert cache.get(KEY) is None
    cache.put(KEY, {"x": [1, None]})
    assert DiskCache(tmp_path / "a" / "b").get(KEY) == {"x": [1, None]}
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == [f"{KEY}.json"]


@pytest.mark.parametrize("damaged", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_a_damaged_file_counts_as_missing(tmp_path, damaged):
    (tmp_path / f"{KEY}.json").write_bytes(damaged)
    assert DiskCache(tmp_path).get(KEY) is None


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    DiskCache(tmp_path).put(KEY, {"x": "y" * 100})
    monkeypatch.setattr(module, "MAX_BYTES", 50)
    assert DiskCache(tmp_path).get(KEY) is None


def test_write_errors_are_ignored(tmp_path):
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file")
    cache.put(KEY, {"x": 1})
    assert cache.get(KEY) is None
    DiskCache(tmp_path).put(KEY, {"x": float("nan")})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_oldest_entries_are_deleted(tmp_path, monkeypatch):
    import os

    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    cache = DiskCache(tmp_path)
    for index, letter in enumerate("abc"):
        cache.put(letter * 40, {"x": letter})
        os.utime(tmp_path / f"{letter * 40}.json", (index, index))
    cache.put("d" * 40, {"x": "d"})
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["c", "d"]


def test_the_cache_is_in_the_users_folder(tmp_path, monkeypatch):
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "trueloop"
    monkeypatch.setenv("HOME", str(tmp_path))
    for environment in ({}, {"XDG_CACHE_HOME": "relative"}):
        assert cache_folder(environment) == tmp_path / ".cache" / "trueloop"
