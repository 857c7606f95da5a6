"""Answer the page "Train and eval": one network in train mode and in eval mode, on the same inputs."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from trueloop.core.untrusted_input import Bounds
from trueloop.lab.highlight import highlight

NEEDS_TORCH = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Settings of the comparison."""

    dropout: Annotated[float, Bounds(0, 0.95), "probability that a unit is masked"] = 0.5
    width: Annotated[int, Bounds(1, 10), "number of units that are normalised and dropped"] = 6
    batch: Annotated[int, Bounds(1, 8), "number of examples; try 1"] = 4
    momentum: Annotated[float, Bounds(0, 1), "weight of the new batch in the running statistics"] = 0.1
    passes: Annotated[int, Bounds(1, 12)] = 12
    seed: Annotated[int, Bounds(0, 999), "seed of weights, inputs and masks"] = 0


def answer(query: Query) -> dict[str, Any]:
    """Return every forward pass of both networks."""
    from trueloop.lab.teaching.modes import Modes, compare

    comparison = asdict(compare(Modes(**asdict(query))))
    return {"code": highlight(comparison.pop("text")), **comparison}
