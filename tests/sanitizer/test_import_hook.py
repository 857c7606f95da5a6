"""Callbacks on the import of a module: once, right after the import, and not for a search of the module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trueloop.sanitizer.import_hook import on_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that is not loaded yet."""
    name = "a_heavy_module"
    (tmp_path / f"{name}.py").write_text("import sys\nready = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield name
    sys.modules.pop(name, None)


def test_it_is_called_once_after_the_import(module: str):
    called: list[bool] = []
    on_import(module, lambda: called.append(sys.modules[module].ready))
    assert not called
    importlib.import_module(module)
    importlib.import_module(module)
    assert called == [True]


def test_an_imported_module_calls_back_immediately():
    called: list[str] = []
    before = list(sys.meta_path)
    on_import("sys", lambda: called.append("sys"))
    assert called == ["sys"]
    assert sys.meta_path == before


def test_find_spec_is_not_an_import(module: str):
    called: list[str] = []
    on_import(module, lambda: called.append(module))
    assert importlib.util.find_spec(module)
    assert importlib.util.find_spec(module)
    assert not called
    importlib.import_module(module)
    assert called == [module]


def test_nothing_is_left_behind(module: str):
    before = list(sys.meta_path)
    on_import(module, lambda: None)
    loaded = importlib.import_module(module)
    assert sys.meta_path == before
    assert "exec_module" not in vars(loaded.__loader__)
    assert loaded.__spec__ is not None
    assert loaded.__spec__.loader is loaded.__loader__


def test_the_callback_can_be_cancelled(module: str):
    before = list(sys.meta_path)
    called: list[str] = []
    leave = on_import(module, lambda: called.append(module))
    leave()
    leave()
    assert sys.meta_path == before
    importlib.import_module(module)
    assert not called


def test_a_missing_module_raises_as_usual():
    on_import("no_such_module_at_all", lambda: None)()
    leave = on_import("no_such_module_at_all", lambda: None)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        importlib.import_module("no_such_module_at_all")
    leave()


def test_a_module_that_fails_to_import_may_be_retried(module: str, tmp_path: Path):
    called: list[str] = []
    on_import(module, lambda: called.append(module))
    path = tmp_path / f"{module}.py"
    path.write_text("raise ImportError('a library is missing')")
    with pytest.raises(ImportError, match="a library is missing"):
        importlib.import_module(module)
    assert not called
    path.write_text("longer_than_before_so_that_no_cache_is_taken = True")
    importlib.invalidate_caches()
    importlib.import_module(module)
    assert called == [module]
