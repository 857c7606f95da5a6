"""The first batches are of the sizes that a model takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from trueloop.app.serving.warmup import LONGEST, warm_up
from trueloop.core.errors import InvalidModel
from trueloop.export.exported_model import Model
from trueloop.export.io_description import Array, Extent


def warmed(*extents: Extent, error: Exception | None = None) -> tuple[list[Any], str]:
    shapes: list[Any] = []

    def run(samples: list[tuple[Any, ...]]) -> None:
        shapes.append((len(samples), samples[0][0].shape))
        if error is not None:
            raise error

    spec = Array(name="x", dtype="float32", shape=(Extent(lowest=1), *extents))
    model = SimpleNamespace(description=SimpleNamespace(inputs=[spec]), run=run)
    return shapes, warm_up(cast("Model", model), 8)


@pytest.mark.parametrize(
    ("extent", "short", "long"),
    [
        (Extent(lowest=784, highest=784), 784, 784),
        (Extent(lowest=600), 600, 600),
        (Extent(lowest=1, highest=9), 1, 9),
        (Extent(lowest=2, highest=9999), 2, LONGEST),
    ],
)
def test_sizes_are_within_bounds(extent: Extent, short: int, long: int):
    shapes, told = warmed(extent)
    assert shapes == [(1, (short,)), (8, (long,))]
    assert told.endswith(" s")


def test_a_warm_up_that_fails_is_told_and_the_server_gets_ready():
    for error in (InvalidModel("bad zeros"), MemoryError("bad zeros")):
        assert warmed(Extent(lowest=1), error=error)[1] == "warm-up   failed on zeros: bad zeros"
