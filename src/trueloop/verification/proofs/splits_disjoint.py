"""No sample of the validation set is in the training set.

The model memorises a sample that is in both sets, and the validation score counts that as generalisation.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from trueloop.core.formatting import format_count, format_percent
from trueloop.verification.batch_tree import batch_size, leaves, select_samples
from trueloop.verification.evidence import Bars, Evidence, NotApplicable, broken, holds
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitDigests:
    """Digests of the samples of one split."""

    first: dict[bytes, int]
    """Digest -> index of the first sample with that digest."""
    samples: int
    """Number of samples read."""
    complete: bool = True
    """False if the limit of time or samples was reached."""

    @property
    def repeated_share(self) -> float:
        """Share of samples that repeat an earlier sample of the same split."""
        return 1 - len(self.first) / self.samples if self.samples else 0.0


def splits_disjoint(context: ProofContext, *, samples: int = 20_000) -> Evidence:
    """Compare the samples of two loaders by content, and by index if both use subsets of one dataset.

    Args:
        context: context of a target with ``loader`` and ``val``.
        samples: largest number of samples to read from each loader.
    """
    loader, val = context.target.loader, context.target.val
    if loader is None or val is None:
        raise NotApplicable("Two loaders are needed: pass loader= and val=.")
    shared = _shared_indices(loader, val)
    train, held_out = _read(context, loader, samples), _read(context, val, samples)
    if not train.samples or not held_out.samples:
        raise NotApplicable("One of the loaders is empty.")
    common = [digest for digest in held_out.first if digest in train.first]
    share = len(common) / len(held_out.first)
    numbers = {"train": train.samples, "val": held_out.samples, "shared": max(len(common), len(shared))}
    picture = Bars(title="Samples", values={key: float(value) for key, value in numbers.items()}, unit="samples")
    if shared:
        return _broken(
            f"{format_count(len(shared), 'index')} of one dataset {'is' if len(shared) == 1 else 'are'} in both splits "
            f"({', '.join(map(str, shared[:5]))}{', ...' if len(shared) > 5 else ''}).",
            f"index {shared[0]}",
            numbers,
            picture,
        )
    if common and share > 2 * train.repeated_share:
        pairs = ", ".join(f"{held_out.first[digest]} = {train.first[digest]}" for digest in common[:4])
        return _broken(
            f"{len(common)} of {format_count(len(held_out.first), 'held-out sample')} ({format_percent(share)}) "
            f"{'has' if len(common) == 1 else 'have'} the same content as a training sample "
            f"(held-out index = training index: {pairs}).",
            f"held-out sample {held_out.first[common[0]]}",
            numbers,
            picture,
        )
    if common:
        raise NotApplicable(
            f"{format_percent(share)} of the held-out samples repeat a training sample, but "
            f"{format_percent(train.repeated_share)} of the training samples repeat one another too: content does not "
            f"identify samples here."
        )
    return holds(
        f"None of {format_count(held_out.samples, 'held-out sample')} is among "
        f"{format_count(train.samples, 'training sample')}.",
        numbers=numbers,
        charts=(picture,),
        notes=()
        if train.complete and held_out.complete
        else ("The loaders were read only up to the limits of time and samples.",),
    )


def _broken(message: str, cause: str, numbers: dict[str, int], picture: Bars) -> Evidence:
    return broken(
        message,
        cause=cause,
        fix="Remove duplicates first, then split by group (person, document, day) before any other step.",
        numbers=numbers,
        charts=(picture,),
    )


def _read(context: ProofContext, loader: Any, max_samples: int) -> SplitDigests:
    first: dict[bytes, int] = {}
    count, started = 0, context.clock()
    for digest in _digests(loader):
        if count >= max_samples or (count and context.clock() - started > context.target.seconds / 2):
            return SplitDigests(first=first, samples=count, complete=False)
        first.setdefault(digest, count)
        count += 1
    return SplitDigests(first=first, samples=count)


def _digests(loader: Any) -> Iterator[bytes]:
    """Yield the digests of all samples: read from the loader's dataset if there is one, else from its batches."""
    dataset = getattr(loader, "dataset", None)
    sampler = getattr(loader, "sampler", None)
    subset = getattr(sampler, "indices", None)
    if dataset is not None and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        for index in range(len(dataset)) if subset is None else subset:
            yield _digest(dataset[int(index)])
        return
    for batch in loader:
        count = batch_size(batch)
        for index in range(count):
            yield _digest(select_samples(batch, slice(index, index + 1)))


def _digest(sample: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for _, leaf in leaves(sample):
        digest.update(str((leaf.dtype, leaf.numel())).encode())
        if leaf.numel():
            digest.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    for content in _non_tensor_bytes(sample):
        digest.update(content)
    return digest.digest()


def _non_tensor_bytes(sample: Any) -> Iterator[bytes]:
    """Yield the bytes of non-tensor values: arrays, numbers, text, images."""
    if isinstance(sample, Tensor):
        return
    if isinstance(sample, dict):
        for part in cast("dict[Any, Any]", sample).values():
            yield from _non_tensor_bytes(part)
    elif isinstance(sample, (tuple, list)):
        for part in cast("list[Any]", sample):
            yield from _non_tensor_bytes(part)
    elif hasattr(sample, "tobytes"):
        yield sample.tobytes()
    elif isinstance(sample, (int, float, str, bytes)):
        yield repr(sample).encode()


def _shared_indices(loader: Any, val: Any) -> list[int]:
    (train_dataset, train), (val_dataset, held_out) = _indices(loader), _indices(val)
    return sorted(train & held_out) if train_dataset is not None and train_dataset is val_dataset else []


def _indices(loader: Any) -> tuple[Any, set[int]]:
    """Return the dataset that all nested subsets come from, and the indices in it that a loader can yield."""
    dataset: Any = getattr(loader, "dataset", None)
    if dataset is None or not hasattr(dataset, "__len__"):
        return None, set()
    subset = getattr(getattr(loader, "sampler", None), "indices", None)
    indices = [int(index) for index in (range(len(dataset)) if subset is None else subset)]
    while hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        parent_indices = [int(index) for index in dataset.indices]
        indices = [parent_indices[index] for index in indices]
        dataset = dataset.dataset
    return dataset, set(indices)


PROOF = Proof(title="Training and validation share nothing", group="data", prove=splits_disjoint)
