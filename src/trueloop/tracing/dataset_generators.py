"""Finds the random generators that a dataset uses for every sample, by its code."""

import dis
import random
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

_GENERATORS: Final = ("Generator", "RandomState")
_WORKER_AWARE: Final = frozenset({"get_worker_info", "manual_seed", "seed", "setstate", "set_state", "spawn", "jumped"})


def find_generators(dataset: Any) -> Iterator[tuple[str, str, CodeType]]:
    """Yield each generator that a dataset, or a transform in it, owns and uses for every sample.

    Code that calls ``get_worker_info``, seeds, or creates its generator again is left out: it distinguishes its workers
    or samples itself.

    Yields:
        Path, class name, and the code that uses the generator.
    """
    owners = [("dataset", dataset, "__iter__" if isinstance(dataset, IterableDataset) else "__getitem__")]
    for name, value in list(getattr(dataset, "__dict__", {}).items()):
        if not isinstance(value, Tensor) and "__call__" in dir(type(value)) and hasattr(value, "__dict__"):
            owners.append((f"dataset.{name}", value, "__call__"))
    for path, owner, entry in owners:
        codes = list(_reachable_code(type(owner), entry))
        if any(_WORKER_AWARE.intersection(code.co_names) for code in codes):
            return
        for name, value in list(getattr(owner, "__dict__", {}).items()):
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


def _reachable_code(kind: type, entry: str) -> Iterator[CodeType]:
    """Yield the code of a method and of the methods of the same class that it refers to."""
    pending, seen = [entry], {entry}
    while pending:
        function = getattr(kind, pending.pop(), None)
        code = getattr(function, "__code__", None)
        if code is None:
            continue
        yield code
        for name in code.co_names:
            if name not in seen and hasattr(getattr(kind, name, None), "__code__"):
                seen.add(name)
                pending.append(name)
