"""One pass over a DataLoader, and the tensors in a batch."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, cast

import torch
from torch import Tensor

from trueloop.tracing.events import Ref
from trueloop.tracing.patch import HIDDEN_FILE

MAX_COLUMNS: Final = 8


@dataclass(slots=True, eq=False, weakref_slot=True)
class LoaderPass:
    """One pass over a loader, from ``iter`` to its end or to a ``break``."""

    loader: Ref
    epoch: int
    backward_count_at_start: int
    workers: int = 0
    shuffles: bool | None = None
    batch_size: int | None = None
    index: int = 0
    """Number of batches returned."""
    length: int | None = None
    """Number of batches in the pass, for PyTorch's own samplers."""
    drawn: tuple[int, int] = (0, 0)
    """Number of indices and of batches whose indices were recorded so far, until they are enough."""
    first_batch_s: float = 0.0
    """Time at which the first batch was returned, by ``perf_counter``."""
    wait_s: float = 0.0
    needs_batches: set[object] = field(default_factory=set[object])
    """Detectors that need all batches of the pass, also in sampled tracing."""
    ended: bool = False


def current_loader_pass() -> LoaderPass | None:
    """Return the pass over a loader that is fetching a batch on this thread.

    The pass is searched on the stack, so that recording it costs nothing for each batch: this is called rarely.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    while frame is not None:
        code = frame.f_code
        if code.co_filename == HIDDEN_FILE and code.co_name == "__next__":
            return frame.f_locals.get("current")
        frame = frame.f_back
    return None


def batch_columns(batch: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the CPU tensors of a batch with their keys: "0", "1", "label"."""
    if isinstance(batch, Mapping):
        pairs = list(cast("Mapping[Any, Any]", batch).items())
    else:
        pairs = list(enumerate(cast("Sequence[Any]", batch))) if isinstance(batch, list | tuple) else [(0, batch)]
    for name, part in pairs[:MAX_COLUMNS]:
        if isinstance(part, Tensor) and part.device.type == "cpu" and part.layout == torch.strided and part.ndim:
            yield str(name), part
