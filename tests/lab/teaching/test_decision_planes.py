"""The planes show the outputs of the network, and building them does not change it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.lab.teaching.decision_planes import NOT_FINITE, SIDE, build_planes, layers


class Net(nn.Module):
    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 3), nn.Linear(3, 4)])
        self.norm = nn.BatchNorm1d(3)
        self.activation = nn.Tanh()
        self.head = nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.activation(self.layers[0](x)))
        x = nn.functional.dropout(x, 0.5)  # also in eval mode: draws random numbers
        return self.head(self.activation(self.layers[1](x)))


def test_the_network_and_the_generator_stay_unchanged():
    model = Net().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    build_planes(model, 2.0, neurons=True)
    assert torch.equal(state, torch.get_rng_state())
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_byte_encodes_class_and_certainty():
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 8.0], [0.0, -8.0], [0.0, 0.0]]))
        model.bias.copy_(torch.tensor([0.0, 0.0, 4.0]))
    (plane,) = build_planes(model, 1.0, neurons=True)
    assert (plane.name, plane.width, plane.height, plane.steps) == ("boundary", SIDE, SIDE, 85)
    rows = [plane.data[row * SIDE] for row in range(SIDE)]
    assert [value // plane.steps for value in (rows[0], rows[SIDE // 2], rows[-1])] == [0, 2, 1]
    assert max(rows) < NOT_FINITE
    certainty = [value % plane.steps for value in rows[:16]]
    assert certainty == sorted(certainty, reverse=True)


def test_non_finite_outputs_are_marked():
    model = Net()
    with torch.no_grad():
        model.head.bias[0] = float("nan")
        model.layers[1].weight[2] = float("inf")
    boundary, *maps = build_planes(model, 1.0, neurons=True)
    assert set(boundary.data) == {NOT_FINITE}
    assert [each.name for each in maps] == [*(f"0:{n}" for n in range(3)), *(f"1:{n}" for n in range(4))]
    assert all(len(each.data) == each.width * each.height == 22 * 22 for each in maps)


def test_an_output_of_zero_is_the_middle_of_the_range():
    model = Net()
    with torch.no_grad():
        model.layers[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]))
        model.layers[0].bias.zero_()
    maps = {each.name: each for each in build_planes(model, 1.0, neurons=True)}
    assert set(maps["0:1"].data) == {128}
    left, right = maps["0:0"].data[0], maps["0:0"].data[21]
    assert left < 3
    assert right > 252
    assert abs(maps["0:0"].scale - torch.tanh(torch.tensor(1.0)).item()) < 0.02


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 1e38), (torch.float64, 1e300)])
def test_a_map_of_huge_numbers_equals_one_of_small_numbers(dtype: torch.dtype, factor: float):
    small, huge = Net().to(dtype), Net().to(dtype)
    small.activation = huge.activation = nn.Identity()
    huge.load_state_dict(small.state_dict())
    with torch.no_grad():
        huge.layers[0].weight.mul_(factor)
        huge.layers[0].bias.mul_(factor)
    planes = (build_planes(model, 1.0, neurons=True) for model in (huge, small))
    huge_maps, small_maps = ({plane.name: plane for plane in each} for each in planes)
    assert all(abs(a - b) <= 1 for a, b in zip(huge_maps["0:0"].data, small_maps["0:0"].data, strict=True))
    assert huge_maps["0:0"].scale > factor / 100


def test_layers_have_the_names_of_the_script():
    model = Net()
    names = dict(model.named_parameters())
    for layer in layers((3, 4), 2):
        assert tuple(names[layer["weight"]].shape) == (layer["neurons"], layer["inputs"])
        assert names[layer["bias"]].shape == (layer["neurons"],)
