"""The sizes of a model and of the machines, as `trueloop plan` takes them."""

from dataclasses import asdict, dataclass

from cyclopts import Parameter

from trueloop.app.option_types import Count
from trueloop.app.planning.scale import Optimizer, Precision, Scale, scale


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """The sizes of a transformer and of the machines, as options of the command line."""

    parameters: float
    """Parameters of a transformer, such as 7e9: what it takes in memory, traffic, time and disk."""
    layers: Count | None = None
    """Its blocks; a usual number for its size unless said."""
    width: Count | None = None
    """Features per token; what goes with the blocks unless said."""
    vocabulary: Count = 50_257
    """Tokens it tells apart."""
    sequence: Count = 2048
    """Tokens in a sequence."""
    micro_batch: Count = 1
    """Sequences per forward pass and device."""
    window: Count = 1
    """Micro-batches per update."""
    devices: Count = 1
    """Devices that train together."""
    precision: Precision = "bf16"
    """Of the computation."""
    optimizer: Optimizer = "adamw"
    """Decides how many moments are kept."""
    tokens: float | None = None
    """Tokens to train on in all."""
    bandwidth: float = 50.0
    """10^9 bytes per second that a device sends and receives."""
    storage: float = 2.0
    """10^9 bytes per second that a device writes to the disk."""
    peak: float | None = None
    """10^12 operations per second of a device; an H100's unless said."""
    utilisation: float = 0.4
    """Share of the peak that is reached."""

    def scale_plan(self) -> Scale:
        """Return what follows from them."""
        renamed = {
            "window": "accumulate",
            "bandwidth": "bandwidth_gb_s",
            "storage": "storage_gb_s",
            "peak": "peak_tflops",
        }
        return scale(**{renamed.get(name, name): value for name, value in asdict(self).items()})
