"""The digits recipe: disjoint, stratified, repeatable splits of real images, and a network that fits them."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidConfig, MissingExtra
from trueloop.recipes.digits import DigitsOptions, assemble, build, load_images, network
from trueloop.recipes.splits import split

IMAGES_N1HW, LABELS_N = load_images()


def test_pixels_are_scaled_to_0_to_1():
    assert IMAGES_N1HW.shape == (1797, 1, 8, 8)
    assert IMAGES_N1HW.dtype == torch.float32
    assert (IMAGES_N1HW.min().item(), IMAGES_N1HW.max().item()) == (0.0, 1.0)
    assert LABELS_N.unique().tolist() == list(range(10))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_splits_are_disjoint_and_complete(seed: int):
    train, val, test = (part.tolist() for part in split(LABELS_N, seed=seed, stratify=True))
    assert sorted(train + val + test) == list(range(1797))
    assert (len(train), len(val), len(test)) == (1257, 180, 360)


def test_splits_keep_the_classes_in_proportion():
    whole = torch.bincount(LABELS_N) / len(LABELS_N)
    for part in split(LABELS_N, seed=0, stratify=True):
        share = torch.bincount(LABELS_N[part], minlength=10) / len(part)
        assert (share - whole).abs().max().item() < 0.01


def test_a_split_depends_on_its_seed_alone():
    torch.manual_seed(1)
    first = split(LABELS_N, seed=0, stratify=True)
    torch.manual_seed(2)
    assert all(map(torch.equal, first, split(LABELS_N, seed=0, stratify=True)))
    assert not torch.equal(first[2], split(LABELS_N, seed=1, stratify=True)[2])


def test_the_model_is_seeded_by_the_run_and_the_data_is_not():
    def made(seed: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(seed)
        parts = assemble(DigitsOptions())
        return next(parts.model.parameters()), torch.stack([parts.test[i][0] for i in range(3)])

    (weights, images), (same, _), (other, others) = made(0), made(0), made(1)
    assert torch.equal(weights, same)
    assert not torch.equal(weights, other)
    assert torch.equal(images, others)


@pytest.mark.parametrize("width", [1, 4, 32])
def test_the_network_scores_ten_classes(width: int):
    model = network(width=width, dropout=0.5)
    assert model(IMAGES_N1HW[:3]).shape == (3, 10)
    kinds = {type(module) for module in model.modules()}
    assert {nn.BatchNorm2d, nn.Dropout} <= kinds


def test_samples_and_loss_fit():
    parts = assemble(DigitsOptions(width=2))
    image, label = parts.train[0]
    assert image.shape == (1, 8, 8)
    assert parts.objective(parts.model.eval()(image[None]), label[None]).isfinite()
    assert parts.class_names == tuple("0123456789")


def test_the_confusion_metric_covers_every_class():
    confusion = build().assemble(DigitsOptions(width=1)).metrics["confusion"]()
    assert [len(row) for row in confusion.compute()] == [10] * 10


@pytest.mark.parametrize("options", [{"width": 0}, {"dropout": 1.0}, {"dropout": -0.1}, {"split_seed": -1}])
def test_options_that_cannot_work_are_refused(options: dict[str, int]):
    with pytest.raises(InvalidConfig, match=f"options.{next(iter(options))} is {next(iter(options.values()))}"):
        DigitsOptions(**options)


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'trueloop\[demo\]'"):
        load_images()
