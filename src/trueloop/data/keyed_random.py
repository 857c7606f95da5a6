"""Pseudorandom numbers as a pure function of a purpose, the seed, the epoch and a position."""

import hashlib

import numpy as np
import numpy.typing as npt

_MULTIPLY_1, _MULTIPLY_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # splitmix64's constants
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)

Words = npt.NDArray[np.uint64]


def derive_keys(purpose: str, seed: int, epoch: int, count: int) -> Words:
    """Derive ``count`` keys of 64 bits; keys for another purpose, seed or epoch are unrelated.

    Cost: 3 µs.
    """
    digest = hashlib.shake_256(f"trueloop {purpose} {seed} {epoch}".encode()).digest(8 * count)
    return np.frombuffer(digest, dtype="<u8")


def hash_positions(positions: Words, key: np.uint64) -> Words:
    """Hash each position under a key: the ``position``-th output of the splitmix64 generator seeded with the key.

    Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    words = positions * _INCREMENT + key
    words = (words ^ (words >> np.uint64(30))) * _MULTIPLY_1
    words = (words ^ (words >> np.uint64(27))) * _MULTIPLY_2
    return words ^ (words >> np.uint64(31))
