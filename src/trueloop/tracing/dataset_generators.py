"""Generators of random numbers that a dataset holds and draws from for every sample, as its code tells."""

from __future__ import annotations

import dis
import random
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

_GENERATORS: Final = ("Generator", "RandomState")
_APART: Final = frozenset({"get_worker_info", "manual_seed", "seed", "setstate", "set_state", "spawn", "jumped"})


def find_generators(dataset: Any) -> Iterator[tuple[str, str, CodeType]]:
    """Yield each generator that a dataset, or a transform in it, holds and uses for every sample.

    Left out is whatever asks ``get_worker_info``, or seeds, or makes its generator anew: it tells its workers, or its
    samples, apart itself.

    Yields:
        its path, its class, and the function that uses it.
    """
    holders = [("dataset", dataset, "__iter__" if isinstance(dataset, IterableDataset) else "__getitem__")]
    for name, value in list(getattr(dataset, "__dict__", {}).items()):
        if not isinstance(value, Tensor) and "__call__" in dir(type(value)) and hasattr(value, "__dict__"):
            holders.append((f"dataset.{name}", value, "__call__"))
    for path, holder, entry in holders:
        codes = list(_reached(type(holder), entry))
        if any(_APART.intersection(code.co_names) for code in codes):
            return
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            if _is_generator(value) and not any(_assigns(code, name) for code in codes):
                user = next((code for code in codes if name in code.co_names), None)
                if user is not None:
                    yield f"{path}.{name}", type(value).__name__, user


def _assigns(code: CodeType, name: str) -> bool:
    return any(step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(code))


def _is_generator(value: Any) -> bool:
    kind = type(value)
    from_numpy = kind.__module__.startswith("numpy.random") and kind.__name__ in _GENERATORS
    return from_numpy or isinstance(value, torch.Generator) or kind is random.Random


def _reached(kind: type, entry: str) -> Iterator[CodeType]:
    """Yield the code of a method, and of the methods of the same class that it names."""
    waiting, seen = [entry], {entry}
    while waiting:
        function = getattr(kind, waiting.pop(), None)
        code = getattr(function, "__code__", None)
        if code is None:
            continue
        yield code
        for name in code.co_names:
            if name not in seen and hasattr(getattr(kind, name, None), "__code__"):
                seen.add(name)
                waiting.append(name)
