"""What orders the samples of a DataLoader."""

from __future__ import annotations

from typing import Any, Final, cast

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

_DEPTH: Final = 4  # samplers around each other that are looked through
_SHUFFLING: Final = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_SHUFFLING_TOO: Final = "accelerate.data_loader.SeedableRandomSampler"  # of the Hugging Face Trainer, too


def sampler_order(loader: Any) -> tuple[str, bool | None]:
    """Return the class of what orders the samples, and whether it shuffles; None = nobody but its author knows."""
    batches = loader.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        return type(batches).__name__, None
    sampler: Any = loader.sampler if batches is None else cast("Any", batches).sampler
    kind: type[Any] = type(sampler)
    if kind is DistributedSampler:
        return kind.__name__, bool(sampler.shuffle)
    shuffles = kind in _SHUFFLING or f"{kind.__module__}.{kind.__qualname__}" == _SHUFFLING_TOO
    return kind.__name__, shuffles if shuffles or kind is SequentialSampler else None


def distributed_sampler(loader: Any) -> Any:
    """Return the DistributedSampler that shuffles a loader, also through batch samplers around it, or None."""
    for first in (loader.sampler, loader.batch_sampler):
        sampler: Any = first
        for _ in range(_DEPTH):
            if isinstance(sampler, DistributedSampler):
                ours = type(sampler).__iter__ is DistributedSampler.__iter__ and sampler.shuffle
                return cast("Any", sampler) if ours else None
            sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
            if sampler is None:
                break
    return None
