"""Page "modes", its second question: what a forward keeps in memory, with and without a graph."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from trueloop.core.untrusted_input import Bounds
from trueloop.lab.highlight import highlight

NEEDS_TORCH = True
MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to measure."""

    depth: Annotated[int, Bounds(1, 6), "blocks of linear, batch norm, ReLU, dropout"] = 4
    width: Annotated[int, Bounds(8, 256), "units of each layer"] = 128
    batch: Annotated[int, Bounds(2, 1024), "examples"] = 512


def answer(query: Query) -> dict[str, Any]:
    """Return bytes and seconds of each way to call the model."""
    from trueloop.lab.teaching.saved_activations import Forward, measure

    measured = measure(Forward(**asdict(query)))
    train, evaluation, no_grad, _ = measured.ways
    ways = [
        {
            "name": way.name,
            "kept_b": way.kept_b,
            "highest_b": way.highest_b,
            "kept": _size(way.kept_b),
            "highest": _size(way.highest_b),
            "for_backward": _size(way.for_backward_b),
            "median": f"{1000 * way.median_s:.2f} ms",
            "alive_mib": [alive_b / MIB for alive_b in way.alive_b],
            "refused": way.refused,
        }
        for way in measured.ways
    ]
    return {
        "ways": ways,
        "says": f"In eval mode with a graph the forward keeps {evaluation.kept_b / no_grad.kept_b:.1f} times as much "
        f"as without one ({_size(evaluation.kept_b)} and {_size(no_grad.kept_b)}, which is the outputs); in train mode "
        f"{train.kept_b / no_grad.kept_b:.1f} times.",
        "how": "Kept: storages that the forward has made and that are still alive while its outputs are held, followed "
        "by weak references. Saved for backward: what hooks on saved tensors see, without parameters, buffers and "
        f"inputs. Time: the median of {measured.turns} forwards, the four ways in turn, on one thread; the machine may "
        "be busy with other things.",
        "printed": measured.printed,
        "code": highlight(measured.text),
    }


def _size(size_b: int) -> str:
    return f"{size_b / MIB:.2f} MiB" if size_b >= MIB / 10 else f"{size_b / 1024:.1f} KiB" if size_b else "0"
