"""The state of the traced program that hooks share: training thread, optimizers, models, current batch, depths."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor, nn
from torch.optim import Optimizer

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import Ref
from trueloop.tracing.nonfinite.replay import RecordedCall
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_CALLS: Final = 4  # a model, its loss, and the same of an adversary


@dataclass(slots=True, kw_only=True)
class IncompleteWindowState:
    """Gradients that were accumulated when a loader ended within a window."""

    loader: Ref
    batches: int
    backwards: int
    window_size: int
    location: CodePosition | None
    gradients: dict[int, tuple[weakref.ref[Tensor], int, int]]
    """Parameter, by id -> it, its gradient's id, and the gradient's version."""
    still_present: bool = False
    """The gradients had not been cleared at the next backward."""


@dataclass(slots=True)
class OptimizerState:
    """One optimizer: its steps, and what full tracing has seen of it since the latest one."""

    steps: int = 0
    """Number of steps so far."""
    in_training_thread: bool = False
    """It has stepped in the training thread."""
    backwards: int = 0
    """Number of backwards that reached one of its parameters since its latest step."""
    grad_norm_after_backward: float | None = None
    """Joint norm of its gradients after the latest backward, read in windows of several backwards."""
    cleared_at: CodePosition | None = None
    """The latest clearing of its gradients, if no backward has reached them since."""
    sample_gradient: tuple[weakref.ref[Tensor], weakref.ref[Tensor]] | None = None
    """One of its parameters, and that one's gradient after the latest backward."""
    fully_traced: bool = False
    """Everything was traced since its latest step, or since it was created."""

    def start_window(self, *, fully_traced: bool) -> None:
        """Begin the next window."""
        self.backwards, self.fully_traced = 0, fully_traced
        self.cleared_at = self.grad_norm_after_backward = self.sample_gradient = None

    def gradients_replaced(self) -> bool:
        """Return True if the gradient is another object than after the latest backward: the program assigned it."""
        parameter = self.sample_gradient and self.sample_gradient[0]()
        gradient = None if parameter is None else parameter.grad
        return self.sample_gradient is not None and gradient is not None and self.sample_gradient[1]() is not gradient


class _ThreadSentinel:
    """A thread-local of the training thread; when the thread ends it frees the role, before the ident is reused."""

    def __init__(self, program: ProgramState, thread: int) -> None:
        self._program, self._thread = program, thread

    def __del__(self) -> None:
        if self._program.training_thread == self._thread:
            self._program.training_thread = None


_thread_numbers = itertools.count()


@dataclass(slots=True)
class ProgramState:
    """The state of the traced program; keeps none of the program's objects alive."""

    training_thread: int | None = None
    """The first thread to run backward or step. Gradients of other threads must not be touched, as PyTorch may write
    them at any moment; those threads are not traced."""
    multi_threaded: bool = False
    """Another thread runs backward, too, and may later train what this one trains: only gradients of models called
    since the latest step are inspected."""
    models: WeakIdDict[nn.Module, tuple[int, int]] = field(default_factory=WeakIdDict[nn.Module, tuple[int, int]])
    """Outermost modules with parameters that were called -> the thread of the latest call, by `thread_number`, and the
    updates before it."""
    structure_changes: int = 0
    """How often a model was found to have other parameters than before."""
    optimizers: WeakIdDict[Optimizer, OptimizerState] = field(default_factory=WeakIdDict[Optimizer, OptimizerState])
    """Optimizers that were created or have stepped while tracing was active."""
    optimizers_seen: int = 0
    """Number of those so far, including the ones that no longer exist."""
    loader_pass: Any = None
    """The pass over a loader that returned the latest batch; it counts its own batches, see ``batch``."""
    batches_before_pass: int = 0
    """Batches returned by all loaders so far, without those that ``loader_pass`` counts."""
    batch_sizes: frozenset[tuple[int, int]] | None = None
    """First dimension and number of values of each tensor in the latest fully traced batch, if
    ``record_batch_sizes``."""
    record_batch_sizes: bool = False
    anomaly_at: CodePosition | None = None
    """Where ``detect_anomaly`` was last switched on during full tracing."""
    seeded_at: CodePosition | None = None
    """The latest ``torch.manual_seed`` since a shuffling loader was started."""
    leftover: IncompleteWindowState | None = None
    """Gradients accumulated at a loader's end that no step has used yet."""
    before_replicated_backward: Callable[[], None] | None = None
    """Called before each backward if a model is replicated."""
    calls: deque[RecordedCall] = field(default_factory=lambda: deque[RecordedCall](maxlen=MAX_CALLS))
    """The newest calls of outermost modules that make a graph, recorded during full tracing."""
    nonfinite_calls: tuple[RecordedCall, ...] = ()
    """Recorded calls before a non-finite loss."""
    replayed: bool = False
    """Calls were replayed to locate a non-finite value, which is done once."""
    forward_depth: int = 0
    """Depth of module calls; 0 = outside."""
    functional_dropout_active: bool = False
    """Functional dropout was applied within the latest outermost module call because its module is in train mode."""
    backward_depth: int = 0
    """Depth of backward; recomputation and reentrant checkpoints run inside."""
    step_depth: int = 0
    """Depth of optimizer steps; a closure's forward and backward run inside."""
    record_losses: bool = True
    """The next backward reads its losses, so the lines that compute them are recorded."""
    scaler: weakref.ref[Any] | None = None
    """The GradScaler that scaled the newest loss, if it is enabled."""
    stepping_scaler: weakref.ref[Any] | None = None
    """The GradScaler whose ``step`` is running."""
    autocast: str | None = None
    """The autocast type of the newest model call that made a graph."""
    on_thread_change: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Called before another thread becomes the training thread: what is known of gradients is no longer valid."""
    _thread_local: threading.local = field(default_factory=threading.local)
    _lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork_in_child)

    def is_training_thread(self) -> bool:
        """Return True on the training thread; if there is none, or it has ended, this thread becomes it."""
        here = threading.get_ident()
        if self.training_thread is None:
            with self._lock:
                if self.training_thread is None:
                    self._set_training_thread(here)
        return self.training_thread == here

    def thread_number(self) -> int:
        """Return a number of this thread that, unlike Python's ident, is never reused."""
        try:
            return self._thread_local.number
        except AttributeError:
            number = self._thread_local.number = next(_thread_numbers)
            return number

    def detect_second_thread(self) -> None:
        """Set ``multi_threaded`` in a backward on another thread, except PyTorch's own for the training thread."""
        here = threading.get_ident()
        if not self.multi_threaded:
            self.multi_threaded = not self.backward_depth or any(each.ident == here for each in threading.enumerate())

    @property
    def loader(self) -> Ref | None:
        """The loader that returned the latest batch."""
        return None if self.loader_pass is None else self.loader_pass.loader

    @property
    def batch(self) -> int:
        """Number of batches that all loaders have returned so far."""
        return self.batches_before_pass + (0 if self.loader_pass is None else self.loader_pass.index)

    def set_loader_pass(self, current: Any) -> None:
        """Record that the latest batch came from another pass than the one before; it is not counted yet."""
        self.batches_before_pass = self.batch - current.index
        self.loader_pass = current

    def is_other_thread(self) -> bool:
        """Return True on a thread other than the training thread."""
        return self.training_thread is not None and self.training_thread != threading.get_ident()

    def training_optimizers(self) -> list[Optimizer]:
        """Return the optimizers that have stepped in the training thread."""
        return [optimizer for optimizer, state in self.optimizers.items() if state.in_training_thread]

    def _after_fork_in_child(self) -> None:
        """Forget the training thread in a forked child, where nothing is traced."""
        self.training_thread = None
        self._lock = threading.RLock()

    def _set_training_thread(self, thread: int) -> None:
        self._reset_optimizers()
        for forget in self.on_thread_change:
            forget()
        number = self.thread_number()
        calls = [call for call in list(self.calls) if call.thread == number]  # others record theirs meanwhile
        self.calls.clear()
        self.calls.extend(calls)
        self.nonfinite_calls, self.leftover = (), None
        self._thread_local.sentinel = _ThreadSentinel(self, thread)
        self.training_thread = thread

    def _reset_optimizers(self) -> None:
        for state in self.optimizers.values():
            if state.in_training_thread:
                state.in_training_thread = False
                state.start_window(fully_traced=False)

    def reset(self) -> None:
        """Forget what was going on during an earlier watch; known objects stay known."""
        self.training_thread, self.multi_threaded = None, False
        self._reset_optimizers()
        self.calls.clear()
        self.nonfinite_calls, self.replayed = (), False
        self.anomaly_at = None
        self.forward_depth = self.backward_depth = self.step_depth = 0
        self.batch_sizes, self.record_batch_sizes = None, False
        self.batches_before_pass, self.loader_pass = self.batch, None
        self.leftover = self.scaler = self.stepping_scaler = self.autocast = None
