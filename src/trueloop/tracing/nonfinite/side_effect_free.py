"""Running something a second time without the program noticing: its generators, its modules and its output."""

from __future__ import annotations

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
    """Let modules work on other attributes meanwhile; their own dictionaries stay as they are."""
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
    """Draw on the CPU what was drawn then; afterwards all generators go on as if nothing had been drawn."""
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
    """Run what was compiled as it is written: modules with other attributes would be compiled anew."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return cast("Any", torch.compiler).set_stance("force_eager")


class _Muted:
    """A stream that nothing of this thread's gets into."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        """Pass on what others write."""
        return len(text) if threading.get_ident() == self._thread else cast("int", self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def output_muted() -> Generator[None]:
    """Say nothing twice."""
    with (
        contextlib.redirect_stdout(cast("Any", _Muted(sys.stdout))),
        contextlib.redirect_stderr(cast("Any", _Muted(sys.stderr))),
    ):
        yield
