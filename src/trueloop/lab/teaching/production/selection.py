"""Which components of the production loop are on."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final, Literal

Precision = Literal["off", "bf16", "fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One choice of components; with all of them off it is the minimal loop."""

    seeding: Annotated[bool, "the same numbers in every run"] = False
    precision: Annotated[Precision, "the forward pass in 16 bits"] = "off"
    accumulation: Annotated[bool, "a batch in several pieces"] = False
    clipping: Annotated[bool, "a bound on the gradient's norm"] = False
    schedule: Annotated[bool, "a learning rate that falls"] = False
    evaluation: Annotated[bool, "a look at held-out data after each epoch"] = False
    early_stopping: Annotated[bool, "an end where nothing improves"] = False
    checkpoint: Annotated[bool, "a file to go on from"] = False
    logging: Annotated[bool, "a record of each epoch"] = False
    progress: Annotated[bool, "a sign of life"] = False

    def completed(self) -> Selection:
        """Return the selection with what its components need: early stopping judges by an evaluation."""
        return replace(self, evaluation=self.evaluation or self.early_stopping)

    @property
    def words(self) -> tuple[str, ...]:
        """The names of the components that are on, in the order of `NAMES`."""
        return tuple(name for name in NAMES if getattr(self, name) not in (False, "off"))

    @property
    def sums(self) -> bool:
        """True where losses are summed, to be divided once by what a window holds."""
        return self.accumulation

    @property
    def scaled(self) -> bool:
        """True where the loss is scaled, which float16 alone needs."""
        return self.precision == "fp16"


NAMES: Final = tuple(field.name for field in fields(Selection))
"""The components, in the order in which a loop grows."""


def selected(*names: str, precision: Precision = "bf16") -> Selection:
    """Return the selection of these components.

    Args:
        names: of `NAMES`.
        precision: of autocast, where "precision" is among them.
    """
    chosen: dict[str, Any] = {name: precision if name == "precision" else True for name in names}
    return Selection(**chosen)
