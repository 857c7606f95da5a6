"""What is told of torch: its devices as it tells them, and why it cannot be imported."""

from __future__ import annotations

import builtins
import importlib.util
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from trueloop.doctor.machine import Gpu
from trueloop.doctor.torch_facts import read_torch


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


def test_gpus_are_described_without_a_context_unless_that_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    known = SimpleNamespace(name="NVIDIA H200", total_memory=140 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: known)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (2**30, asked.append(index)))
    seen, problem = read_torch()
    assert seen is not None
    assert (problem, seen.problem, seen.built_for, asked) == ("", "", ("sm_90",), [])
    gpu = Gpu(name="NVIDIA H200", memory_bytes=140 * 2**30, capability=(9, 0))
    assert seen.gpus == (gpu, gpu)
    deep, _ = read_torch(deep=True)
    assert deep is not None
    assert ([each.free_bytes for each in deep.gpus], asked) == ([2**30, 2**30], [0, 1])


def test_torchs_own_words_on_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")

    def unavailable() -> bool:
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old.\nMore", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", unavailable)
    seen, _ = read_torch()
    assert seen is not None
    assert (seen.gpus, seen.problem) == ((), "CUDA initialization: The NVIDIA driver on your system is too old.")


def test_a_setting_that_torch_cannot_tell_is_not_guessed(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")

    class Mixed:
        benchmark = True

        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("a mix of the legacy and new APIs")

    monkeypatch.setattr(torch.backends, "cudnn", Mixed())
    seen, _ = read_torch()
    assert seen is not None
    assert (seen.tf32_convolution, seen.cudnn_benchmark) == (None, True)
