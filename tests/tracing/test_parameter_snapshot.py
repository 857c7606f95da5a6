"""Values of parameters, found by their name in the model or in a submodule."""

import torch
from torch import nn

from trueloop.tracing.parameter_snapshot import local_name, snapshot_parameters


def test_a_change_is_detected():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    before = snapshot_parameters(model, {"0.weight", "1.bias", "gone"})
    assert before.keys() == {"0.weight", "1.bias"}
    assert snapshot_parameters(model, {"0.weight", "1.bias"}) == before
    with torch.no_grad():
        model[0].weight += 1
    after = snapshot_parameters(model, {"0.weight", "1.bias"})
    assert (after["1.bias"] == before["1.bias"], after["0.weight"] == before["0.weight"]) == (True, False)


def test_a_submodule_maps_names_of_the_model():
    model = nn.Sequential(nn.Linear(2, 1))
    assert snapshot_parameters(model, {"body.0.weight"}) == snapshot_parameters(model, {"0.weight"})
    assert [local_name({"0.weight"}, name) for name in ("0.weight", "a.b.0.weight", "a.weight", "")] == [
        "0.weight"
    ] * 2 + [""] * 2
