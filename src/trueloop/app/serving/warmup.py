"""The first batches, which nobody waits for."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Final

from trueloop.core.errors import InvalidModel

if TYPE_CHECKING:
    from trueloop.export.exported_model import Model
    from trueloop.export.io_description import Array, Extent
    from trueloop.export.request_samples import Numbers

LONGEST: Final = 512  # of a dimension that has no bound


def warm_up(model: Model, most: int) -> str:
    """Run one sample, and as many as go together, of zeros; return a line that says how long it took."""
    start_s = perf_counter()
    specs = model.description.inputs
    try:
        for count, longest in ((1, False), (most, True)):
            model.run([tuple(_zeros(spec, longest=longest) for spec in specs)] * count)
    except (InvalidModel, MemoryError) as error:  # zeros may be no input of this model; real ones may well be
        return f"warm-up   failed on zeros: {error.what if isinstance(error, InvalidModel) else error}"
    return f"warm-up   {perf_counter() - start_s:.2f} s"


def _zeros(spec: Array, *, longest: bool) -> Numbers:
    import numpy as np

    sizes = [_size(each, longest=longest) for each in spec.shape[1:]]
    return np.full(sizes, spec.lowest or 0, dtype=spec.dtype)


def _size(extent: Extent, *, longest: bool) -> int:
    return max(extent.lowest, min(extent.highest or LONGEST, LONGEST)) if longest else extent.lowest
