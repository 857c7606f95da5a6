"""Small pictures of the simulator's datasets."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from trueloop.lab.teaching.simulation import Dataset, Simulation
from trueloop.lab.views.datasets import SAMPLES, Query, answer


@pytest.mark.parametrize("dataset", get_args(Dataset))
def test_points_of_every_class_fill_the_picture(dataset: Dataset):
    state = torch.get_rng_state()
    points = answer(Query(dataset=dataset))["points"]
    assert torch.equal(torch.get_rng_state(), state)
    assert len(points) == SAMPLES
    assert {label for _, _, label in points} == set(range(Simulation(dataset=dataset).classes))
    assert max(abs(value) for x, y, _ in points for value in (x, y)) == 1.0
