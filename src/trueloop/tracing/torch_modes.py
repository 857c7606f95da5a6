"""Modes of the program's, which see every operation and may count, record or change it: they see none of ours."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

_bindings: Any = torch._C  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
function_modes: Callable[[], int] = _bindings._len_torch_function_stack  # noqa: SLF001
"""How many there are on this thread that see calls of torch's functions."""
dispatch_modes: Callable[[], int] = _bindings._len_torch_dispatch_stack  # noqa: SLF001
"""How many that see what these come down to."""


def modes_active() -> bool:
    """True where there is one; a default device is a mode, too, but says nothing where a device is given."""
    there = _bindings._get_function_stack_at  # noqa: SLF001
    return bool(dispatch_modes()) or not all(isinstance(there(at), DeviceContext) for at in range(function_modes()))


def modes_disabled() -> bool:
    """True within `torch_modes_disabled`."""
    return bool(_bindings._is_torch_function_all_disabled())  # noqa: SLF001


@contextmanager
def torch_modes_disabled() -> Generator[None]:
    """Set all of them aside meanwhile. Cost: 10 us."""
    with _bindings.DisableTorchFunction(), cast("Any", _disable_current_modes)():
        yield
