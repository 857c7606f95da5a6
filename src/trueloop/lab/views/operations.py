"""Answer the page "The six operations": the operations of a training step, one line at a time."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from trueloop.core.untrusted_input import Bounds
from trueloop.lab.highlight import highlight

NEEDS_TORCH = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Settings of the program."""

    example: Literal["worked_example", "irises"] = "worked_example"
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    lr: Annotated[float, Bounds(1e-5, 10)] = 0.01
    gamma: Annotated[float, Bounds(0.1, 1), "factor of the learning rate, after every update"] = 0.9
    updates: Annotated[int, Bounds(1, 6)] = 2
    hidden: Annotated[int, Bounds(1, 6), "number of hidden units"] = 4
    seed: Annotated[int, Bounds(0, 999), "seed of the initial weights"] = 2


def answer(query: Query) -> dict[str, Any]:
    """Return the complete run: every tensor after every line, and the graphs."""
    from trueloop.lab.teaching.operations import trace
    from trueloop.lab.teaching.worked_programs import SixOperations

    traced = asdict(trace(SixOperations(**asdict(query))))
    return {"code": highlight(traced.pop("text")), **traced}
