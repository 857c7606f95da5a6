"""Traverse and rebuild batches: tuples, lists, mappings and dataclasses of tensors."""

# ruff: noqa: N806 - shapes are part of the name: B samples

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, cast

import torch
from torch import Tensor


def tensors(tree: Any) -> list[Tensor]:
    """Return every tensor in a batch, in the order of `leaves`."""
    return [leaf for _, leaf in leaves(tree)]


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor with its path: "[0]", "['mask']"."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, part in cast("Mapping[Any, Any]", tree).items():
            yield from leaves(part, f"{path}[{key!r}]")
    elif isinstance(tree, (tuple, list)):
        for index, part in enumerate(cast("list[Any]", tree)):
            yield from leaves(part, f"{path}[{index}]")
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from leaves(getattr(tree, field.name), f"{path}.{field.name}")


def map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:  # noqa: PLR0911 - one return per kind of tree
    """Return a copy of a batch with ``change`` applied to every tensor."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, tuple):
        parts = [map_tensors(part, change) for part in cast("tuple[Any, ...]", tree)]
        build = getattr(tree, "_make", None)  # a named tuple takes its fields one by one
        return build(parts) if build else tuple(parts)
    if isinstance(tree, list):
        return [map_tensors(part, change) for part in cast("list[Any]", tree)]
    if isinstance(tree, Mapping):
        items = {key: map_tensors(part, change) for key, part in cast("Mapping[Any, Any]", tree).items()}
        if isinstance(tree, MutableMapping):
            clone = copy.copy(cast("MutableMapping[Any, Any]", tree))  # a subclass keeps its attributes
            for key, part in items.items():
                clone[key] = part
            return clone
        return items
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        clone = copy.copy(tree)
        for field in dataclasses.fields(tree):
            object.__setattr__(clone, field.name, map_tensors(getattr(tree, field.name), change))
        return clone
    return tree


def replace_tensors(tree: Any, replacements: Mapping[int, Tensor]) -> Any:
    """Return a copy of a batch with some tensors replaced.

    Args:
        tree: a batch.
        replacements: new tensors, by the index of the replaced tensor in `tensors`.
    """
    index = -1

    def change(tensor: Tensor) -> Tensor:
        nonlocal index
        index += 1
        return replacements.get(index, tensor)

    return map_tensors(tree, change)


def batch_size(tree: Any) -> int:
    """Return the batch size B, the length of the first tensor with a dimension; 0 if no tensor has a dimension."""
    return next((leaf.shape[0] for leaf in tensors(tree) if leaf.dim()), 0)


def select_samples(tree: Any, index: Tensor | slice) -> Any:
    """Return a batch of the samples at an index: it selects rows of every tensor with B rows; other values stay."""
    B = batch_size(tree)
    return map_tensors(tree, lambda leaf: leaf[index] if leaf.dim() and leaf.shape[0] == B else leaf)


def split_batch(tree: Any, sizes: list[int]) -> list[Any]:
    """Split a batch into parts of the given sizes."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [select_samples(tree, slice(start, start + size)) for start, size in zip(starts, sizes, strict=True)]


def clone_batch(tree: Any) -> Any:
    """Return a copy of a batch that shares no memory with it, so that the user's code can write into the copy."""
    return map_tensors(tree, lambda leaf: leaf.detach().clone())


def move_batch(tree: Any, device: torch.device) -> Any:
    """Move a batch to a device."""
    return map_tensors(tree, lambda leaf: leaf.to(device))


def to_double(tree: Any) -> Any:
    """Convert the floating-point tensors of a batch to float64."""
    return map_tensors(tree, lambda leaf: leaf.double() if leaf.is_floating_point() else leaf)


def describe_batch(tree: Any) -> str:
    """Describe the tensors of a batch: "([32, 8] float32, [32] int64)"."""
    parts = [f"{list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}" for leaf in tensors(tree)]
    return f"({', '.join(parts)})" if parts else type(tree).__name__
