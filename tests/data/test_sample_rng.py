import random

import numpy as np
import pytest
import torch

from trueloop.data.sample_rng import preserve_cpu_generators, seed_generators


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_generators_continue_as_if_nothing_had_been_drawn():
    seed_generators(1)
    expected = [draw(), draw()]
    seed_generators(1)
    first = draw()
    with preserve_cpu_generators():
        seed_generators(99)
        draw()
    assert [first, draw()] == expected


def test_generators_are_restored_after_an_error():
    seed_generators(1)
    expected = draw()
    seed_generators(1)
    with pytest.raises(KeyError), preserve_cpu_generators():
        draw()
        raise KeyError
    assert draw() == expected


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_a_seed_seeds_all_three_generators(seed):
    seed_generators(seed)
    expected = draw()
    draw()
    seed_generators(seed)
    assert draw() == expected
    assert len(set(expected)) == 3
