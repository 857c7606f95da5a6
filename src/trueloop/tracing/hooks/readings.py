"""Reads numbers for the curves of a run: each loss that the program reads itself, and an update every second."""

import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, LossesRead, NumbersSampled
from trueloop.tracing.gradients import parameters_of
from trueloop.tracing.graph_leaves import sequence_number
from trueloop.tracing.hooks.optimizers import read_gradients
from trueloop.tracing.hooks.scaling import is_scaled
from trueloop.tracing.hooks.schedules import learning_rates
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import function_modes
from trueloop.tracing.user_location import is_trueloop_code

_OPTIMIZERS: Final = str(Path(torch.optim.__file__).parent)
"""Folder of PyTorch's optimizers, which read their numbers of steps in every update."""
SAMPLE_INTERVAL_S: Final = 1.0
MAX_FACTORS: Final = 4  # operations from a root to the loss that the program reads: a scale, a division by the window
MAX_UNMATCHED: Final = 8  # numbers with a graph that are read before a backward pass
FULL_BATCH: Final = 64  # losses after which an event is emitted at the next update
MAX_LOSSES: Final = 1024  # in one event
_SCALINGS: Final = frozenset(("DivBackward0", "MulBackward0"))


@dataclass(slots=True)
class _Root:
    """The root of the latest backward pass."""

    update: int
    """Number of updates before the backward pass."""
    orders: tuple[int | None, ...]
    """Sequence numbers of the root and of what it was scaled from."""
    reference: weakref.ref[Tensor]
    read: float | None
    """What the program read: the root, or what it is a multiple of; None = neither."""

    def shares_storage(self, tensor: Tensor) -> bool:
        """Return True for a detached copy of the root, whose memory is not free yet."""
        root = self.reference()
        return root is not None and has_storage(tensor) and tensor.data_ptr() == root.data_ptr() != 0


class Readings(Hook):
    """Emits `LossesRead` and, in sampled tracing, `NumbersSampled` once a second and after the last update.

    A number that the program reads is a loss if a backward pass starts from it, or from a multiple of it. Findings must
    not depend on the clock, so no detector subscribes to these events.

    Cost: 2 us for each backward pass, 1.5 us for each ``item()``. No synchronisation of a GPU.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (LossesRead, NumbersSampled)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._on_root = stream.isolated("losses", self._record_root)
        self._on_read = stream.isolated("losses that the program reads", self._record_read)
        self._emit = stream.isolated("the latest numbers", self._emit_due)
        self._finish = stream.isolated("the last numbers", self._emit_last)
        self._has_converted = False
        """Whether ``float()`` of a tensor with a graph was called, about which PyTorch warns once."""
        self._reset()

    def _reset(self) -> None:
        self._root: _Root | None = None
        self._unmatched = dict[int, float]()
        """Sequence number -> value of each number with a graph that was read since the latest backward pass."""
        self._losses = deque[tuple[int, float]](maxlen=MAX_LOSSES)
        """The losses that were read and not emitted yet, each with the number of updates before it."""
        self._due_s = perf_counter() + SAMPLE_INTERVAL_S
        self._sampled_update = -1

    def install_always(self, patches: Patches) -> None:
        """Receive backward passes, and replace the two methods by which a program reads a number."""
        self._reset()
        self._program.before_backward.insert(0, self._before_backward)  # before an update by hand is counted
        patches.replace(Tensor, "item", self._reader)
        patches.replace(Tensor, "__float__", lambda original: self._reader(self._first_conversion(original)))
        self._program.after_step.append(self._after_step)
        self._stream.on_detach.append(self._finish)
        patches.add_undo(self._forget)

    def _forget(self) -> None:
        for calls in (self._program.before_backward, self._program.after_step, self._stream.on_detach):
            for call in (self._before_backward, self._after_step, self._finish):
                if call in calls:
                    calls.remove(call)

    def _before_backward(self) -> None:
        root = self._program.starting_roots
        if type(root) is Tensor and self._stream.active:
            self._on_root(root)

    def _reader(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        stream, on_read = self._stream, self._on_read

        def read(tensor: Any) -> Any:
            value = original(tensor)
            if type(value) is float and stream.active and type(tensor) is Tensor:
                caller = sys._getframe(1).f_code  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
                if not caller.co_filename.startswith(_OPTIMIZERS) and not is_trueloop_code(caller):
                    on_read(tensor, value)
            return value

        return read

    def _first_conversion(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return ``__float__``, whose warning about the first tensor with a graph names the line of the program."""

        def convert(tensor: Any) -> Any:
            if self._has_converted or type(tensor) is not Tensor or function_modes() or not tensor.requires_grad:
                return original(tensor)
            self._has_converted = True
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                value = original(tensor)
            for each in caught:
                warnings.warn(each.message, stacklevel=3)  # past the two replacements
            return value

        return convert

    def _record_root(self, root: Tensor) -> None:
        if root.numel() != 1 or not has_storage(root):
            return
        orders, value = _orders(root), None
        if self._unmatched:
            value = next((self._unmatched[order] for order in orders if order in self._unmatched), None)
            self._unmatched.clear()
        self._root = _Root(self._stream.update, orders, weakref.ref(root), value)
        if value is not None:
            self._losses.append((self._root.update, value))

    def _record_read(self, tensor: Tensor, value: float) -> None:
        if self._program.is_other_thread():
            return
        root, node = self._root, tensor.grad_fn
        order = None if node is None else sequence_number(node)
        if root is not None and (root.shares_storage(tensor) if order is None else order in root.orders):
            if root.read is None:
                self._losses.append((root.update, value))
                root.read = value
        elif order is not None and len(self._unmatched) < MAX_UNMATCHED:
            self._unmatched[order] = value

    def _after_step(self) -> None:
        if perf_counter() >= self._due_s or len(self._losses) >= FULL_BATCH:
            self._emit()

    def _emit_due(self) -> None:
        stream, now_s = self._stream, perf_counter()
        if stream.before_event is not None:  # an update that the program writes itself is not reported yet
            return
        self._emit_losses()
        if now_s >= self._due_s:
            self._due_s = now_s + SAMPLE_INTERVAL_S
            if not stream.full_tracing:
                self._emit_numbers(stream.update)

    def _emit_last(self) -> None:
        self._emit_losses()
        last = self._stream.update - 1
        if last > self._sampled_update and not self._stream.full_tracing:
            self._emit_numbers(last)

    def _emit_losses(self) -> None:
        if self._losses:
            self._stream.emit(LossesRead(losses=tuple(self._losses)))
            self._losses.clear()

    def _emit_numbers(self, step: int) -> None:
        optimizer = self._program.latest_optimizer()
        if optimizer is None or self._program.is_other_thread():
            return
        self._sampled_update = step
        tensors = parameters_of(optimizer)
        refs, parameters = self._stream.registry.ordered_refs(tensors)
        _, norms = read_gradients(dict(zip(refs, tensors, strict=True)), parameters)
        self._stream.emit(
            NumbersSampled(
                step=step,
                optimizer=self._stream.registry.ref(optimizer),
                loss=self._root_value(step),
                learning_rates=learning_rates(optimizer),
                gradient_norms=norms,
            )
        )

    def _root_value(self, step: int) -> float | None:
        latest = self._root
        if latest is None or latest.update != step:
            return None
        root = latest.reference()
        if root is None:
            return latest.read if len(latest.orders) == 1 else None
        return None if not root.is_cpu or is_scaled(root) or root.is_complex() else float(root.detach())


def _orders(root: Tensor) -> tuple[int | None, ...]:
    """Return the sequence numbers of a root, and of the number that it is a multiple of."""
    node: Any = root.grad_fn
    orders: list[int | None] = []
    while node is not None and len(orders) <= MAX_FACTORS:
        orders.append(sequence_number(node))
        if node.name() not in _SCALINGS:
            break
        factors = [each for each, _ in node.next_functions if each is not None]
        node = factors[0] if len(factors) == 1 else None
    return tuple(orders)
