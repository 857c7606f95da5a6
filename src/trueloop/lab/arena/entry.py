"""The settings of an entry: optimizer, schedule, batches and initialisation.

The track decides data, network and target. Numbers are rounded to three significant digits, and settings that the
optimizer does not use are reset to their defaults, so that equal runs have equal entries.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Final, Literal

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import Bounds, parse_record

DIGITS: Final = 3
MAX_BATCH: Final = 256
MAX_ACCUMULATION: Final = 8
MAX_UPDATES: Final = 1500
OPTIMIZER_SETTINGS: Final = {
    "momentum": ("sgd", "nesterov", "rmsprop"),
    "beta1": ("adam", "adamw"),
    "beta2": ("adam", "adamw"),
}
"""Settings that only some optimizers use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A training loop's settings; the defaults are plain and slow."""

    optimizer: Annotated[
        Literal["sgd", "nesterov", "adam", "adamw", "rmsprop", "adagrad"],
        "optimizer of torch.optim; nesterov = SGD with nesterov=True",
    ] = "sgd"
    lr: Annotated[float, Bounds(1e-5, 10.0), "highest learning rate of the schedule"] = 0.1
    momentum: Annotated[float, Bounds(0.0, 0.99), "momentum of SGD, Nesterov and RMSprop"] = 0.0
    beta1: Annotated[float, Bounds(0.0, 0.99), "decay of Adam's average of gradients"] = 0.9
    beta2: Annotated[float, Bounds(0.5, 0.9999), "decay of Adam's average of squared gradients"] = 0.999
    weight_decay: Annotated[float, Bounds(0.0, 1.0), "decoupled in AdamW, added to the gradient elsewhere"] = 0.0
    batch: Annotated[int, Bounds(1, MAX_BATCH), "examples per batch"] = 32
    accumulation: Annotated[int, Bounds(1, MAX_ACCUMULATION), "batches per update"] = 1
    schedule: Annotated[Literal["constant", "linear", "cosine"], "from the highest rate to zero at the last update"] = (
        "constant"
    )
    warmup: Annotated[int, Bounds(0, 500), "updates in which the rate rises to its maximum"] = 0
    updates: Annotated[int, Bounds(10, MAX_UPDATES), "length of the schedule and of the run"] = MAX_UPDATES
    clip: Annotated[float, Bounds(0.0, 100.0), "largest norm of the gradient; 0 = no clipping"] = 0.0
    label_smoothing: Annotated[float, Bounds(0.0, 0.5), "share of the target distributed over all classes"] = 0.0
    initialisation: Annotated[
        Literal["torch", "kaiming", "xavier", "orthogonal"],
        "initial weights of linear layers; torch = PyTorch's default",
    ] = "torch"
    input_noise: Annotated[float, Bounds(0.0, 1.0), "standard deviation of noise added to training inputs"] = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float):
                object.__setattr__(self, field.name, float(f"{value:.{DIGITS}g}"))
            if self.optimizer not in OPTIMIZER_SETTINGS.get(field.name, (self.optimizer,)):
                object.__setattr__(self, field.name, field.default)
        if self.optimizer == "nesterov" and not self.momentum:
            object.__setattr__(self, "optimizer", "sgd")
        if self.warmup >= self.updates:
            raise InvalidConfig(
                f"warmup is {self.warmup}, of {self.updates} updates.", fix="The warm-up must end before the run."
            )

    def as_json(self) -> str:
        """Return canonical JSON: equal entries have equal texts."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def non_default_settings(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults."""
        defaults = asdict(Entry())
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}


def parse_entry(values: Mapping[str, Any]) -> Entry:
    """Parse an untrusted entry.

    Raises:
        InvalidConfig: a setting does not exist or a value is out of bounds.
    """
    return parse_record(Entry, values)
