"""The tabular recipe: statistics come from the training rows alone, and predictions are in the target's units."""

from __future__ import annotations

import sys
from typing import Any, Literal, cast

import pytest
import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidConfig, MissingExtra
from trueloop.recipes import tabular
from trueloop.recipes.recipe import Parts
from trueloop.recipes.splits import split
from trueloop.recipes.tabular import Rescale, SquaredError, TabularOptions, assemble, load_table

Table = Literal["breast_cancer", "diabetes"]
BOTH: tuple[Table, Table] = ("breast_cancer", "diabetes")


def rows(dataset: Any) -> tuple[Tensor, Tensor]:
    features, target = zip(*(dataset[i] for i in range(len(dataset))), strict=True)
    return torch.stack(features), torch.stack(target)


def first_layer(parts: Parts) -> Rescale:
    layer = cast("nn.Sequential", parts.model)[0]
    assert isinstance(layer, Rescale)
    return layer


@pytest.mark.parametrize("data", BOTH)
def test_training_features_are_standardised(data: Table):
    parts = assemble(TabularOptions(data=data))
    standard_NF = first_layer(parts)(rows(parts.train)[0])
    std_F, mean_F = torch.std_mean(standard_NF, dim=0)
    torch.testing.assert_close(mean_F, torch.zeros_like(mean_F), atol=1e-4, rtol=0)
    torch.testing.assert_close(std_F, torch.ones_like(std_F), atol=1e-4, rtol=0)


@pytest.mark.parametrize("data", BOTH)
def test_held_out_rows_do_not_change_the_statistics(data: Table, monkeypatch: pytest.MonkeyPatch):
    features_NF, target_N, names = load_table(data)
    _, val, test = split(target_N, seed=0, stratify=bool(names))
    poisoned_NF, poisoned_N = features_NF.clone(), target_N.clone()
    for part in (val, test):
        poisoned_NF[part] += 1e6
        if not names:
            poisoned_N[part] += 1e6
    torch.manual_seed(0)
    clean = assemble(TabularOptions(data=data)).model.state_dict()
    monkeypatch.setattr(tabular, "load_table", lambda _name: (poisoned_NF, poisoned_N, names))
    torch.manual_seed(0)
    poisoned = assemble(TabularOptions(data=data)).model.state_dict()
    assert clean.keys() == poisoned.keys()
    assert all(torch.equal(clean[name], poisoned[name]) for name in clean)


def test_training_rows_change_the_statistics(monkeypatch: pytest.MonkeyPatch):
    clean = first_layer(assemble(TabularOptions())).shift
    features_NF, target_N, names = load_table("breast_cancer")
    features_NF[split(target_N, seed=0, stratify=True)[0]] += 1e3
    monkeypatch.setattr(tabular, "load_table", lambda _name: (features_NF, target_N, names))
    assert not torch.equal(first_layer(assemble(TabularOptions())).shift, clean)


@pytest.mark.parametrize("data", BOTH)
def test_the_statistics_are_saved_and_never_trained(data: Table):
    model = assemble(TabularOptions(data=data)).model
    trained = {name for name, _ in model.named_parameters()}
    assert {"0.scale", "0.shift"} <= set(model.state_dict()) - trained


@pytest.mark.parametrize("data", BOTH)
@pytest.mark.parametrize("seed", [0, 1])
def test_splits_are_disjoint_complete_and_repeatable(data: Table, seed: int):
    _, target_N, names = load_table(data)
    parts = split(target_N, seed=seed, stratify=bool(names))
    assert sorted(torch.cat(parts).tolist()) == list(range(len(target_N)))
    assert all(map(torch.equal, parts, split(target_N, seed=seed, stratify=bool(names))))
    assert len(parts[0]) > 6 * len(parts[1])


def test_classes_keep_their_proportion():
    _, target_N, _ = load_table("breast_cancer")
    share = target_N.float().mean().item()
    for part in split(target_N, seed=0, stratify=True):
        assert abs(target_N[part].float().mean().item() - share) < 0.02


def test_an_untrained_network_predicts_about_the_mean_target():
    torch.manual_seed(0)
    parts = assemble(TabularOptions(data="diabetes"))
    features_NF, target_N = rows(parts.train)
    with torch.no_grad():
        output_N = parts.model.eval()(features_NF)
    assert output_N.shape == target_N.shape
    assert abs(output_N.mean().item() - target_N.mean().item()) < target_N.std().item()


def test_predicting_the_mean_has_a_loss_of_about_1():
    parts = assemble(TabularOptions(data="diabetes"))
    features_NF, target_N = rows(parts.train)

    class Mean(nn.Module):
        def forward(self, features_NF: Tensor) -> Tensor:
            return target_N.mean().expand(len(features_NF))

    loss = parts.objective(Mean(), (features_NF, target_N))
    assert loss.count == len(target_N)
    # The deviation divides by N - 1.
    assert loss.sum.item() / loss.count == pytest.approx((len(target_N) - 1) / len(target_N), rel=1e-5)
    assert loss.target is target_N


def test_the_squared_error_is_a_sum_over_rows():
    loss = SquaredError(torch.tensor(2.0))(nn.Flatten(0), (torch.tensor([1.0, 3.0]), torch.tensor([1.0, -1.0])))
    assert loss.sum.item() == 16 / 4
    assert loss.count == 2


def test_two_classes_are_scored():
    parts = assemble(TabularOptions(width=3))
    assert parts.model(rows(parts.val)[0]).shape == (len(parts.val), 2)
    assert parts.class_names == ("malignant", "benign")
    assert set(parts.metrics) == {"accuracy", "confusion"}
    assert set(assemble(TabularOptions(data="diabetes")).metrics) == {"mae"}


@pytest.mark.parametrize("options", [{"width": 0}, {"dropout": 1.0}, {"split_seed": -1}])
def test_options_that_cannot_work_are_refused(options: dict[str, Any]):
    with pytest.raises(InvalidConfig, match=f"options.{next(iter(options))} is"):
        TabularOptions(**options)


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtra, match=r"pip install 'trueloop\[demo\]'"):
        load_table("diabetes")
