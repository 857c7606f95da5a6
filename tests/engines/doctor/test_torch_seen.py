"""What is told of torch where it cannot be imported."""

from __future__ import annotations

import builtins
import importlib.util
from typing import Any

import pytest

from trueloop.engines.doctor.torch_seen import read_torch


def test_torch_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert read_torch() == (None, "")


def test_torch_that_is_broken(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def broken(name: str, *args: Any, **options: Any) -> Any:
        if name == "torch":
            raise OSError("libcudart.so.12: cannot open shared object file\nand more")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", broken)
    assert read_torch() == (None, "OSError: libcudart.so.12: cannot open shared object file")
