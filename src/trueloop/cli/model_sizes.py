"""Options of `trueloop plan` for the sizes of a model and of the machines."""

from dataclasses import asdict, dataclass

from cyclopts import Parameter

from trueloop.app.option_types import Count
from trueloop.app.planning.scale import Optimizer, Precision, Scale, scale


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """The sizes of a transformer and of the machines, as options of the command line."""

    parameters: float
    """Number of parameters of a transformer, such as 7e9, to plan its memory, traffic, time and disk space."""
    layers: Count | None = None
    """Number of blocks; by default a usual number for the number of parameters."""
    width: Count | None = None
    """Features per token; by default derived from the parameters and blocks."""
    vocabulary: Count = 50_257
    """Number of tokens in the vocabulary."""
    sequence: Count = 2048
    """Number of tokens per sequence."""
    micro_batch: Count = 1
    """Sequences per forward pass and device."""
    window: Count = 1
    """Micro-batches per update."""
    devices: Count = 1
    """Number of devices that train together."""
    precision: Precision = "bf16"
    """Number format of the computation."""
    optimizer: Optimizer = "adamw"
    """Optimizer; it determines how many moments are stored per parameter."""
    tokens: float | None = None
    """Number of tokens of the whole training, for the time of the run."""
    bandwidth: float = 50.0
    """10^9 bytes per second that a device sends and receives."""
    storage: float = 2.0
    """10^9 bytes per second that a device writes to the disk."""
    peak: float | None = None
    """10^12 operations per second of a device at its peak; by default that of an H100."""
    utilisation: float = 0.4
    """Fraction of the peak that is reached."""

    def scale_plan(self) -> Scale:
        """Compute memory, traffic, time and disk space from these sizes."""
        renamed = {
            "window": "accumulate",
            "bandwidth": "bandwidth_gb_s",
            "storage": "storage_gb_s",
            "peak": "peak_tflops",
        }
        return scale(**{renamed.get(name, name): value for name, value in asdict(self).items()})
