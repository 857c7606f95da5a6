"""Choose the device of a run, and move batches to it."""

import copy
import dataclasses
import operator
from collections.abc import MutableMapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from trueloop.core.errors import InvalidConfig


def resolve_device(name: str) -> torch.device:
    """Return the device with a name, including its index, so that it equals the ``.device`` of tensors on it.

    Args:
        name: "auto" (CUDA, else MPS, else CPU), "cpu", "cuda" (the current one), "cuda:1" or "mps".

    Raises:
        InvalidConfig: this machine has no such device; the message lists the devices it has.
    """
    available = _available_devices()
    if name == "auto":
        name = "cuda" if "cuda:0" in available else available[-1]
    if name == "cuda" and "cuda:0" in available:
        return torch.device("cuda", torch.cuda.current_device())
    if name not in available:
        cuda_hint = "" if torch.backends.cuda.is_built() else " This build of torch has no CUDA."
        raise InvalidConfig(
            f"This machine has no device {name!r}.",
            why=f"It has: {', '.join(available)}.{cuda_hint if name[:4] == 'cuda' else ''}",
            fix="Choose one of these, or 'auto'.",
        )
    return torch.device("mps", 0) if name == "mps" else torch.device(name)


def _available_devices() -> list[str]:
    """Return the names of all devices of this machine; the last one is the best that is not CUDA."""
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return [*(f"cuda:{index}" for index in range(cuda)), "cpu", *mps]


@runtime_checkable
class Movable(Protocol):
    """A batch type with its own ``to``: a packed sequence, a tokenizer's output, a graph."""

    def to(self, device: torch.device) -> Any:
        """Return this object on the device."""
        ...


def move_to_device(batch: Any, device: torch.device) -> Any:
    """Return the batch with every tensor on the device; the same object if all tensors are there already.

    Nested tuples, lists, dicts, named tuples and dataclasses are copied as needed and not modified; for other objects
    that have it, ``to(device)`` is called; anything else (strings, numbers) is returned unchanged.

    Cost: about a microsecond for (inputs, targets) that are there already. Copies from pinned memory do not block.
    """
    batch_type = type(batch)
    if batch_type is Tensor:
        return batch if batch.device == device else batch.to(device, non_blocking=batch.is_pinned())
    if batch_type is tuple or batch_type is list:
        moved = [move_to_device(item, device) for item in batch]
        return batch if _all_identical(moved, batch) else batch_type(moved)
    if isinstance(batch, dict):
        return _move_items(batch, device)
    return _move_other(batch, device)


def _move_other(batch: Any, device: torch.device) -> Any:
    """Move types other than tensors, tuples, lists and dicts; `move_to_device` handles these usual ones first."""
    if isinstance(batch, Movable):  # checked before tuples: a PackedSequence is a tuple whose lengths stay on the CPU
        return batch.to(device)
    if isinstance(batch, tuple):
        moved = [move_to_device(item, device) for item in batch]
        build = getattr(type(batch), "_make", type(batch))  # the class of a named tuple takes its fields one by one
        return batch if _all_identical(moved, batch) else build(moved)
    if isinstance(batch, MutableMapping):
        return _move_items(batch, device)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _move_fields(batch, device)
    return batch


def _all_identical(moved: Any, batch: Any) -> bool:
    return all(map(operator.is_, moved, batch))


def _move_items(batch: MutableMapping[Any, Any], device: torch.device) -> Any:
    moved = {key: move_to_device(item, device) for key, item in batch.items()}
    if _all_identical(moved.values(), batch.values()):
        return batch
    clone = copy.copy(batch)  # preserves a defaultdict's factory and a subclass's attributes
    clone.update(moved)
    return clone


def _move_fields(batch: Any, device: torch.device) -> Any:
    fields = [field.name for field in dataclasses.fields(batch)]
    items = [getattr(batch, name) for name in fields]
    moved = [move_to_device(item, device) for item in items]
    if _all_identical(moved, items):
        return batch
    clone = copy.copy(batch)
    for name, item in zip(fields, moved, strict=True):
        object.__setattr__(clone, name, item)  # also works for frozen dataclasses; the clone is not shared yet
    return clone
