"""No sample of the validation set is in the training set.

A sample that is in both is learnt by heart and counted as understood: the validation score is too good by its share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from trueloop.core.formatting import format_count, format_percent
from trueloop.verification.batch_tree import leaves, batch_size, select_samples
from trueloop.verification.evidence import Bars, Evidence, NotApplicable, Verdict
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A split, as digests of its samples' contents."""

    first: dict[bytes, int]
    """Digest -> number of the first sample with it."""
    samples: int
    whole: bool = True
    """False where time or the number of samples was up."""

    @property
    def repeated(self) -> float:
        """Share of samples that another one of the same split repeats."""
        return 1 - len(self.first) / self.samples if self.samples else 0.0


def splits_disjoint(context: ProofContext, *, samples: int = 20_000) -> Evidence:
    """Compares what the two loaders give by content, every tensor of a sample, and by index where both cut one dataset.

    Args:
        context: of a target with a loader and a held-out one (``val=``).
        samples: of each, at most.
    """
    loader, val = context.target.loader, context.target.val
    if loader is None or val is None:
        raise NotApplicable("There are no two loaders: give loader= and val=.")
    shared = _shared_indices(loader, val)
    train, held = _read(context, loader, samples), _read(context, val, samples)
    if not train.samples or not held.samples:
        raise NotApplicable("One of the loaders is empty.")
    both = [digest for digest in held.first if digest in train.first]
    share = len(both) / len(held.first)
    numbers = {"train": train.samples, "val": held.samples, "shared": max(len(both), len(shared))}
    picture = Bars(title="Samples", values={key: float(value) for key, value in numbers.items()}, unit="samples")
    if shared:
        return _broken(
            f"{format_count(len(shared), 'index')} of one dataset {'is' if len(shared) == 1 else 'are'} in both splits "
            f"({', '.join(map(str, shared[:5]))}{', ...' if len(shared) > 5 else ''}).",
            f"index {shared[0]}",
            numbers,
            picture,
        )
    if both and share > 2 * train.repeated:
        pairs = ", ".join(f"{held.first[digest]} = {train.first[digest]}" for digest in both[:4])
        return _broken(
            f"{format_count(len(both), 'sample')} of {len(held.first)} held out ({format_percent(share)}) "
            f"{'is' if len(both) == 1 else 'are'} in the training set by content (held out = training: {pairs}).",
            f"held-out sample {held.first[both[0]]}",
            numbers,
            picture,
        )
    if both:
        raise NotApplicable(
            f"{format_percent(share)} of the held-out samples repeat a training sample, but {format_percent(train.repeated)} of the "
            "training samples repeat one another too: content does not tell samples apart here."
        )
    return Evidence(
        verdict=Verdict.HOLDS,
        message=f"None of {format_count(held.samples, 'held-out sample')} is among "
        f"{format_count(train.samples, 'training sample')}.",
        numbers=numbers,
        charts=(picture,),
        notes=() if train.whole and held.whole else ("That is as far as they were read in the time there is.",),
    )


def _broken(sentence: str, fault: str, numbers: dict[str, int], picture: Bars) -> Evidence:
    return Evidence(
        verdict=Verdict.BROKEN,
        message=sentence,
        cause=fault,
        fix="Split before anything else, by what belongs together (person, document, day), and drop duplicates first.",
        numbers=numbers,
        charts=(picture,),
    )


def _read(context: ProofContext, loader: Any, most: int) -> Read:
    found: dict[bytes, int] = {}
    count, started = 0, context.clock()
    for digest in _digests(loader):
        if count >= most or (count and context.clock() - started > context.target.seconds / 2):
            return Read(first=found, samples=count, whole=False)
        found.setdefault(digest, count)
        count += 1
    return Read(first=found, samples=count)


def _digests(loader: Any) -> Iterator[bytes]:
    """Read the dataset where there is one, whose numbers mean something; else what the loader gives."""
    dataset = getattr(loader, "dataset", None)
    sampler = getattr(loader, "sampler", None)
    chosen = getattr(sampler, "indices", None)
    if dataset is not None and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        for index in range(len(dataset)) if chosen is None else chosen:
            yield _digest(dataset[int(index)])
        return
    for batch in loader:
        count = batch_size(batch)
        for index in range(count):
            yield _digest(select_samples(batch, slice(index, index + 1)))


def _digest(sample: Any) -> bytes:
    mark = hashlib.blake2b(digest_size=16)
    found = [leaf for _, leaf in leaves(sample)]
    for leaf in found:
        mark.update(str((leaf.dtype, leaf.numel())).encode())
        mark.update(_bytes(leaf))
    for plain in _plain(sample):
        mark.update(plain)
    return mark.digest()


def _bytes(leaf: Tensor) -> bytes:
    import torch

    return leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if leaf.numel() else b""


def _plain(sample: Any) -> Iterator[bytes]:
    """Yield what is no tensor: arrays, numbers, text, pictures."""
    if isinstance(sample, Tensor):
        return
    if isinstance(sample, dict):
        for part in cast("dict[Any, Any]", sample).values():
            yield from _plain(part)
    elif isinstance(sample, (tuple, list)):
        for part in cast("list[Any]", sample):
            yield from _plain(part)
    elif hasattr(sample, "tobytes"):
        yield sample.tobytes()
    elif isinstance(sample, (int, float, str, bytes)):
        yield repr(sample).encode()


def _shared_indices(loader: Any, val: Any) -> list[int]:
    (base, train), (other, held) = _indices(loader), _indices(val)
    if base is None or base is not other:
        return []
    return sorted(train & held)


def _indices(loader: Any) -> tuple[Any, set[int]]:
    """Return the dataset below all subsets, and which of its indices a loader may draw."""
    dataset: Any = getattr(loader, "dataset", None)
    if dataset is None or not hasattr(dataset, "__len__"):
        return None, set()
    chosen = getattr(getattr(loader, "sampler", None), "indices", None)
    indices = [int(index) for index in (range(len(dataset)) if chosen is None else chosen)]
    while hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        below = [int(index) for index in dataset.indices]
        indices = [below[index] for index in indices]
        dataset = dataset.dataset
    return dataset, set(indices)


PROOF = Proof(title="Training and validation share nothing", group="data", prove=splits_disjoint)
