"""Context managers for a replay without side effects on generators, modules and output."""

import contextlib
import random
import sys
import threading
from collections.abc import Generator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def attributes_replaced(modules: Sequence[nn.Module], attributes: Sequence[dict[str, Any]]) -> Generator[None]:
    """Give modules other attributes within a ``with`` block; their own dictionaries are unchanged."""
    own = [vars(module) for module in modules]
    try:
        for module, others in zip(modules, attributes, strict=True):
            object.__setattr__(module, "__dict__", others)
        yield
    finally:
        for module, others in zip(modules, own, strict=True):
            object.__setattr__(module, "__dict__", others)


@contextlib.contextmanager
def generators_restored(state: Tensor | None) -> Generator[None]:
    """Set the CPU generator to a recorded state within a ``with`` block; restore all generators afterwards."""
    numpy: Any = sys.modules.get("numpy")
    drawn, python = torch.get_rng_state(), random.getstate()
    array = numpy.random.get_state() if numpy is not None else None
    if state is not None:
        torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(drawn)
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(array)


def compilation_disabled() -> contextlib.AbstractContextManager[Any]:
    """Run compiled code eagerly, since modules with other attributes would be recompiled."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return cast("Any", torch.compiler).set_stance("force_eager")


class _Muted:
    """A stream that discards the output of this thread."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        """Write the output of other threads."""
        return len(text) if threading.get_ident() == self._thread else cast("int", self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def output_muted() -> Generator[None]:
    """Discard the output of this thread within a ``with`` block, since it was printed before."""
    with (
        contextlib.redirect_stdout(cast("Any", _Muted(sys.stdout))),
        contextlib.redirect_stderr(cast("Any", _Muted(sys.stderr))),
    ):
        yield
