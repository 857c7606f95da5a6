"""Every kind of objective is converted to sums and counts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trueloop.core.errors import InvalidData, InvalidModel
from trueloop.training.objective import Loss, as_objective, call_model, count_items, describe_batch

MODEL = nn.Linear(3, 2)
X, Y = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, -100])


def test_a_torch_loss():
    (term,) = as_objective(nn.CrossEntropyLoss())(MODEL, (X, Y))
    assert int(term.count) == 4
    torch.testing.assert_close(term.sum / term.count, F.cross_entropy(MODEL(X), Y))
    assert term.output.shape == (5, 2)
    assert term.target is Y


@pytest.mark.parametrize(
    "given",
    [
        lambda model, batch: F.mse_loss(model(batch[0]).sum(1), batch[1].float()),
        lambda model, batch: (F.mse_loss(model(batch[0]).sum(1), batch[1].float(), reduction="sum"), 5),
        lambda model, batch: (
            F.mse_loss(model(batch[0]).sum(1), batch[1].float(), reduction="sum"), torch.tensor(5.0)),
        lambda model, batch: Loss(
            sum=F.mse_loss(model(batch[0]).sum(1), batch[1].float(), reduction="sum"), count=5),
        lambda model, batch: [F.mse_loss(model(batch[0]).sum(1), batch[1].float())],
    ],
)  # fmt: skip
def test_every_return_type_of_a_function_means_the_same(given):
    (term,) = as_objective(given)(MODEL, (X, Y))
    torch.testing.assert_close(term.sum / term.count, F.mse_loss(MODEL(X).sum(1), Y.float()))
    assert float(term.count) == 5


def test_several_losses():
    terms = as_objective(
        lambda model, batch: [Loss(sum=model(batch[0]).sum(), count=5, name="a"), model(batch[0]).mean()]
    )(MODEL, (X, Y))
    assert [term.name for term in terms] == ["a", "loss"]


def test_a_custom_loss_module_is_a_mean_over_items():
    class Margin(nn.Module):
        def forward(self, output, target):
            return (output.sum(1) - target).abs().mean()

    (term,) = as_objective(Margin())(MODEL, (X, Y))
    torch.testing.assert_close(term.sum / term.count, (MODEL(X).sum(1) - Y).abs().mean())
    assert term.count == 5


def test_class_weights_move_with_the_objective():
    loss = nn.CrossEntropyLoss(weight=torch.ones(2))
    objective = as_objective(loss)
    objective.to(torch.device("meta"))
    assert loss.weight.device.type == "meta"
    assert objective._sum_loss.weight.device.type == "meta"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (F.cross_entropy, "nn.CrossEntropyLoss"),
        (nn.CTCLoss(), "CTCLoss takes more"),
        (nn.TripletMarginLoss(), "takes more"),
        ("mse", "neither a torch.nn loss nor a function"),
        (None, "neither"),
    ],
)
def test_invalid_objectives_are_refused(given, message):
    with pytest.raises(InvalidModel, match=message):
        as_objective(given)


@pytest.mark.parametrize("value", [torch.zeros(3), None, "0.1", {"loss": 1}])
def test_a_value_that_is_not_one_number_is_refused(value):
    with pytest.raises(InvalidModel, match="not one number"):
        as_objective(lambda model, batch: value)(MODEL, (X, Y))


@pytest.mark.parametrize(
    ("batch", "items"),
    [(X, 5), ((X, Y), 5), ({"ids": X, "n": 3}, 5), ([[X, Y], Y], 5), (("name", X), 5), (torch.tensor(1.0), 1)],
)
def test_items_of_a_batch(batch, items):
    assert count_items(batch) == items


def test_unknown_number_of_items():
    with pytest.raises(InvalidData, match="The number of items"):
        count_items(("a", 1))


def test_inputs_reach_the_model_by_their_structure():
    class Two(nn.Module):
        def forward(self, left, right):
            return left - right

    assert call_model(Two(), (X, X)).abs().sum() == 0
    assert call_model(Two(), {"right": X, "left": X}).abs().sum() == 0


def test_describing_a_batch():
    assert describe_batch((X, {"y": Y}, 3)) == "(tensor [5, 3] float32, {'y': tensor [5] int64}, int)"
