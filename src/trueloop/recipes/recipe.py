"""What a recipe is: a whole run, described without running anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from trueloop.export.io_description import Reading
from trueloop.training.config import TrainConfig
from trueloop.core.errors import InvalidConfig


def require_at_least(least: int, **options: int) -> None:
    """Refuse options below ``least``.

    Raises:
        InvalidConfig: naming the option and its value.
    """
    for name, value in options.items():
        if value < least:
            raise InvalidConfig(f"options.{name} is {value!r}.", fix=f"It must be at least {least}.")


def require_share(**options: float) -> None:
    """Refuse options outside [0, 1).

    Raises:
        InvalidConfig: naming the option and its value.
    """
    for name, value in options.items():
        if not 0 <= value < 1:
            raise InvalidConfig(f"options.{name} is {value!r}.", fix="It must be a share: 0 or more, below 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The live objects of a run, made from a recipe's options after seeding."""

    model: nn.Module
    """New, with parameters; the run moves it to its device."""
    objective: Any
    """A `torch.nn` loss, or a function ``(model, batch) -> mean | (sum, count) | Loss | list[Loss]``."""
    train: Any
    """A map-style dataset."""
    val: Any = None
    """A map-style dataset that the run is judged by; None = it is not evaluated."""
    test: Any = None
    """One that is measured once, at the end."""
    metrics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Name -> metric factory, evaluated on val and test beside the loss."""
    collate: Callable[[list[Any]], Any] | None = None
    """Samples -> batch; None = torch's default collate."""
    sampler: Literal["random", "sequential", "weighted"] = "random"
    """Training order; weighted draws every class alike, from `labels`."""
    labels: Any = None
    """One class index per training sample, for the weighted sampler."""
    class_names: tuple[str, ...] = ()
    """For the confusion matrix, and the answers of the exported model."""
    reading: Reading = field(default_factory=Reading)
    """How a file becomes the model's input, for `trueloop predict`; as the dataset does it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole run: settings that can be overridden, and how to make the rest from them."""

    name: str
    """The word on the command line."""
    summary: str
    """One line for `trueloop recipes`."""
    train: TrainConfig
    """The settings of the loop."""
    options: Any
    """A frozen dataclass of the recipe's own settings (model width, dropout, split)."""
    assemble: Callable[[Any], Parts]
    """Options -> live objects; called once, after the generators are seeded."""
    command: tuple[str, ...] = field(default=(), compare=False)
    """The words that ask for it again on the command line, journaled with the run; empty from Python."""
