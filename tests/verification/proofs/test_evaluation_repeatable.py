"""Evaluation that is not repeatable or that changes the model."""

import torch
from torch import nn
from torch.nn import functional as F

NAME = "evaluation-repeatable"


class AlwaysDropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(F.dropout(self.first(x), 0.5))


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x + 0.01 * torch.randn_like(x))


class Stubborn(nn.Dropout):
    def train(self, mode=True):
        return super().train(True)


class Counting(nn.Module):
    def __init__(self, *, only_training):
        super().__init__()
        self.head, self.only_training = nn.Linear(8, 3), only_training
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training or not self.only_training:
            self.seen += len(x)
        return self.head(x)


class Clamped(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((8, 3), 2.0))

    def forward(self, x):
        self.weight.data.clamp_(-1, 1)
        return x @ self.weight


def test_a_weight_that_evaluation_changes_is_found(broken, classes):
    assert broken(NAME, model=Clamped(), loss=nn.CrossEntropyLoss(), batch=classes).cause == "weight"


def test_modules_of_torch_hold(holds, classes, net):
    holds(NAME, model=net(norm=nn.BatchNorm1d(16), dropout=0.5), loss=nn.CrossEntropyLoss(), batch=classes)


def test_functional_dropout_is_found_with_its_place(broken, classes):
    evidence = broken(NAME, model=AlwaysDropped(), loss=nn.CrossEntropyLoss(), batch=classes)
    assert evidence.cause == "in the forward of AlwaysDropped, before head (Linear)"


def test_noise_is_found(broken, classes):
    broken(NAME, model=nn.Sequential(Noisy(8, 3)), loss=nn.CrossEntropyLoss(), batch=classes)


def test_a_layer_that_refuses_eval_is_named(broken, classes):
    model = nn.Sequential(nn.Linear(8, 8), Stubborn(0.5), nn.Linear(8, 3))
    evidence = broken(NAME, model=model, loss=nn.CrossEntropyLoss(), batch=classes)
    assert "stayed in train mode after eval(): 1" in evidence.message


def test_a_model_that_counts_in_evaluation_is_found(holds, broken, classes):
    holds(NAME, model=Counting(only_training=True), loss=nn.CrossEntropyLoss(), batch=classes)
    evidence = broken(NAME, model=Counting(only_training=False), loss=nn.CrossEntropyLoss(), batch=classes)
    assert evidence.cause == "seen"
