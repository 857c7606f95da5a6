"""Fingerprint a dataset, so that a run records which version of the data it used."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trueloop.data.order import order
from trueloop.data.sample_rng import preserve_cpu_generators, seed_generators
from trueloop.data.samplers import dataset_size
from trueloop.data.shards import Shards

MAX_SAMPLES = 256  # number of samples to hash: takes 10 ms in memory, seconds for large images
MAX_SHARDS = 16  # number of shards to open


def fingerprint(dataset: Any, samples: int = MAX_SAMPLES) -> str:
    """Hash the size and the content of some samples, which are the same ones in every call.

    A change of the size is always detected, a change of a share s of the samples with probability 1 - (1 - s)^samples:
    with the default, if 1 % of the samples change, this is detected in 92 of 100 cases.

    Args:
        dataset: dataset with a length and indices, or `Shards`. Augmentation uses a fixed seed. For shards, their
            number and the first samples of some are hashed, but not their names, so that data may be moved.
        samples: number of samples to read; if the dataset has no more, all are hashed.

    Returns:
        "1797:sha256:0123456789abcdef", with "partial" instead of "sha256" if samples contain objects whose content
        cannot be hashed; only the type of such objects is hashed.

    Raises:
        InvalidData: the dataset is empty or has no length.
    """
    if isinstance(dataset, Shards):
        return _fingerprint_shards(dataset, samples)
    size = dataset_size(dataset)
    digest = hashlib.sha256(str(size).encode())
    complete = True
    with preserve_cpu_generators():
        for index in sorted(order(size, seed=0, epoch=0).take(0, min(samples, size)).tolist()):
            seed_generators(0)
            complete &= _hash_value(dataset[index], digest.update)
    return f"{size}:{'sha256' if complete else 'partial'}:{digest.hexdigest()[:16]}"


def _fingerprint_shards(data: Shards, samples: int) -> str:
    total = len(data.shards)
    shard_indices = sorted(order(total, seed=0, epoch=0).take(0, min(MAX_SHARDS, total)).tolist())
    digest = hashlib.sha256(str(total).encode())
    complete = True
    with preserve_cpu_generators():
        for shard in shard_indices:
            seed_generators(0)
            for sample in islice(data.read(data.shards[shard]), samples // len(shard_indices)):
                complete &= _hash_value(sample, digest.update)
                seed_generators(0)
            digest.update(b"<end>")
    return f"{total} shards:{'sha256' if complete else 'partial'}:{digest.hexdigest()[:16]}"


def _hash_value(value: Any, update: Callable[[bytes], None]) -> bool:
    """Add type, structure and content to the digest; return False if only the type of some value could be hashed."""
    update(f"<{type(value).__name__}>".encode())
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        update(f"{value.dtype}{list(value.shape)}".encode())
        update(value.flatten().view(torch.uint8).numpy().tobytes())
    elif hasattr(value, "__array_interface__") and not (array := np.asarray(value)).dtype.hasobject:  # NumPy, Pillow
        update(f"{array.dtype}{list(array.shape)}".encode())
        update(array.tobytes())
    elif isinstance(value, (str, bytes, int, float, complex, type(None))):
        content = value if isinstance(value, bytes) else str(value).encode()
        update(f"{len(content)}:".encode() + content)
    elif isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return _hash_value(sorted(mapping.items(), key=lambda item: str(item[0])), update)
    elif isinstance(value, (tuple, list)):
        items = cast("Sequence[Any]", value)
        update(f"{len(items)}:".encode())
        hashed = [_hash_value(item, update) for item in items]  # with a generator, all() would stop at the first False
        return all(hashed)
    else:
        return False
    return True
