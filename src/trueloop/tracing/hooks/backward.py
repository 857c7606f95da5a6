"""Backward: from which losses it started, and which gradients it made or added to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any, ClassVar, Final, NamedTuple, cast

import torch
from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.tracing.accumulation_window import AccumulationWindows, parameters_of
from trueloop.tracing.events import (
    NO_REFS,
    BackwardEnded,
    BackwardLosses,
    BackwardStarted,
    Event,
    LossRecord,
    NonFiniteValue,
)
from trueloop.tracing.graph_leaves import sequence_number
from trueloop.tracing.hooks.scaling import is_scaled
from trueloop.tracing.hooks.window_leftovers import check_at_backward
from trueloop.tracing.losses import LossProbe
from trueloop.tracing.nonfinite.localise import locate_nonfinite, record_suspect_calls
from trueloop.tracing.nonfinite.loss_origin import loss_origin
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import ISOLATED_CALLER_DEPTH, user_location

SINGLE: Final = 4  # updates in a row from one backward each, after which the weights of losses are of no interest
EVERY: Final = 32  # backwards whose loss is looked at while watching lightly: not finite once is not finite ever after
TAKEN: Final = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
AGAIN: Final = 100  # updates until a loss that is not finite is told again


class _Begun(NamedTuple):
    """What is remembered while a backward runs."""

    probe: LossProbe | None
    value: float | None
    scale: float | None
    started: BackwardStarted
    order: int | None
    start_s: float


class Backward:
    """Tells `BackwardStarted`, `LossesSeen` and `BackwardEnded` while watching in full; counts backwards always.

    Backwards inside another one (reentrant checkpoints) are part of it. ``torch.autograd.grad`` leaves ``.grad`` alone
    and is not told.

    Cost: 1 us lightly; in full 15 us and 0.5 us for each parameter.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (BackwardEnded, BackwardStarted, BackwardLosses)

    def __init__(self, stream: EventStream, program: ProgramState, windows: AccumulationWindows) -> None:
        self._stream, self._program, self._windows = stream, program, windows
        self._begin = stream.isolated("backwards", self._tell_begin)
        self._end = stream.isolated("backwards", self._tell_end)
        self._check = stream.isolated("losses that are not finite", self._finite)
        self._tell_again = 0
        self._locate = stream.isolated("batches with a loss that is not finite", locate_nonfinite)
        self._leftover = stream.isolated("incomplete windows", check_at_backward)
        self._known: dict[tuple[CodePosition | None, str | None], tuple[int, tuple[LossRecord, ...]]] = {}
        """Line and last operation of a root -> times its losses were read in this stretch, and they."""

    def install_always(self, patches: Patches) -> None:
        """Replace ``torch.autograd.backward``, which ``Tensor.backward`` looks up for each call."""
        self._tell_again = 0
        patches.replace(torch.autograd, "backward", self._replacement)

    def install_full_tracing(self, patches: Patches) -> None:
        """Begin with a clean account."""
        self._windows.reset_after_gap()
        self._known.clear()
        self._program.record_losses = True

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program, check = self._stream, self._program, self._check
        check_taken(original)

        def backward(
            tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: Any = False,
            grad_variables: Any = None, inputs: Any = None,
        ) -> Any:  # fmt: skip
            elsewhere = program.training_thread != get_ident() and not (stream.active and program.is_training_thread())
            if elsewhere or program.backward_depth:
                if elsewhere and stream.active:
                    program.detect_second_thread()
                return original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            if program.leftover is not None:
                self._leftover(stream, program)
            if program.before_replicated_backward is not None:
                program.before_replicated_backward()
            begun, micro = None, stream.backward_count
            if stream.full_tracing:
                begun = self._begin(tensors, grad_tensors, retain_graph, create_graph)
            elif not micro % EVERY and stream.active:
                check(tensors)
            stream.backward_count = micro + 1
            program.backward_depth = 1
            try:
                result = original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            finally:
                program.backward_depth = 0
            if begun is not None and stream.full_tracing:
                self._end(begun)
                stream.after_backward()
            return result

        return backward

    def _finite(self, tensors: Any) -> float | None:
        """Return the first root's value, where it can be read; tell if it is not finite, and watch what follows."""
        root = tensors if isinstance(tensors, Tensor) else _first(tensors)
        value = None if root is None else _value(root)
        if root is None or value is None:
            return None
        if value - value == 0:
            return value
        if value != value or not is_scaled(root):  # noqa: PLR0124 - if infinite, GradScaler tries how far it can go
            self._tell_not_finite(root, value)
        return value

    def _tell_not_finite(self, root: Tensor, value: float) -> None:
        record_suspect_calls(self._stream, self._program)
        if self._stream.update >= self._tell_again:
            self._tell_again = self._stream.update + AGAIN
            found = loss_origin(root)
            self._stream.emit(NonFiniteValue(
                location=user_location(), what="loss", value=str(value), module="", operation=found.operation if found else "",
                operation_location=None, input_summary=found.inputs if found else "", parameters=NO_REFS,
            ))  # fmt: skip
            self._stream.request_full_tracing()
        if self._program.step_depth:  # the step's own closure: afterwards the weights are others
            self._locate(self._stream, self._program)

    def _tell_begin(self, tensors: Any, given: Any, retain: Any, create: Any) -> _Begun | None:
        root: Tensor = tensors if isinstance(tensors, Tensor) else next(iter(tensors))
        value = self._finite(root)
        node: Any = root.grad_fn
        place = user_location(ISOLATED_CALLER_DEPTH)
        program = self._program
        probe, losses = self._probe(root, place)
        scale = self._scale(root)
        started = BackwardStarted(
            location=place,
            leaf=node is None and given is None and self._made_up(root),
            retain_graph=bool(create if retain is None else retain),
            create_graph=bool(create),
            scaled=scale is not None,
            losses=losses,
            loader=program.loader,
            batch=program.batch,
            anomaly_mode=torch.is_anomaly_enabled(),
            anomaly_at=program.anomaly_at,
        )
        self._stream.emit(started)
        if probe is not None:
            self._stream.emit(BackwardLosses(location=place, losses=losses))
        self._windows.on_backward_start()
        value = None if value is None else value / (scale or 1.0)
        return _Begun(probe, value, scale, started, sequence_number(node), perf_counter())

    def _tell_end(self, begun: _Begun) -> None:
        seconds = perf_counter() - begun.start_s
        started = begun.started
        received = self._windows.on_backward_end(started, begun.scale)
        self._stream.emit(
            BackwardEnded(
                location=started.location,
                root_value=begun.value,
                losses=started.losses if begun.probe is None else begun.probe.finish(begun.scale or 1.0),
                reached_parameters=received,
                seconds=seconds,
                loader=started.loader,
                batch=started.batch,
                graph_order=begun.order,
            )
        )

    def _probe(self, root: Tensor, place: CodePosition | None) -> tuple[LossProbe | None, tuple[LossRecord, ...]]:
        """Read the losses; where an update is made of one backward, a line's first ones stand for those that follow.

        Those that were not noted, since others were expected to follow alike, are not read before the next time.
        """
        stream, program = self._stream, self._program
        noted = program.record_losses
        if (
            stream.backward_count > stream.backward_count_at_step
            or stream.window_size != 1
            or stream.same_window_updates < SINGLE
        ):
            program.record_losses = True
            probe = LossProbe(root) if noted else None
            return probe, () if probe is None else probe.losses()
        key = (place, None if root.grad_fn is None else root.grad_fn.name())
        looks, losses = self._known.setdefault(key, (0, ()))
        if looks == SINGLE or not noted:
            program.record_losses = any(looks < SINGLE for looks, _ in self._known.values())
            return None, losses
        probe = LossProbe(root, weights=False)
        self._known[key] = looks + 1, probe.losses()
        return probe, probe.losses()

    def _made_up(self, root: Tensor) -> bool:
        """True for a leaf that is nobody's parameter: it became differentiable by decree."""
        if not root.requires_grad or isinstance(root, nn.Parameter):
            return False
        return all(root is not parameter for o, _ in self._program.optimizers.items() for parameter in parameters_of(o))

    def _scale(self, root: Tensor) -> float | None:
        """Return the factor by which a GradScaler has multiplied this root; 0 where it would have to be waited for."""
        scaler = self._program.scaler and self._program.scaler()
        if scaler is None or not is_scaled(root):
            return None
        return float(scaler.get_scale()) if root.device.type == "cpu" else 0.0


def check_taken(backward: Callable[..., Any]) -> None:
    """Raise where a replacement of ``backward`` that names its parameters could not pass everything on.

    That it names them, rather than ``*args`` and ``**options``, saves half of what it costs.
    """
    taken = inspect.signature(backward)
    taken.bind(None, None, None, False, None, None)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    more = [name for name, each in taken.parameters.items() if name not in TAKEN and each.kind not in variadic]
    if more:
        raise TypeError(f"torch.autograd.backward takes {more[0]}, which is not known here")


def _first(tensors: Any) -> Tensor | None:
    """Return the first of several roots; an iterator, which torch is yet to read, is left alone."""
    several = cast("tuple[Any, ...]", tensors) if isinstance(tensors, tuple) else ()
    return next((root for root in several[:1] if isinstance(root, Tensor)), None)


def _value(root: Tensor) -> float | None:
    """Read a root that is one number on the CPU."""
    plain = type(root) is Tensor and root.is_cpu and root.numel() == 1
    return root.item() if plain and not root.is_complex() else None
