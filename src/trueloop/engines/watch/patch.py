"""Replaces functions of torch, and puts them back.

A replacement is a plain function that passes everything on. It stays on classes and modules of torch, never on an
object of the user's: those can still be pickled, copied and exported.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, cast

MISSING: Any = object()


class Patches:
    """Some replaced attributes, to be put back together."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Put ``make(original)`` in the place of an attribute.

        Args:
            owner: a class or module.
            name: of a function in it, own or inherited.
            make: gets the original, returns the function to put there; it must look for itself whether anybody still
                listens, since it stays in use where somebody else has wrapped it meanwhile.
        """
        own = vars(owner).get(name, MISSING)
        original = getattr(owner, name)
        replacement = functools.wraps(original)(make(original))
        hide_from_compiler(replacement)
        setattr(owner, name, replacement)
        self._done.append((owner, name, own, replacement))

    def restore(self) -> None:
        """Put back everything that is still as it was put there."""
        for owner, name, own, replacement in reversed(self._done):
            if vars(owner).get(name, MISSING) is not replacement:
                continue
            if own is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._done.clear()


def hide_from_compiler(function: Callable[..., Any]) -> None:
    """Let torch.compile run a function of ours as it is, wherever it meets it.

    Asking ``is_compiling()`` is not enough: after a graph break dynamo compiles the frames of a wrapper themselves, in
    which that is a constant True, and what the wrapper should tell is never told.
    """
    if isinstance(function, FunctionType):
        for code in _codes(function.__code__):
            _skip(code)


@functools.cache
def hide_package(package: str) -> None:
    """Do so with every function and method of a package that is loaded by now."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    for function in (value, *(vars(value).values() if isinstance(value, type) else ())):
                        hide_from_compiler(getattr(function, "fget", None) or getattr(function, "__func__", function))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _choose_skip() -> Callable[[CodeType], None]:
    frames: Any = importlib.import_module("torch._C._dynamo.eval_frame")
    if hasattr(frames, "skip_code"):
        return cast("Callable[[CodeType], None]", frames.skip_code)
    if hasattr(frames, "set_code_exec_strategy"):
        strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)  # noqa: SLF001

        def skip(code: CodeType) -> None:
            frames.set_code_exec_strategy(code, strategy)

        return skip
    return lambda code: None


_skip = _choose_skip()
