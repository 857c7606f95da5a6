"""Initial losses that equal those of an uninformed guess, and others."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

NAME = "initial-loss"


def test_ln_of_the_classes(holds, classes, net):
    evidence = holds(NAME, model=net, loss=nn.CrossEntropyLoss(), batch=classes)
    assert evidence.numbers["expected"] == pytest.approx(math.log(3))
    assert evidence.numbers["loss"] == pytest.approx(F.cross_entropy(net()(classes[0]), classes[1]).item())
    holds(NAME, model=net, loss=F.cross_entropy, batch=classes)
    holds(NAME, model=net, loss=nn.CrossEntropyLoss(label_smoothing=0.1), batch=classes)


def test_a_last_layer_that_is_too_sure_is_found(broken, classes, net):
    def sure():
        model = net()
        with torch.no_grad():
            model[-1].weight.mul_(100)
        return model

    assert broken(NAME, model=sure, loss=nn.CrossEntropyLoss(), batch=classes).cause == "the last layer"


def test_a_target_among_the_inputs_is_found(broken, classes):
    x, y = classes

    class Cheat(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 9 * F.one_hot(x[:, 7].long(), 3)

    inputs = torch.cat([x[:, :7], y[:, None].float()], 1)
    evidence = broken(NAME, model=lambda: Cheat(8, 3), loss=nn.CrossEntropyLoss(), batch=(inputs, y))
    assert evidence.cause == "the input"


def test_a_trained_model_is_no_alarm(not_applicable, classes, net):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(model(classes[0]), classes[1]).backward()
        optimizer.step()
    assert "trained" in not_applicable(NAME, model=model, loss=nn.CrossEntropyLoss(), batch=classes).message


def test_the_variance_of_a_number(holds, broken):
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    target = x.sum(1, keepdim=True)
    model = nn.Linear(4, 1)
    evidence = holds(NAME, model=model, loss=nn.MSELoss(), batch=(x, target))
    assert evidence.numbers["expected"] == pytest.approx(float(target.var(correction=0)))
    aside = holds(NAME, model=model, loss=nn.MSELoss(), batch=(x, target + 4))
    assert "learns the mean first" in aside.notes[0]
    raw = broken(NAME, model=model, loss=nn.MSELoss(), batch=(x, target + 150))  # without normalisation to mean 0
    assert "variance" in raw.message


def test_two_classes_by_one_number(holds):
    torch.manual_seed(0)
    batch = (torch.randn(16, 4), torch.randint(0, 2, (16, 1)).float())
    assert "ln 2" in holds(NAME, model=nn.Linear(4, 1), loss=nn.BCEWithLogitsLoss(), batch=batch).message


def test_a_function_is_guessed_at_and_never_accused(holds, not_applicable, decoder, tokens, token_loss):
    assert "ln 11" in holds(NAME, model=decoder(tied=False), loss=token_loss, batch=tokens).message
    not_applicable(NAME, model=decoder(tied=False), loss=lambda m, b: 100 * token_loss(m, b), batch=tokens)


def test_what_is_expected_can_be_said(holds, broken, decoder, tokens, token_loss):
    subject = {"model": decoder(tied=False), "loss": lambda m, b: 100 * token_loss(m, b), "batch": tokens}
    holds(NAME, **subject, options={"expected": 100 * math.log(11)})
    broken(NAME, **subject, options={"expected": 1.0})
    broken(NAME, **subject, classes=11)


def test_a_sum_does_not_apply(not_applicable, classes, net):
    assert "sum" in not_applicable(NAME, model=net, loss=nn.CrossEntropyLoss(reduction="sum"), batch=classes).message


def test_nothing_is_guessed_of_real_numbers(not_applicable):
    torch.manual_seed(0)
    not_applicable(
        NAME, model=nn.Linear(8, 8), loss=lambda model, x: 2 * ((model(x) - x) ** 2).mean(), batch=torch.randn(9, 8)
    )
