"""Which components of the production loop are on."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final, Literal

Precision = Literal["off", "bf16", "fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A choice of components; without any it is the minimal loop."""

    seeding: Annotated[bool, "the same numbers in every run"] = False
    precision: Annotated[Precision, "the forward pass in 16 bits"] = "off"
    accumulation: Annotated[bool, "a batch in several micro-batches"] = False
    clipping: Annotated[bool, "a bound on the gradient's norm"] = False
    schedule: Annotated[bool, "a learning rate that falls"] = False
    evaluation: Annotated[bool, "loss and accuracy on held-out data after each epoch"] = False
    early_stopping: Annotated[bool, "an end of training once nothing improves"] = False
    checkpoint: Annotated[bool, "a file to resume from"] = False
    logging: Annotated[bool, "a record of each epoch"] = False
    progress: Annotated[bool, "a progress line"] = False

    def with_required(self) -> Selection:
        """Return the selection with the components that it requires: early stopping needs an evaluation."""
        return replace(self, evaluation=self.evaluation or self.early_stopping)

    @property
    def enabled(self) -> tuple[str, ...]:
        """Names of the components that are on, in the order of `NAMES`."""
        return tuple(name for name in NAMES if getattr(self, name) not in (False, "off"))

    @property
    def sums_losses(self) -> bool:
        """True if losses are summed; the gradients are then divided once by the number of examples in the window."""
        return self.accumulation

    @property
    def uses_scaler(self) -> bool:
        """True if the loss is scaled, which only float16 needs."""
        return self.precision == "fp16"


NAMES: Final = tuple(field.name for field in fields(Selection))
"""Names of the components, in the order in which one would add them."""


def select(*names: str, precision: Precision = "bf16") -> Selection:
    """Return the selection of these components.

    Args:
        names: names from `NAMES`.
        precision: precision of autocast, if "precision" is among the names.
    """
    values: dict[str, Any] = {name: precision if name == "precision" else True for name in names}
    return Selection(**values)
