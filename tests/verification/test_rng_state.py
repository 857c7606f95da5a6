"""The state of random generators is restored, also after an error."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from trueloop.verification.rng_state import reseed_loaders, rng_state_preserved, seed_all


def drawn():
    return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()


def test_generators_go_on_as_if_nothing_had_been():
    seed_all(3)
    expected = drawn()
    seed_all(3)
    with pytest.raises(KeyError), rng_state_preserved():
        seed_all(9)
        drawn()
        raise KeyError
    assert drawn() == expected


def test_a_loaders_own_generator_is_put_back():
    own = torch.Generator().manual_seed(1)
    loader = DataLoader(range(10), shuffle=True, generator=own)
    with rng_state_preserved([loader]):
        reseed_loaders([loader], 5)
        first = [int(batch) for batch in loader]
        reseed_loaders([loader], 5)
        assert [int(batch) for batch in loader] == first
    assert torch.equal(torch.rand(3, generator=own), torch.rand(3, generator=torch.Generator().manual_seed(1)))
