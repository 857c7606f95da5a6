"""Handwritten digits: a small convolutional network with batch normalisation and dropout.

Model: CNN, 30,762 parameters
Data: scikit-learn digits, 1,797 images of 8×8, 10 classes
Time: seconds on a CPU, test accuracy about 0.99

The split is stratified and has its own seed, so that runs with other training seeds have the same test images.
"""
# ruff: noqa: N806 - shapes are part of the name: N images, H×W pixels

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trueloop.core.errors import MissingExtra
from trueloop.data import TensorData
from trueloop.export.io_description import Reading
from trueloop.recipes.recipe import Parts, Recipe, require_at_least, require_share
from trueloop.recipes.splits import split
from trueloop.training.config import OptimConfig, ScheduleConfig, TrainConfig
from trueloop.training.evaluation.metrics import Accuracy, Confusion

CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DigitsOptions:
    """The network and the split."""

    width: int = 32
    """Number of channels of the first two convolutions; the third one has twice as many."""
    dropout: float = 0.25
    """Dropout probability before the last layer."""
    split_seed: int = 0
    """Seed of the split into training and held-out images."""

    def __post_init__(self) -> None:
        require_at_least(1, width=self.width)
        require_at_least(0, split_seed=self.split_seed)
        require_share(dropout=self.dropout)


def build() -> Recipe:
    """Return the recipe."""
    return Recipe(
        name="digits",
        summary="Handwritten digits: a small convolutional network with batch normalisation and dropout.",
        train=TrainConfig(
            epochs=20,
            effective_batch=64,
            threads=1,
            optim=OptimConfig(lr=3e-3),
            schedule=ScheduleConfig(name="cosine", warmup=0.1),
        ),
        options=DigitsOptions(),
        assemble=assemble,
    )


def assemble(options: DigitsOptions) -> Parts:
    """Return the network, its loss, and the training, validation and test splits of (image [1, 8, 8], label)."""
    images_N1HW, labels_N = load_images()
    splits = split(labels_N, seed=options.split_seed, stratify=True)
    train, val, test = map(TensorData(images_N1HW, labels_N).subset, splits)
    return Parts(
        model=network(width=options.width, dropout=options.dropout),
        objective=nn.CrossEntropyLoss(),
        train=train,
        val=val,
        test=test,
        metrics={"accuracy": Accuracy, "confusion": lambda: Confusion(CLASSES)},
        class_names=tuple(map(str, range(CLASSES))),
        reading=Reading(kind="image", description="Grey images of 8 by 8, light on dark, pixels from 0 to 1."),
    )


def network(*, width: int, dropout: float) -> nn.Sequential:
    """Return a network that maps images [N, 1, 8, 8] in [0, 1] to scores [N, 10]."""
    return nn.Sequential(
        _convolution(1, width),
        _convolution(width, width),
        nn.MaxPool2d(2),
        _convolution(width, 2 * width),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * width * 2 * 2, CLASSES),  # 8×8 pixels, halved twice
    )


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    # The convolution has no bias, because BatchNorm adds one.
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


def load_images() -> tuple[Tensor, Tensor]:
    """Return images [1797, 1, 8, 8] in [0, 1] and labels [1797].

    Raises:
        MissingExtra: scikit-learn, which brings the data, is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise MissingExtra("scikit-learn", "demo") from error
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)  # 0 to 16 grey
