"""Runs that are repeatable, and runs that are not."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NAME = "same-seed-same-run"


def loader(classes, **more):
    return DataLoader(TensorDataset(*classes), batch_size=4, **more)


def test_seeded_runs_are_the_same(holds, classes, net):
    own, untouched = torch.Generator(), torch.Generator()
    for more in ({"shuffle": True}, {"shuffle": True, "generator": own}):
        holds(NAME, model=lambda: net(dropout=0.5), loss=nn.CrossEntropyLoss(), loader=loader(classes, **more))
    assert torch.equal(torch.rand(9, generator=own), torch.rand(9, generator=untouched))


def test_weights_from_elsewhere_are_found(broken, classes):
    def make():
        model = nn.Linear(8, 3)
        with torch.no_grad():
            model.bias.fill_(int.from_bytes(os.urandom(4), "big") / 2**32)
        return model

    evidence = broken(NAME, model=make, loss=nn.CrossEntropyLoss(), batch=classes)
    assert evidence.cause == "bias"
    assert "initial weights" in evidence.message


def test_batches_from_elsewhere_are_found(broken, classes, net):
    class Augmented(TensorDataset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + int.from_bytes(os.urandom(2), "big") / 2**16, y

    data = DataLoader(Augmented(*classes), batch_size=4)
    assert broken(NAME, model=net, loss=nn.CrossEntropyLoss(), loader=data).cause == "batch 0"


def test_a_forward_with_its_own_randomness_is_found(broken, classes):
    class Secret(nn.Linear):
        source = torch.Generator().manual_seed(0)

        def forward(self, x):
            return super().forward(x * (torch.rand(x.shape, generator=self.source) > 0.5))

    evidence = broken(NAME, model=lambda: Secret(8, 3), loss=nn.CrossEntropyLoss(), batch=classes)
    assert "update 1" in evidence.message


def test_a_model_as_it_is_leaves_initialisation_out(holds, classes, net):
    assert "Initialisation" in holds(NAME, model=net(), loss=nn.CrossEntropyLoss(), batch=classes).notes[0]
