"""Order data by a pure function from (n, seed, epoch, position) to a dataset index.

No permutation is stored, so a shuffle of 10^12 samples needs no memory, every position is computed directly, and the
number of processes or workers only changes which process reads which position.
"""

# ruff: noqa: N806, N815 - shapes are part of the name: N samples, C classes

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.data.keyed_random import Words, derive_keys, hash_positions

MAX_SIZE = 2**62  # half-words of at most 31 bits; tested up to 10**15
CHUNK = 2**16  # positions computed at a time: bounds the memory, and 512 KiB per array stays in the cache

_MULTIPLY_1, _MULTIPLY_2, _HALF = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35), np.uint32(16)  # MurmurHash3's finaliser

HalfWords = npt.NDArray[np.uint32]
OrderChoice = Literal["random", "sequential"] | Tensor | Sequence[float] | Any
"""The ``order`` of a loader or sampler: a name, one weight per sample (to draw with replacement), or an Order."""


class Order(Protocol):
    """The dataset index of every position of one epoch."""

    @property
    def size(self) -> int:
        """Number of positions in the epoch."""
        ...

    def at(self, positions: Tensor) -> Tensor:
        """Return the dataset indices (int64) at ``positions`` (int64, 1-D, each in [0, size))."""
        ...

    def take(self, start: int, stop: int) -> Tensor:
        """Return the dataset indices (int64) of the positions [start, stop)."""
        ...

    def for_epoch(self, epoch: int) -> Order:
        """Return the order of another epoch of the same run."""
        ...


def order(n: int, seed: int, epoch: int) -> RandomOrder:
    """Shuffle [0, n) by a permutation keyed with the seed and the epoch.

    Cost: O(1) memory; about 10 to 30 ns per index on one core, whatever n.
    """
    return RandomOrder(size=n, seed=seed, epoch=epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialOrder:
    """Every index at its own position, in every epoch."""

    size: int

    def __post_init__(self) -> None:
        _check_size(self.size)

    def at(self, positions: Tensor) -> Tensor:
        """Return the positions themselves."""
        return _check_positions(positions, self.size).clone()

    def take(self, start: int, stop: int) -> Tensor:
        """Return [start, stop)."""
        _check_range(start, stop, self.size)
        return torch.arange(start, stop)

    def for_epoch(self, epoch: int) -> Self:
        """Return the same order: it does not depend on the epoch."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomOrder:
    """A keyed permutation of [0, size): each index exactly once per epoch.

    It is an alternating Feistel network on the smallest power of two that is at least ``size``; a value outside [0,
    size) is encrypted again until it is inside (cycle walking): on average, at most two encryptions per index.

    Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002.
    """

    size: int
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        _check_size(self.size)

    def at(self, positions: Tensor) -> Tensor:
        """Return the dataset indices (int64) at ``positions`` (int64, 1-D, each in [0, size))."""
        words = _check_positions(positions, self.size).numpy().view(np.uint64)
        round_keys = derive_keys("permutation", self.seed, self.epoch, 12).view("<u4")
        indices = np.empty(len(words), dtype=np.uint64)
        for start in range(0, len(words), CHUNK):
            indices[start : start + CHUNK] = _permute(words[start : start + CHUNK], self.size, round_keys)
        return torch.from_numpy(indices.view(np.int64))

    def take(self, start: int, stop: int) -> Tensor:
        """Return the dataset indices (int64) of the positions [start, stop)."""
        _check_range(start, stop, self.size)
        return self.at(torch.arange(start, stop))

    def for_epoch(self, epoch: int) -> Self:
        """Return the permutation of another epoch under the same seed."""
        return replace(self, epoch=epoch)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightedOrder:
    """Draws with replacement, each index with a probability proportional to its weight.

    The draw at a position depends only on (seed, epoch, position): a hash becomes a uniform number, which selects the
    index by the cumulative weights, which take 8 bytes of memory per sample.
    """

    size: int
    cumulative_N: Tensor
    seed: int = 0
    epoch: int = 0

    @classmethod
    def from_weights(
        cls, weights: Tensor | npt.NDArray[Any] | Sequence[float], *, draws: int | None = None, seed: int = 0
    ) -> Self:
        """Build the order from one weight per sample.

        Args:
            weights: N numbers >= 0, not all zero; a sample with weight 0 is never drawn.
            draws: number of positions in one epoch; None = N.
            seed: seed of the draws.

        Raises:
            InvalidData: a weight is negative or not finite, or all are zero.
        """
        weights_N = torch.as_tensor(weights, dtype=torch.float64, device="cpu")
        if weights_N.ndim != 1:
            raise InvalidData(
                f"The weights have the shape {tuple(weights_N.shape)}.", fix="Give one weight per sample."
            )
        _check_size(len(weights_N))
        invalid = torch.nonzero(~torch.isfinite(weights_N) | (weights_N < 0)).flatten().tolist()
        if invalid:
            raise InvalidData(
                f"The weight of sample {invalid[0]} is {weights_N[invalid[0]].item()}.", fix="Give finite weights >= 0."
            )
        cumulative_N = weights_N.cumsum(0)
        if not 0 < cumulative_N[-1] < float("inf"):
            raise InvalidData(
                f"The sum of the weights is {cumulative_N[-1].item()}.", fix="Give some sample a weight > 0."
            )
        size = len(weights_N) if draws is None else draws
        _check_size(size)
        return cls(size=size, cumulative_N=cumulative_N, seed=seed)

    def at(self, positions: Tensor) -> Tensor:
        """Return the dataset index drawn at each of ``positions`` (int64, 1-D, each in [0, size))."""
        words = _check_positions(positions, self.size).numpy().view(np.uint64)
        hashes = hash_positions(words, derive_keys("draws", self.seed, self.epoch, 1)[0])
        uniform = torch.from_numpy((hashes >> np.uint64(11)).astype(np.float64)) * 2.0**-53  # [0, 1)
        return torch.searchsorted(self.cumulative_N, uniform * self.cumulative_N[-1], right=True)

    def take(self, start: int, stop: int) -> Tensor:
        """Return the dataset indices drawn at the positions [start, stop)."""
        _check_range(start, stop, self.size)
        return self.at(torch.arange(start, stop))

    def for_epoch(self, epoch: int) -> Self:
        """Return the draws of another epoch under the same seed."""
        return replace(self, epoch=epoch)


def choose_order(choice: OrderChoice, n: int, seed: int) -> Order:
    """Return the order that a loader's or sampler's ``order`` specifies.

    Raises:
        InvalidConfig: an unknown name.
        InvalidData: ``n`` is 0, or the number of weights differs from it.
    """
    _check_size(n)
    if isinstance(choice, str):
        if choice not in ("random", "sequential"):
            raise InvalidConfig(
                f"order is {choice!r}.", fix='Choose "random" or "sequential", or give one weight per sample.'
            )
        return RandomOrder(size=n, seed=seed) if choice == "random" else SequentialOrder(size=n)
    if not isinstance(choice, (Tensor, np.ndarray, Sequence)):
        return choice
    if len(choice) != n:
        raise InvalidData(f"There are {len(choice)} weights for {n} samples.", fix="Give one weight per sample.")
    return WeightedOrder.from_weights(choice, seed=seed)


def class_weights(labels: Tensor | Sequence[int]) -> Tensor:
    """Return a weight for each sample such that every class is drawn equally often.

    Args:
        labels: the class of each of the N samples.

    Returns:
        N weights, float64, with sum 1; the weights of one class sum to 1 / number of classes.
    """
    labels_N = torch.as_tensor(labels)
    if labels_N.ndim != 1 or len(labels_N) == 0:
        raise InvalidData(f"The labels have the shape {tuple(labels_N.shape)}.", fix="Give one class per sample.")
    _, class_N, count_C = torch.unique(labels_N, return_inverse=True, return_counts=True)
    return 1.0 / (count_C.double()[class_N] * len(count_C))


def _permute(words: Words, size: int, round_keys: HalfWords) -> Words:
    permuted = _encrypt(words, size, round_keys)
    outside = np.flatnonzero(permuted >= size)
    while outside.size:
        encrypted = _encrypt(permuted[outside], size, round_keys)
        permuted[outside] = encrypted
        outside = outside[encrypted >= size]
    return permuted


def _encrypt(words: Words, size: int, round_keys: HalfWords) -> Words:
    """Permute [0, 2^bits) for the smallest bits >= 2 with 2^bits >= size: each half is xored with a hash of the other.

    The halves are not swapped but updated alternately, so that an odd number of bits needs no larger domain. They are
    32-bit words, because one vector instruction multiplies more of these than of 64-bit words.
    """
    bits = max(2, (size - 1).bit_length())
    # Up to 8 bits, 8 rounds leave some permutations of 5 or 6 items visibly rarer than others; 24 do not (chi-square).
    rounds = 8 if bits > 8 else 24
    low_bits, high_bits = bits - bits // 2, bits // 2
    low = (words & np.uint64(2**low_bits - 1)).astype(np.uint32)
    high = (words >> np.uint64(low_bits)).astype(np.uint32)
    mixed, shifted = np.empty_like(low), np.empty_like(low)
    for round_, key in enumerate(round_keys[:rounds]):
        source, target, width = (low, high, high_bits) if round_ % 2 == 0 else (high, low, low_bits)
        np.bitwise_xor(source, key, out=mixed)
        np.multiply(mixed, _MULTIPLY_1, out=mixed)
        np.right_shift(mixed, _HALF, out=shifted)
        np.bitwise_xor(mixed, shifted, out=mixed)
        np.multiply(mixed, _MULTIPLY_2, out=mixed)
        np.right_shift(mixed, np.uint32(32 - width), out=mixed)
        np.bitwise_xor(target, mixed, out=target)
    permuted = high.astype(np.uint64)
    permuted <<= np.uint64(low_bits)
    permuted |= low
    return permuted


def _check_size(size: int) -> None:
    if size < 1:
        raise InvalidData(f"The dataset has {size} samples.", fix="Give a dataset with at least one sample.")
    if size > MAX_SIZE:
        raise InvalidData(f"The dataset has {size} samples.", fix="An order has at most 2**62 positions.")


def _check_range(start: int, stop: int, size: int) -> None:
    if not 0 <= start <= stop <= size:
        raise InvalidData(f"The positions [{start}, {stop}) are not within [0, {size}).")


def _check_positions(positions: Tensor, size: int) -> Tensor:
    """Return the positions if they are valid; outside [0, size), cycle walking would never end."""
    if positions.dtype != torch.int64 or positions.ndim != 1:
        raise InvalidData(f"The positions are {positions.dtype} of shape {tuple(positions.shape)}, not 1-D int64.")
    if len(positions):
        lowest, highest = torch.aminmax(positions)
        _check_range(int(lowest), int(highest) + 1, size)
    return positions.contiguous()
