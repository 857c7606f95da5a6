"""Evaluation changes nothing and does not depend on the batch size."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trueloop.core.errors import InvalidConfig, InvalidData, InvalidModel
from trueloop.training.evaluation.evaluate import eval_mode, evaluate
from trueloop.training.evaluation.metrics import Accuracy, Confusion
from trueloop.training.objective import Loss

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(37, 4, generator=G).double(), torch.randint(0, 3, (37,), generator=G)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()


def batches(size: int):
    return [(X[start : start + size], Y[start : start + size]) for start in range(0, len(X), size)]


METRICS = {"accuracy": Accuracy, "confusion": lambda: Confusion(3)}
WEIGHTS = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)


@given(size=st.integers(1, 40))
@settings(max_examples=25)
def test_the_batch_size_does_not_change_the_result(size):
    model, loss = network(), nn.CrossEntropyLoss(weight=WEIGHTS)
    result = evaluate(model, batches(size), loss, metrics=METRICS)
    model.eval()
    assert result.metrics["loss"] == pytest.approx(loss(model(X), Y).item(), rel=1e-12)
    assert result.metrics["accuracy"] == float((model(X).argmax(1) == Y).double().mean())
    assert sum(map(sum, result.tables["confusion"])) == 37
    assert result.batches == -(-37 // size)


def test_the_mode_of_every_submodule_is_restored():
    model = network()
    model[1].eval()  # frozen BatchNorm, as in fine-tuning
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()

    def noisy(model, batch):
        torch.rand(3)  # e.g. an objective that draws
        return model(batch[0]).mean()

    evaluate(model, batches(10), noisy)
    assert [module.training for module in model] == [True, False, True, True]
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_modes_are_restored_after_an_error():
    model = network()
    with pytest.raises(ZeroDivisionError), eval_mode(model):
        assert not any(module.training for module in model.modules())
        raise ZeroDivisionError
    assert all(module.training for module in model.modules())


def test_no_graph_is_built():
    def look(model, batch):
        output = model(batch[0])
        assert not output.requires_grad
        return output.mean()

    evaluate(network(), batches(10), look)


def test_several_terms_are_reported_by_name_and_as_a_sum():
    def two(model, batch):
        output = model(batch[0])
        return [
            Loss(sum=output.sum(), count=len(output), name="first"),
            Loss(sum=output.square().sum(), count=output.numel(), weight=0.5, name="second"),
        ]

    model = network()
    result = evaluate(model, batches(8), two).metrics
    output = model.eval()(X).detach()
    assert result["first"] == pytest.approx(float(output.sum()) / 37)
    assert result["second"] == pytest.approx(float(output.square().mean()))
    assert result["loss"] == pytest.approx(result["first"] + 0.5 * result["second"])


def test_a_term_with_count_zero_adds_nothing():
    def two(model, batch):
        output = model(batch[0])
        return [Loss(sum=output.sum(), count=len(output), name="a"), Loss(sum=output.sum() * 0, count=0, name="b")]

    result = evaluate(network(), batches(8), two).metrics
    assert math.isnan(result["b"])
    assert result["loss"] == result["a"]
    nothing = evaluate(network(), batches(8), lambda model, batch: (model(batch[0]).sum() * 0, 0)).metrics
    assert math.isnan(nothing["loss"])


def test_half_precision_counts_are_summed_in_float32():
    one = torch.ones((), dtype=torch.bfloat16)  # 256 + 1 is 256 there
    result = evaluate(network(), [X[:1]] * 300, lambda model, batch: (one, one)).metrics
    assert result["loss"] == 1.0


def test_a_mean_from_a_function_is_weighted_by_items():
    model = network()
    result = evaluate(model, batches(10), lambda m, batch: m(batch[0]).square().mean()).metrics["loss"]
    assert result == pytest.approx(model.eval()(X).detach().square().mean().item(), rel=1e-12)


def test_no_batch_is_an_error():
    with pytest.raises(InvalidData, match="no batch"):
        evaluate(network(), [], nn.CrossEntropyLoss())


def test_metrics_without_an_output_are_refused():
    with pytest.raises(InvalidModel, match="output and the target"):
        evaluate(network(), batches(10), lambda m, batch: m(batch[0]).mean(), metrics={"accuracy": Accuracy})


def test_a_metric_that_is_a_mapping_is_reported_by_key():
    class Many:
        def update(self, output, target):
            self.count = len(target)

        def compute(self):
            return {"count": torch.tensor(self.count), "pair": [1, 2]}

    result = evaluate(network(), batches(37), nn.CrossEntropyLoss(), metrics={"many": Many})
    assert result.metrics["many/count"] == 37
    assert result.tables["many/pair"] == [1, 2]


def test_unnamed_terms_do_not_replace_the_total():
    def two(model, batch):
        output = model(batch[0])
        return [Loss(sum=output.square().sum(), count=output.numel()), Loss(sum=output.sum(), count=1, weight=0.0)]

    model = network()
    result = evaluate(model, batches(8), two).metrics
    assert result["loss"] == pytest.approx(model.eval()(X).detach().square().mean().item(), rel=1e-12)
    assert set(result) == {"loss", "loss_0", "loss_1"}


def test_a_metric_called_loss_is_refused():
    with pytest.raises(InvalidConfig, match="reserved for the objective"):
        evaluate(network(), batches(8), nn.CrossEntropyLoss(), metrics={"loss": Accuracy})
