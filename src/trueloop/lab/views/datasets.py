"""A small picture of one of the simulator's datasets: points as its script makes them."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Annotated, Any, Final

from trueloop.lab.teaching import datasets
from trueloop.lab.teaching.simulation import Dataset

NEEDS_TORCH = True
SHOWN: Final = 150
NOISE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which one."""

    dataset: Annotated[Dataset, "what the points look like"] = "spiral"


def answer(query: Query) -> dict[str, Any]:
    """Return [x, y, label] of some points, x and y from -1 to 1; none of digits where there is no scikit-learn."""
    if query.dataset == "digits" and find_spec("sklearn") is None:
        return {"points": []}
    return {"points": _drawn(query.dataset)}


@cache
def _drawn(dataset: str) -> list[list[float]]:
    import torch

    from trueloop.lab.teaching.program import Program

    lines = ["import torch", *datasets.IMPORTS.get(dataset, []), "torch.manual_seed(0)"]
    program = Program("\n".join([*lines, datasets.data(dataset, SHOWN, NOISE)]), name=f"{dataset}.py")
    with torch.random.fork_rng(devices=[]):
        program.run()
    made = program.names["points"]
    made = made / made.abs().max()
    labels = program.names["labels"].tolist()
    return [[round(x, 3), round(y, 3), label] for (x, y), label in zip(made.tolist(), labels, strict=True)]
