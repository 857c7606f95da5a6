"""Traces GradScaler: which losses and gradients are scaled, and which steps it skips."""

import sys
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Final, cast

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from trueloop.tracing.events import Event, GradientsUnscaled, LossScaled, ScalerCreated, ScaleRead, StepSkipped
from trueloop.tracing.gradients import parameters_of
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_trueloop_code, user_location

METADATA_KEY: Final = "trueloop_scaled"  # of the graph node of a scaled loss
MAX_NODES: Final = 8  # nodes between the root and the scaled loss, such as a division by the window size, or a sum

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


def is_scaled(root: Tensor) -> bool:
    """Return True if a root was returned by ``GradScaler.scale``, or computed from such a tensor by few operations."""
    queue: list[Any] = [root.grad_fn]
    for node in queue:
        if node is not None and METADATA_KEY in node.metadata:
            return True
        if node is not None and len(queue) <= MAX_NODES:
            queue.extend(follower for follower, _ in node.next_functions)
    return False


class Scaling:
    """Emits `ScalerCreated` always, and events of GradScaler's other methods during full tracing.

    Cost: 1 us for each call in sampled tracing, 4 us in full tracing.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (GradientsUnscaled, LossScaled, ScaleRead, ScalerCreated, StepSkipped)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._report_read = stream.isolated("GradScaler", lambda: stream.emit(ScaleRead()))
        self._report_created = stream.isolated("GradScaler", self._on_created)
        self._record_loss = stream.isolated("GradScaler", self._on_scaled)
        self._record_unscale = stream.isolated("GradScaler", self._on_unscaled)
        self._report_skipped = stream.isolated("GradScaler", self._on_skipped)

    def install_always(self, patches: Patches) -> None:
        """Replace four methods; ``torch.cuda.amp.GradScaler`` inherits them."""
        patches.replace(GradScaler, "__init__", self._constructor)
        patches.replace(GradScaler, "scale", self._scale)
        patches.replace(GradScaler, "unscale_", self._unscale_)
        patches.replace(GradScaler, "step", self._step)

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``get_scale``, to detect that the program reads the factor."""
        patches.replace(GradScaler, "get_scale", self._get_scale)

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(scaler: GradScaler, *args: Any, **options: Any) -> None:  # noqa: N807
            original(scaler, *args, **options)
            if self._is_traced(scaler):
                self._report_created(scaler)

        return __init__

    def _get_scale(self, original: Callable[..., float]) -> Callable[..., float]:
        def get_scale(scaler: GradScaler) -> float:
            if not is_trueloop_code(sys._getframe(1).f_code):  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
                self._report_read()
            return original(scaler)

        return get_scale

    def _on_created(self, scaler: GradScaler) -> None:
        self._stream.emit(ScalerCreated(location=user_location(), scaler=self._stream.registry.ref(scaler)))

    def _is_traced(self, scaler: GradScaler) -> bool:
        return (
            self._stream.active and not _is_compiling() and not self._program.is_other_thread() and scaler.is_enabled()
        )

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if self._is_traced(scaler):
                self._record_loss(scaler, outputs, scaled)
            return scaled

        return scale

    def _unscale_(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def unscale_(scaler: GradScaler, optimizer: Optimizer) -> Any:
            result = original(scaler, optimizer)
            if self._is_traced(scaler):
                self._record_unscale(optimizer)
            return result

        return unscale_

    def _step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **options: Any) -> Any:
            if not self._is_traced(scaler):
                return original(scaler, optimizer, *args, **options)
            program, before = self._program, self._stream.update
            program.stepping_scaler = weakref.ref(scaler)
            try:
                result = original(scaler, optimizer, *args, **options)
            finally:
                program.stepping_scaler = None
            if self._stream.update == before:
                self._report_skipped(scaler, optimizer)
            return result

        return step

    def _on_scaled(self, scaler: GradScaler, outputs: Any, scaled: Any) -> None:
        self._program.scaler = weakref.ref(scaler)
        if isinstance(scaled, list | tuple):
            for loss, each in zip(outputs, scaled, strict=True):
                self._on_scaled(scaler, loss, each)
            return
        if not isinstance(scaled, Tensor) or scaled.grad_fn is None:
            return
        cast("Any", scaled.grad_fn).metadata[METADATA_KEY] = True
        if self._stream.full_tracing:
            self._stream.emit(
                LossScaled(
                    location=user_location(),
                    scaler=self._stream.registry.ref(scaler),
                    scale=float(scaler.get_scale()) if scaled.device.type == "cpu" else None,
                    autocast=self._program.autocast,
                    dtype=str(outputs.dtype).removeprefix("torch."),
                )
            )

    def _on_unscaled(self, optimizer: Optimizer) -> None:
        if self._stream.full_tracing and self._program.stepping_scaler is None:
            parameters = self._stream.registry.refs(parameters_of(optimizer))
            self._stream.emit(GradientsUnscaled(location=user_location(), parameters=parameters))

    def _on_skipped(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        if self._stream.full_tracing:
            registry = self._stream.registry
            self._stream.emit(
                StepSkipped(location=user_location(), optimizer=registry.ref(optimizer), scaler=registry.ref(scaler))
            )
