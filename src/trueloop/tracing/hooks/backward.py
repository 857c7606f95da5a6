"""Traces backward passes: the losses they start from, and the gradients they create or add to."""

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident
from time import perf_counter
from typing import Any, ClassVar, Final, NamedTuple, cast

import torch
from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import (
    NO_REFS,
    BackwardEnded,
    BackwardLosses,
    BackwardStarted,
    Event,
    LossRecord,
    NonFiniteValue,
    Ref,
)
from trueloop.tracing.gradients import Version, parameters_of, version_of
from trueloop.tracing.graph_leaves import sequence_number
from trueloop.tracing.hooks.scaling import is_scaled
from trueloop.tracing.losses import LossProbe
from trueloop.tracing.nonfinite.localise import locate_nonfinite, record_suspect_calls
from trueloop.tracing.nonfinite.loss_origin import find_loss_origin
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import ISOLATED_CALLER_DEPTH, user_location

SINGLE_BACKWARD_UPDATES: Final = 4
"""After so many updates in a row with one backward pass each, the weights of the losses are no longer read."""
READS_PER_LINE: Final = 4  # times that the losses of a line are read in one interval
REREAD_INTERVAL: Final = 32  # updates after which the losses of the same line are read again
CHECK_INTERVAL: Final = 32  # backward passes between two checks of the loss in sampled tracing: NaN rarely recovers
KNOWN_PARAMETERS: Final = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
REPORT_INTERVAL: Final = 100  # updates until a non-finite loss is reported again


class _Running(NamedTuple):
    """State of a running backward pass."""

    probe: LossProbe | None
    value: float | None
    scale: float | None
    """GradScaler's factor in the gradients; 0 = the factor was not read, None = the loss is not scaled."""
    started: BackwardStarted
    parameters: Mapping[Ref, Tensor]
    gradients: Sequence[tuple[Tensor, Version] | None]
    """The gradient of each of the parameters, and its version.

    They stay in memory until the backward pass ends. With ``create_graph=True`` it replaces them by new tensors, and a
    new one could otherwise have the address of the old one."""
    graph_order: int | None
    start_s: float


class Backward:
    """Emits `BackwardStarted`, `BackwardLosses` and `BackwardEnded` during full tracing; always counts backward passes.

    A backward pass inside another one (of a reentrant checkpoint) is not counted. ``torch.autograd.grad`` is traced
    only where `GradientCalls` passes it through here.

    Cost: 1 us in sampled tracing; in full tracing 15 us, and 0.5 us for each parameter.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (BackwardEnded, BackwardStarted, BackwardLosses)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        program.on_thread_change.append(self._forget_parameters)
        self._parameters: Sequence[tuple[weakref.ref[Tensor], Ref, bool]] = ()
        """Every parameter that may get a gradient, and whether an optimizer has it. Others may not be leaves any
        longer, as in a teacher model that is averaged with gradients enabled."""
        self._parameters_key: tuple[int, ...] = ()
        self._start = stream.isolated("backward passes", self._on_start)
        self._finish = stream.isolated("backward passes", self._on_end)
        self._check_finite = stream.isolated("non-finite losses", self._check_root)
        self._next_report = 0
        self._locate_nonfinite = stream.isolated("batches with a non-finite loss", locate_nonfinite)
        self._losses_of_line: dict[tuple[CodePosition | None, str | None], tuple[int, tuple[LossRecord, ...]]] = {}
        """Line and last operation of a root -> how often its losses were read in this interval, and these losses."""
        self._interval = 0

    def install_always(self, patches: Patches) -> None:
        """Replace ``torch.autograd.backward``, which ``Tensor.backward`` looks up at each call."""
        self._next_report = 0
        patches.replace(torch.autograd, "backward", self._replacement)

    def install_full_tracing(self, patches: Patches) -> None:
        """Read losses again, and look for parameters again."""
        self._forget_parameters()
        self._losses_of_line.clear()
        self._program.record_losses = True

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program, check_finite = self._stream, self._program, self._check_finite
        check_signature(original)

        def backward(
            tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: Any = False,
            grad_variables: Any = None, inputs: Any = None,
        ) -> Any:  # fmt: skip
            other_thread = program.training_thread != get_ident() and not (
                stream.active and program.is_training_thread()
            )
            if other_thread or program.backward_depth:
                if other_thread and stream.active:
                    program.detect_second_thread()
                return original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            if program.before_backward:
                program.starting_roots = tensors
                for call in program.before_backward[:]:  # a copy, as some remove themselves
                    call()
                program.starting_roots = None
            running, backwards = None, stream.backward_count
            if stream.full_tracing:
                running = self._start(tensors, grad_tensors, retain_graph, create_graph)
            elif not backwards % CHECK_INTERVAL and stream.active:
                check_finite(tensors)
            stream.backward_count = backwards + 1
            program.backward_depth = 1
            try:
                result = original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            finally:
                program.backward_depth = 0
            if running is not None and stream.full_tracing:
                self._finish(running)
                stream.after_backward()
            return result

        return backward

    def _check_root(self, tensors: Any) -> float | None:
        """Return the first root's value if it is readable; report a non-finite one and request full tracing."""
        root = tensors if isinstance(tensors, Tensor) else _first(tensors)
        value = None if root is None else _value(root)
        if root is None or value is None:
            return None
        if value - value == 0:
            return value
        # an infinite scaled loss is normal and not reported: GradScaler tries a larger factor
        if value != value or not is_scaled(root):  # noqa: PLR0124
            self._report_nonfinite(root, value)
        return value

    def _report_nonfinite(self, root: Tensor, value: float) -> None:
        record_suspect_calls(self._stream, self._program)
        if self._stream.update >= self._next_report:
            self._next_report = self._stream.update + REPORT_INTERVAL
            found = find_loss_origin(root)
            self._stream.emit(
                NonFiniteValue(
                    location=user_location(),
                    what="loss",
                    value=str(value),
                    module="",
                    operation=found.operation if found else "",
                    operation_location=None,
                    input_summary=found.inputs if found else "",
                    parameters=NO_REFS,
                )
            )
            self._stream.request_full_tracing()
        # inside an optimizer's closure: locate it now, before the step changes the weights
        if self._program.step_depth:
            self._locate_nonfinite(self._stream, self._program)

    def _on_start(self, tensors: Any, grad_tensors: Any, retain: Any, create: Any) -> _Running | None:
        root: Tensor = tensors if isinstance(tensors, Tensor) else next(iter(tensors))
        value = self._check_root(root)
        node: Any = root.grad_fn
        location = user_location(ISOLATED_CALLER_DEPTH)
        program = self._program
        probe, losses = self._read_losses(root, location)
        scale, parameters = self._scale_of(root), self._live_parameters()
        started = BackwardStarted(
            location=location,
            leaf=node is None and grad_tensors is None and self._is_artificial_leaf(root),
            retain_graph=bool(create if retain is None else retain),
            create_graph=bool(create),
            losses=losses,
            loader=program.loader,
            batch=program.batch,
            live_parameters=parameters,
        )
        self._stream.emit(started)
        if probe is not None:
            self._stream.emit(BackwardLosses(location=location, losses=losses))
        if program.on_backward_start:
            roots = tuple(tensors) if isinstance(tensors, list | tuple) else (root,)
            for call in program.on_backward_start:
                call(roots)
        value = None if value is None else value / (scale or 1.0)
        gradients = [None if (grad := each.grad) is None else (grad, version_of(grad)) for each in parameters.values()]
        return _Running(probe, value, scale, started, parameters, gradients, sequence_number(node), perf_counter())

    def _on_end(self, running: _Running) -> None:
        seconds = perf_counter() - running.start_s
        started = running.started
        reached = [
            parameter
            for parameter, gradient in zip(running.parameters.values(), running.gradients, strict=True)
            if (parameter.grad is not None if gradient is None else _has_changed(parameter.grad, gradient))
        ]
        reached_parameters = self._stream.registry.refs(reached)
        self._stream.emit(
            BackwardEnded(
                location=started.location,
                root_value=running.value,
                losses=started.losses if running.probe is None else running.probe.finish(running.scale or 1.0),
                reached_parameters=reached_parameters,
                seconds=seconds,
                loader=started.loader,
                batch=started.batch,
                live_parameters=running.parameters,
                scale=running.scale,
                graph_order=running.graph_order,
            )
        )
        for call in self._program.after_traced_backward:
            call(reached_parameters, started.location)

    def _live_parameters(self) -> dict[Ref, Tensor]:
        """Return the parameters that may get a gradient: of models called and optimizers stepped in this thread."""
        program, optimizers = self._program, self._program.training_optimizers()
        key = (program.structure_changes, *[len(optimizer.param_groups) for optimizer in optimizers])
        if program.multi_threaded or key != self._parameters_key:
            self._parameters_key = key
            self._parameters = self._find_parameters([p for o in optimizers for p in parameters_of(o)])
        return {
            ref: parameter
            for reference, ref, in_optimizer in self._parameters
            if (parameter := reference()) is not None and (in_optimizer or parameter.is_leaf)
        }

    def _find_parameters(self, in_optimizers: Sequence[Tensor]) -> Sequence[tuple[weakref.ref[Tensor], Ref, bool]]:
        program = self._program
        own_thread, ids = program.thread_number(), set(map(id, in_optimizers))
        found = {} if program.multi_threaded else {id(parameter): parameter for parameter in in_optimizers}
        for model, (thread, update) in program.models.items():
            if thread == own_thread and (update == self._stream.update or not program.multi_threaded):
                found.update((id(parameter), parameter) for parameter in model.parameters())
        ref = self._stream.registry.ref
        return [(weakref.ref(parameter), ref(parameter), key in ids) for key, parameter in found.items()]

    def _forget_parameters(self) -> None:
        self._parameters_key, self._parameters = (), ()

    def _read_losses(
        self, root: Tensor, location: CodePosition | None
    ) -> tuple[LossProbe | None, tuple[LossRecord, ...]]:
        """Read the losses; if every update has one backward pass, only a few times for each line and interval.

        If `record_losses` was off during the forward pass, nothing is read now; the next backward pass is read instead.
        """
        stream, program = self._stream, self._program
        recorded = program.record_losses
        if (
            stream.backward_count > stream.backward_count_at_step
            or stream.window_size != 1
            or stream.same_window_updates < SINGLE_BACKWARD_UPDATES
        ):
            program.record_losses = True
            probe = LossProbe(root) if recorded else None
            return probe, () if probe is None else probe.losses()
        if stream.update // REREAD_INTERVAL != self._interval:
            self._interval = stream.update // REREAD_INTERVAL
            self._losses_of_line.clear()
        key = (location, None if root.grad_fn is None else root.grad_fn.name())
        times, losses = self._losses_of_line.setdefault(key, (0, ()))
        if times == READS_PER_LINE or not recorded:
            program.record_losses = any(times < READS_PER_LINE for times, _ in self._losses_of_line.values())
            return None, losses
        probe = LossProbe(root, weights=False)
        self._losses_of_line[key] = times + 1, probe.losses()
        return probe, probe.losses()

    def _is_artificial_leaf(self, root: Tensor) -> bool:
        """Return True for a leaf that is not a parameter: the program called ``requires_grad_`` on the loss."""
        if not root.requires_grad or isinstance(root, nn.Parameter):
            return False
        return all(root is not parameter for o, _ in self._program.optimizers.items() for parameter in parameters_of(o))

    def _scale_of(self, root: Tensor) -> float | None:
        """Return GradScaler's factor in a root; 0 if it is on a GPU and not read, None if the root is not scaled."""
        scaler = self._program.scaler and self._program.scaler()
        if scaler is None or not is_scaled(root):
            return None
        return float(scaler.get_scale()) if root.device.type == "cpu" else 0.0


def _has_changed(gradient: Tensor | None, before: tuple[Tensor, Version]) -> bool:
    return gradient is None or gradient is not before[0] or version_of(gradient) != before[1]


def nodes_below(roots: Iterable[Tensor], limit: int) -> list[Any]:
    """Return the nodes of a graph without those of parameters, which all graphs share; not many more than a limit."""
    found = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(found)
    for node in found:
        for below, _ in node.next_functions:
            if below is not None and below not in seen and below.name() != "torch::autograd::AccumulateGrad":
                seen.add(below)
                found.append(below)
        if len(found) >= limit:
            break
    return found


def check_signature(backward: Callable[..., Any]) -> None:
    """Raise TypeError if ``backward`` has parameters that its replacements would not pass on.

    The replacements name their parameters, since ``*args`` and ``**options`` would double the overhead.
    """
    signature = inspect.signature(backward)
    signature.bind(None, None, None, False, None, None)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    unknown = [
        name
        for name, each in signature.parameters.items()
        if name not in KNOWN_PARAMETERS and each.kind not in variadic
    ]
    if unknown:
        raise TypeError(f"torch.autograd.backward takes {unknown[0]}, which trueloop does not know")


def _first(tensors: Any) -> Tensor | None:
    """Return the first root in a tuple; None for an iterator, which PyTorch still has to read."""
    several = cast("tuple[Any, ...]", tensors) if isinstance(tensors, tuple) else ()
    return next((root for root in several[:1] if isinstance(root, Tensor)), None)


def _value(root: Tensor) -> float | None:
    """Return the value of a root that is a real scalar on the CPU; None for other roots."""
    plain = type(root) is Tensor and root.is_cpu and root.numel() == 1
    return root.item() if plain and not root.is_complex() else None
