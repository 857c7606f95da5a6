"""Inspects the samplers of a DataLoader."""

from typing import Any, Final, cast

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

_MAX_DEPTH: Final = 4  # nested samplers that are followed
_SHUFFLING: Final = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_SHUFFLING_NAME: Final = "accelerate.data_loader.SeedableRandomSampler"  # also used by the Hugging Face Trainer


def sampler_order(loader: Any) -> tuple[str, bool | None]:
    """Return the class name of the sampler, and whether it shuffles; None = unknown, for a custom sampler."""
    batches = loader.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        return type(batches).__name__, None
    sampler: Any = loader.sampler if batches is None else cast("Any", batches).sampler
    kind: type[Any] = type(sampler)
    if kind is DistributedSampler:
        return kind.__name__, bool(sampler.shuffle)
    shuffles = kind in _SHUFFLING or f"{kind.__module__}.{kind.__qualname__}" == _SHUFFLING_NAME
    return kind.__name__, shuffles if shuffles or kind is SequentialSampler else None


def distributed_sampler(loader: Any) -> Any:
    """Return the DistributedSampler that shuffles a loader, also within batch samplers, or None."""
    for first in (loader.sampler, loader.batch_sampler):
        sampler: Any = first
        for _ in range(_MAX_DEPTH):
            if isinstance(sampler, DistributedSampler):
                is_plain = type(sampler).__iter__ is DistributedSampler.__iter__ and sampler.shuffle
                return cast("Any", sampler) if is_plain else None
            sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
            if sampler is None:
                break
    return None
