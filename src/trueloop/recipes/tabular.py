"""Tables: a multi-layer perceptron for breast cancer (two classes) or diabetes (one number).

Model: MLP, 2,114 parameters
Data: scikit-learn breast cancer, 569 × 30; or diabetes, 442 × 10 (--options.data diabetes)
Time: seconds on a CPU, test accuracy about 0.96

Means and standard deviations are computed from the training split only: statistics of all rows would leak held-out rows
into training, and every metric would be slightly too good. They are buffers of the model, so that the model with its
saved weights takes raw features and returns raw predictions.
"""
# ruff: noqa: N803, N806 - shapes are part of the name: N rows, F features

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trueloop.core.errors import MissingExtra
from trueloop.data import TensorData
from trueloop.export.io_description import Reading
from trueloop.recipes.recipe import Parts, Recipe, require_at_least, require_share
from trueloop.recipes.splits import split
from trueloop.training.config import OptimConfig, ScheduleConfig, TrainConfig
from trueloop.training.evaluation.metrics import Accuracy, Confusion, MeanAbsoluteError
from trueloop.training.objective import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularOptions:
    """The table, the network and the split."""

    data: Literal["breast_cancer", "diabetes"] = "breast_cancer"
    """Table: "breast_cancer" is classified; for "diabetes", the progression after a year (25 to 346) is predicted."""
    width: int = 32
    """Number of units in each of the two hidden layers."""
    dropout: float = 0.1
    """Dropout probability after each hidden layer."""
    split_seed: int = 0
    """Seed of the split into training and held-out rows."""

    def __post_init__(self) -> None:
        require_at_least(1, width=self.width)
        require_at_least(0, split_seed=self.split_seed)
        require_share(dropout=self.dropout)


class Rescale(nn.Module):
    """Computes ``x * scale + shift`` with numbers from the data, which are saved with the weights but not trained."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        """Rescale the last dimension."""
        return x * self.scale + self.shift


def build() -> Recipe:
    """Return the recipe."""
    return Recipe(
        name="tabular",
        summary="Tables: a multi-layer perceptron for breast cancer (two classes) or diabetes (one number).",
        train=TrainConfig(
            epochs=40,
            effective_batch=32,
            threads=1,
            optim=OptimConfig(lr=2e-3),
            schedule=ScheduleConfig(name="cosine", warmup=0.05),
        ),
        options=TabularOptions(),
        assemble=assemble,
    )


def assemble(options: TabularOptions) -> Parts:
    """Return the network, its loss, and the training, validation and test splits of (features [F], target)."""
    features_NF, target_N, names = load_table(options.data)
    train, val, test = split(target_N, seed=options.split_seed, stratify=bool(names))
    table = TensorData(features_NF, target_N)
    splits: dict[str, Any] = {"train": table.subset(train), "val": table.subset(val), "test": table.subset(test)}
    description = "Raw numbers in the table's units."
    splits["reading"] = Reading(kind="table", columns=columns(options.data), description=description)
    layers = network(features_NF[train], options, outputs=len(names) or 1)
    if names:
        metrics = {"accuracy": Accuracy, "confusion": lambda: Confusion(len(names))}
        return Parts(model=layers, objective=nn.CrossEntropyLoss(), metrics=metrics, class_names=names, **splits)
    std, mean = torch.std_mean(target_N[train])
    model = nn.Sequential(*layers, nn.Flatten(0), Rescale(std, mean))
    return Parts(model=model, objective=SquaredError(std), metrics={"mae": MeanAbsoluteError}, **splits)


def network(features_NF: Tensor, options: TabularOptions, *, outputs: int) -> nn.Sequential:
    """Return a network that maps raw features [N, F] to [N, outputs].

    Args:
        features_NF: the training rows; the first layer normalises with their mean and standard deviation.
        options: width and dropout.
        outputs: number of classes; 1 for regression.
    """
    std_F, mean_F = torch.std_mean(features_NF, dim=0)
    width = options.width
    return nn.Sequential(
        Rescale(1 / std_F, -mean_F / std_F),
        *(nn.Linear(features_NF.shape[1], width), nn.ReLU(), nn.Dropout(options.dropout)),
        *(nn.Linear(width, width), nn.ReLU(), nn.Dropout(options.dropout)),
        nn.Linear(width, outputs),
    )


class SquaredError:
    """Squared error divided by the variance of the training targets: predicting their mean has a loss of 1.

    Args:
        std: standard deviation of the training targets, 0-d.
    """

    def __init__(self, std: Tensor) -> None:
        self._variance = float(std) ** 2

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        """Return the sum over the rows, and the number of rows."""
        features_NF, target_N = batch
        output_N = model(features_NF)
        total = (output_N - target_N).square().sum() / self._variance
        return Loss(sum=total, count=len(target_N), output=output_N, target=target_N)


def load_table(name: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Return raw features [N, F], targets [N], and the class names (none for regression).

    Raises:
        MissingExtra: scikit-learn, which brings the data, is not installed.
    """
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise MissingExtra("scikit-learn", "demo") from error
    if name == "breast_cancer":
        table: Any = datasets.load_breast_cancer()
        target_N, names = torch.tensor(table.target), tuple(map(str, table.target_names))
    else:
        table = datasets.load_diabetes(scaled=False)  # scaled=True normalises with all rows, which leaks held-out ones
        target_N, names = torch.tensor(table.target, dtype=torch.float32), ()
    return torch.tensor(table.data, dtype=torch.float32), target_N, names


def columns(name: str) -> tuple[str, ...]:
    """Return the names of a table's features, in order."""
    from sklearn import datasets

    tables = {"breast_cancer": datasets.load_breast_cancer, "diabetes": datasets.load_diabetes}
    table: Any = tables[name]()
    return tuple(map(str, table.feature_names))
