"""Losses that fall, and losses that do not."""

import functools

import torch
from torch import nn
from torch.nn import functional as F

NAME = "loss-falls"


def test_a_loss_that_falls(holds, classes, net):
    batches = [(classes[0][i : i + 4], classes[1][i : i + 4]) for i in range(0, 16, 4)]
    evidence = holds(NAME, model=net(dropout=0.2), loss=nn.CrossEntropyLoss(), loader=batches)
    assert evidence.numbers["updates"] >= 8
    assert len(evidence.charts[0].lines["loss"]) == evidence.numbers["updates"] + 1
    assert evidence.numbers["after"] < evidence.numbers["before"]


def test_the_wrong_sign_is_found(broken, classes, net):
    evidence = broken(NAME, model=net(), loss=nn.CrossEntropyLoss(), batch=classes, step=climbing)
    assert evidence.numbers["after"] > evidence.numbers["before"]


def climbing(model, optimizer, batches):
    optimizer.zero_grad()
    for x, y in batches:
        (-F.cross_entropy(model(x), y)).backward()
    optimizer.step()


def test_an_optimizer_over_nothing_is_found(broken, classes, net):
    spare = nn.Linear(1, 1)
    given = lambda model: torch.optim.SGD(spare.parameters(), lr=0.1)  # noqa: E731
    broken(NAME, model=net(), loss=nn.CrossEntropyLoss(), batch=classes, optimizer=given)


def test_a_rate_that_explodes_is_found(broken, classes):
    wild = functools.partial(torch.optim.SGD, lr=1e12)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    evidence = broken(NAME, model=model, loss=nn.MSELoss(), batch=(classes[0], torch.zeros(16, 3)), optimizer=wild)
    assert "not finite" in evidence.message or "does not fall" in evidence.message


def test_without_a_loss_it_does_not_apply(not_applicable, classes, net):
    not_applicable(NAME, model=net(), batch=classes[0])
