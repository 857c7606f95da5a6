import numpy as np

from trueloop.data.keyed_random import derive_keys, hash_positions


def splitmix64(state: int) -> int:
    """Compute the reference with Python's integers."""
    state %= 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def test_hash_positions_equals_splitmix64():
    key = derive_keys("test", 0, 0, 1)[0]
    positions = np.array([0, 1, 2, 10**15, 2**63 - 1], dtype=np.uint64)
    expected = [splitmix64(int(key) + int(p) * 0x9E3779B97F4A7C15) for p in positions]
    assert hash_positions(positions, key).tolist() == expected


def test_keys_differ_by_purpose_seed_and_epoch():
    keys = [
        tuple(derive_keys(*purpose, 4))
        for purpose in [("a", 0, 0), ("b", 0, 0), ("a", 1, 0), ("a", 0, 1), ("a", -1, 0), ("a", 10, 0)]
    ]
    assert len(set(keys)) == len(keys)
    assert tuple(derive_keys("a", 0, 0, 4)) == keys[0]


def test_keys_are_the_same_on_every_machine():
    assert derive_keys("permutation", 0, 0, 2).tolist() == [5346543524090030250, 14618815614625839406]
