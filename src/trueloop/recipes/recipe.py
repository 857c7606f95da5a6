"""Define `Recipe`, the description of a run, and checks for recipe options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from trueloop.core.errors import InvalidConfig
from trueloop.export.io_description import Reading
from trueloop.training.config import TrainConfig


def require_at_least(lowest: int, **options: int) -> None:
    """Check that options are at least ``lowest``.

    Raises:
        InvalidConfig: an option is out of range; the message has its name and value.
    """
    for name, value in options.items():
        if value < lowest:
            raise InvalidConfig(f"options.{name} is {value!r}.", fix=f"It must be at least {lowest}.")


def require_share(**options: float) -> None:
    """Check that options are in [0, 1).

    Raises:
        InvalidConfig: an option is out of range; the message has its name and value.
    """
    for name, value in options.items():
        if not 0 <= value < 1:
            raise InvalidConfig(f"options.{name} is {value!r}.", fix="It must be a share: 0 or more, below 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The objects of a run, created from a recipe's options after seeding."""

    model: nn.Module
    """A new model; the run moves it to its device."""
    objective: Any
    """A `torch.nn` loss, or a function ``(model, batch) -> mean | (sum, count) | Loss | list[Loss]``."""
    train: Any
    """Training data, a map-style dataset."""
    val: Any = None
    """Validation data, a map-style dataset; None = no evaluation."""
    test: Any = None
    """Test data, a map-style dataset, evaluated once at the end."""
    metrics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Factories of the metrics that are computed on val and test in addition to the loss, by name."""
    collate: Callable[[list[Any]], Any] | None = None
    """Function from a list of samples to a batch; None = torch's default collate."""
    sampler: Literal["random", "sequential", "weighted"] = "random"
    """Order of the training samples; "weighted" samples all classes equally often, using `labels`."""
    labels: Any = None
    """One class index per training sample, for the weighted sampler."""
    class_names: tuple[str, ...] = ()
    """Names for the confusion matrix and for the predictions of the exported model."""
    reading: Reading = field(default_factory=Reading)
    """Preprocessing of input files for `trueloop predict`, which must equal the preprocessing of the dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The description of a run: settings that can be overridden, and a function that creates objects from them."""

    name: str
    """Name of the recipe on the command line."""
    summary: str
    """One line for `trueloop recipes`."""
    train: TrainConfig
    """Settings of the loop."""
    options: Any
    """A frozen dataclass with the recipe's own settings (model width, dropout, split)."""
    assemble: Callable[[Any], Parts]
    """Function from the options to the objects; called once, after the generators are seeded."""
    command: tuple[str, ...] = field(default=(), compare=False)
    """Command line that repeats the run, for the journal; empty if the run was started from Python."""
