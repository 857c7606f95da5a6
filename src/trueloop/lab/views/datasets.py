"""Returns some points of a dataset, which page "Simulator" draws as a thumbnail."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Annotated, Any, Final

from trueloop.lab.teaching import datasets
from trueloop.lab.teaching.simulation import Dataset

NEEDS_TORCH = True
SAMPLES: Final = 150
NOISE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The requested dataset."""

    dataset: Annotated[Dataset, "name of the dataset"] = "spiral"


def answer(query: Query) -> dict[str, Any]:
    """Return [x, y, label] of 150 points, x and y from -1 to 1; none of "digits" if scikit-learn is not installed."""
    if query.dataset == "digits" and find_spec("sklearn") is None:
        return {"points": []}
    return {"points": _sample_points(query.dataset)}


@cache
def _sample_points(dataset: str) -> list[list[float]]:
    import torch

    from trueloop.lab.teaching.program import Program

    lines = ["import torch", *datasets.IMPORTS.get(dataset, []), "torch.manual_seed(0)"]
    program = Program("\n".join([*lines, datasets.source_code(dataset, SAMPLES, NOISE)]), name=f"{dataset}.py")
    with torch.random.fork_rng(devices=[]):
        program.run()
    points = program.variables["points"]
    points = points / points.abs().max()
    labels = program.variables["labels"].tolist()
    return [[round(x, 3), round(y, 3), label] for (x, y), label in zip(points.tolist(), labels, strict=True)]
