"""Disables the program's PyTorch modes for internal operations, which must not be counted, recorded or changed."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

_bindings: Any = torch._C  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
function_modes: Callable[[], int] = _bindings._len_torch_function_stack  # noqa: SLF001
"""Returns the number of function modes on this thread."""
dispatch_modes: Callable[[], int] = _bindings._len_torch_dispatch_stack  # noqa: SLF001
"""Returns the number of dispatch modes on this thread."""


def modes_active() -> bool:
    """Return True if a mode is active, other than a default device, which does not affect internal operations."""
    mode_at = _bindings._get_function_stack_at  # noqa: SLF001
    return bool(dispatch_modes()) or not all(isinstance(mode_at(at), DeviceContext) for at in range(function_modes()))


def modes_disabled() -> bool:
    """Return True within `torch_modes_disabled`."""
    return bool(_bindings._is_torch_function_all_disabled())  # noqa: SLF001


@contextmanager
def torch_modes_disabled() -> Generator[None]:
    """Disable all modes within a ``with`` block. Cost: 10 us."""
    with _bindings.DisableTorchFunction(), cast("Any", _disable_current_modes)():
        yield
