"""Answer the page "Train and eval" on memory: what a forward pass keeps in memory, with and without a graph."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from trueloop.core.untrusted_input import Bounds
from trueloop.lab.highlight import highlight

NEEDS_TORCH = True
MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Settings of the measurement."""

    depth: Annotated[int, Bounds(1, 6), "number of blocks of Linear, BatchNorm, ReLU, Dropout"] = 4
    width: Annotated[int, Bounds(8, 256), "units of each layer"] = 128
    batch: Annotated[int, Bounds(2, 1024), "number of examples"] = 512


def answer(query: Query) -> dict[str, Any]:
    """Return bytes and seconds of each mode to call the model."""
    from trueloop.lab.teaching.saved_activations import Forward, measure

    measurement = measure(Forward(**asdict(query)))
    train, evaluation, no_grad, _ = measurement.modes
    modes = [
        {
            "name": mode.name,
            "kept_b": mode.kept_b,
            "peak_b": mode.peak_b,
            "kept": _size(mode.kept_b),
            "peak": _size(mode.peak_b),
            "for_backward": _size(mode.for_backward_b),
            "median": f"{1000 * mode.median_s:.2f} ms",
            "alive_mib": [alive_b / MIB for alive_b in mode.alive_b],
            "refused": mode.refused,
        }
        for mode in measurement.modes
    ]
    return {
        "modes": modes,
        "description": f"In eval mode with a graph, the forward pass keeps {_size(evaluation.kept_b)}: "
        f"{evaluation.kept_b / no_grad.kept_b:.1f} times as much as without a graph, which keeps only the outputs "
        f"({_size(no_grad.kept_b)}). In train mode it keeps {train.kept_b / no_grad.kept_b:.1f} times as much.",
        "how": "Kept: storages created in the forward pass that are alive as long as its outputs are, tracked by weak "
        "references. Saved for backward: tensors passed to saved_tensors_hooks, without parameters, buffers and "
        f"inputs. Time: median of {measurement.rounds} forward passes on one thread, alternating between the four "
        "modes; other programs may slow them down.",
        "printed": measurement.printed,
        "code": highlight(measurement.text),
    }


def _size(size_b: int) -> str:
    return f"{size_b / MIB:.2f} MiB" if size_b >= MIB / 10 else f"{size_b / 1024:.1f} KiB" if size_b else "0"
