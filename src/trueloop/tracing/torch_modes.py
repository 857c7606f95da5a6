"""Disables the program's PyTorch modes for internal operations, which must not be counted, recorded or changed."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

_bindings: Any = torch._C  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
function_modes: Callable[[], int] = _bindings._len_torch_function_stack  # noqa: SLF001
"""Returns the number of function modes on this thread."""
dispatch_modes: Callable[[], int] = _bindings._len_torch_dispatch_stack  # noqa: SLF001
"""Returns the number of dispatch modes on this thread."""
in_transform: Callable[[], bool] = _bindings._are_functorch_transforms_active  # noqa: SLF001
"""Returns True within ``torch.func.grad`` and similar transforms. Reading their stack would create one for this thread,
which is then copied for every node of every backward."""
is_transformed: Callable[[torch.Tensor], bool] = _bindings._functorch.is_functorch_wrapped_tensor  # noqa: SLF001
"""Returns True for a tensor within such a transform, whose values cannot be read."""


class RecordingMode(TorchFunctionMode):
    """A mode of trueloop's own, which records the program's operations while it is not ``paused``."""

    paused = False


def _active_function_modes() -> list[Any]:
    return [_bindings._get_function_stack_at(at) for at in range(function_modes())]  # noqa: SLF001


def modes_active() -> bool:
    """Return True if the program uses a mode other than a default device, which does not affect internal operations."""
    is_harmless = (isinstance(mode, DeviceContext | RecordingMode) for mode in _active_function_modes())
    return bool(dispatch_modes()) or not all(is_harmless)


def modes_disabled() -> bool:
    """Return True within `torch_modes_disabled`."""
    return bool(_bindings._is_torch_function_all_disabled())  # noqa: SLF001


@contextmanager
def torch_modes_disabled() -> Generator[None]:
    """Disable all modes within a ``with`` block. Cost: 10 us."""
    with _bindings.DisableTorchFunction(), cast("Any", _disable_current_modes)():
        yield


@contextmanager
def recording_paused() -> Generator[None]:
    """Record no operations within a ``with`` block. Cost: 2 us."""
    modes = [mode for mode in _active_function_modes() if isinstance(mode, RecordingMode) and not mode.paused]
    for mode in modes:
        mode.paused = True
    try:
        yield
    finally:
        for mode in modes:
            mode.paused = False
