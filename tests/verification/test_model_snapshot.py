"""A model is restored, and the changes are named."""

import torch
from torch import nn

from trueloop.verification.model_snapshot import ModelSnapshot


def test_everything_is_put_back():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    snapshot = ModelSnapshot(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert snapshot.restore() == []
    model(torch.randn(4, 2)).sum().backward()
    with torch.no_grad():
        model[0].weight.data.add_(1)
    model.eval()
    changed = snapshot.restore()
    assert {"0.weight", "0.weight.grad", "1.running_mean", "BatchNorm1d"} <= set(changed)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_not_a_number_is_no_change():
    model = nn.Linear(2, 2)
    nn.init.constant_(model.bias, float("nan"))
    assert ModelSnapshot(model).restore() == []
