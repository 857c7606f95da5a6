"""Frozen parameters that change nevertheless, and frozen parameters that do not."""

import functools

import torch
from torch import nn

NAME = "frozen-stay"


def frozen(net, **more):
    model = net(**more)
    model[0].requires_grad_(False)
    return model


def test_what_is_frozen_stays(holds, classes, net):
    evidence = holds(
        NAME,
        model=frozen(net),
        loss=nn.CrossEntropyLoss(),
        batch=classes,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), weight_decay=0.1),
    )
    assert evidence.numbers == {"frozen": 2}


def test_weight_decay_on_a_stale_gradient_is_found(broken, classes, net):
    model = net()
    nn.functional.cross_entropy(model(classes[0]), classes[1]).backward()
    model[0].requires_grad_(False)  # after the first gradient, which remains in .grad
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)

    def step(model, optimizer, batches):
        optimizer.zero_grad(set_to_none=False)
        for x, y in batches:
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    evidence = broken(NAME, model=model, loss=nn.CrossEntropyLoss(), batch=classes, optimizer=optimizer, step=step)
    assert evidence.cause in ("0.weight", "0.bias")
    assert "weight decay and momentum act on it" in evidence.message


def test_a_step_that_decays_by_hand_is_found(broken, classes, net):
    def step(model, optimizer, batches):
        optimizer.zero_grad()
        for x, y in batches:
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.99)

    evidence = broken(NAME, model=frozen(net), loss=nn.CrossEntropyLoss(), batch=classes, step=step)
    assert evidence.numbers["moved"] == 2


def test_frozen_batchnorm_is_remarked(holds, classes, net):
    model = net(norm=nn.BatchNorm1d(16))
    model[1].requires_grad_(False)
    arguments = {
        "loss": nn.CrossEntropyLoss(),
        "batch": classes,
        "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
    }
    assert "(1)" in holds(NAME, model=model, **arguments).notes[0]
    model[1].eval()  # set by the user, so it is not removed
    assert not holds(NAME, model=model, **arguments).notes


def test_nothing_frozen_does_not_apply(not_applicable, classes, net):
    not_applicable(NAME, model=net(), loss=nn.CrossEntropyLoss(), batch=classes)
