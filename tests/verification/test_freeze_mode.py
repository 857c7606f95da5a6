"""Frozen layers stay in eval mode."""

import torch
from torch import nn

from trueloop.verification.freeze_mode import BatchNorm, disable_dropout, freeze_mode, layers_in_train_mode


def test_batchnorm_stays_in_eval_mode():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert layers_in_train_mode(model, BatchNorm) == ["1"]
    freeze_mode(model, BatchNorm)
    model.train()
    assert layers_in_train_mode(model, BatchNorm) == []
    assert model[0].training


def test_dropout_is_taken_away_wherever_torch_has_it():
    model = nn.ModuleList([nn.Dropout(0.5), nn.MultiheadAttention(4, 2, 0.5), nn.LSTM(4, 4, 2, dropout=0.5)])
    disable_dropout(model)
    x = torch.randn(3, 5, 4)
    for module, inputs in ((model[0], (x,)), (model[1], (x, x, x)), (model[2], (x,))):
        module.train()
        torch.testing.assert_close(module(*inputs)[0], module(*inputs)[0], rtol=0, atol=0)
