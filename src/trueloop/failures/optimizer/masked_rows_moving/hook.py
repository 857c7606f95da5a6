"""Reads the gradients of matrices before hooks of the program change them."""

import sys
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Final

from torch import Tensor

from trueloop.core.findings import CodePosition
from trueloop.failures.optimizer.masked_rows_moving import MAX_COMPARED, MAX_VALUES, GradientRows
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_called_by_user, is_trueloop_code, user_location
from trueloop.tracing.weak_id_dict import WeakIdDict


class GradientHooks(Hook):
    """Emits `GradientRows`. Cost: 20 us for each of 24 gradients of a matrix with a hook of the program."""

    emits: ClassVar[tuple[type[Event], ...]] = (GradientRows,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._known = WeakIdDict[Tensor, CodePosition | None]()
        self._patches: Patches | None = None
        self._on_hook = stream.isolated("hooks of gradients", self._register)
        self._report = stream.isolated_inner("hooks of gradients", self._on_gradient)

    def install_always(self, patches: Patches) -> None:
        """Replace ``Tensor.register_hook``."""
        self._known, self._patches = WeakIdDict[Tensor, CodePosition | None](), patches
        patches.replace(Tensor, "register_hook", self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register_hook(tensor: Tensor, hook: Any) -> Any:
            is_matrix = tensor.is_leaf and tensor.ndim > 1 and tensor.numel() <= MAX_VALUES
            caller = sys._getframe(1).f_code  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            if self._stream.active and is_matrix and not is_trueloop_code(caller):
                self._on_hook(original, tensor)
            return original(tensor, hook)

        return register_hook

    def _register(self, original: Callable[..., Any], tensor: Tensor) -> None:
        """Add a hook that runs before that of the program, once for each tensor."""
        if self._known.get(tensor) is not None or not is_called_by_user():
            return
        location, reference = user_location(), weakref.ref(tensor)
        self._known.put(tensor, location)
        left = MAX_COMPARED

        def read(gradient: Tensor) -> None:
            nonlocal left
            parameter = reference()
            if left and parameter is not None and self._stream.active and not self._program.is_other_thread():
                left -= 1
                if not left:
                    handle.remove()
                self._report(parameter, gradient, location)

        handle = original(tensor, read)
        if self._patches is not None:
            self._patches.add_handle(handle)

    def _on_gradient(self, parameter: Tensor, gradient: Tensor, location: CodePosition | None) -> None:
        if gradient.is_cpu and not gradient.is_sparse:
            rows = gradient.detach().flatten(1).any(1)
            self._stream.emit(
                GradientRows(location=location, parameter=self._stream.registry.parameter_ref(parameter), rows=rows)
            )


HOOK: Final = GradientHooks
