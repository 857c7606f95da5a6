"""The state of the traced program that hooks share: training thread, optimizers, models, latest batch, call depths."""

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

MAX_CALLS: Final = 4  # recorded calls: a model and its loss, and those of an adversary


@dataclass(slots=True, kw_only=True)
class IncompleteWindowState:
    """Gradients that were accumulated when a loader ended within a window."""

    loader: Ref
    batches: int
    backwards: int
    window_size: int
    location: CodePosition | None
    gradients: dict[int, tuple[weakref.ref[Tensor], int, int]]
    """Id of a parameter -> the parameter, and the id and version of its gradient."""
    still_present: bool = False
    """Whether the gradients were still there at the next backward pass."""


@dataclass(slots=True)
class OptimizerState:
    """The steps of one optimizer, and what full tracing has recorded since its latest step."""

    steps: int = 0
    """Number of steps so far."""
    in_training_thread: bool = False
    """Whether the optimizer has stepped in the training thread."""
    backwards: int = 0
    """Number of backward passes that reached one of its parameters since its latest step."""
    grad_norm_after_backward: float | None = None
    """Joint norm of its gradients after the latest backward pass, read in windows of several of them."""
    cleared_at: CodePosition | None = None
    """The line that cleared its gradients, if no backward pass has reached them since."""
    sample_gradient: tuple[weakref.ref[Tensor], weakref.ref[Tensor]] | None = None
    """One of its parameters, and the gradient of that parameter after the latest backward pass."""
    fully_traced: bool = False
    """Whether tracing was complete since its latest step, or since its creation if it has not stepped."""

    def start_window(self, *, fully_traced: bool) -> None:
        """Begin the next window."""
        self.backwards, self.fully_traced = 0, fully_traced
        self.cleared_at = self.grad_norm_after_backward = self.sample_gradient = None

    def gradients_replaced(self) -> bool:
        """Return True if the program has assigned other gradients since the latest backward pass."""
        parameter = self.sample_gradient and self.sample_gradient[0]()
        gradient = None if parameter is None else parameter.grad
        return self.sample_gradient is not None and gradient is not None and self.sample_gradient[1]() is not gradient


class _ThreadSentinel:
    """A thread-local object that unsets ``training_thread`` when the thread ends, before its ident is reused."""

    def __init__(self, program: ProgramState, thread: int) -> None:
        self._program, self._thread = program, thread

    def __del__(self) -> None:
        if self._program.training_thread == self._thread:
            self._program.training_thread = None


_thread_numbers = itertools.count()


@dataclass(slots=True)
class ProgramState:
    """The state of the traced program; it does not keep the program's objects in memory."""

    training_thread: int | None = None
    """Ident of the first thread that ran a backward pass or a step. Other threads are not traced: their gradients must
    not be read, as PyTorch may write them at any moment."""
    multi_threaded: bool = False
    """Whether another thread runs backward passes too. It may later train the same models, so only gradients of models
    called since the latest step are inspected."""
    models: WeakIdDict[nn.Module, tuple[int, int]] = field(default_factory=WeakIdDict[nn.Module, tuple[int, int]])
    """Called outermost module with parameters -> `thread_number` of its latest call, and the number of updates before
    that call."""
    structure_changes: int = 0
    """Number of times that a called model was new, or had other parameters than at its previous call."""
    optimizers: WeakIdDict[Optimizer, OptimizerState] = field(default_factory=WeakIdDict[Optimizer, OptimizerState])
    """Optimizers that were created or have stepped while tracing was active."""
    optimizers_seen: int = 0
    """Number of these optimizers so far, including those that no longer exist."""
    loader_pass: Any = None
    """The pass over a loader that returned the latest batch; see ``batch``."""
    batches_before_pass: int = 0
    """Number of batches that all loaders have returned so far, without those of ``loader_pass``."""
    batch_sizes: frozenset[tuple[int, int]] | None = None
    """Size of the first dimension and number of elements of each tensor in the latest fully traced batch, if
    ``record_batch_sizes``."""
    record_batch_sizes: bool = False
    anomaly_at: CodePosition | None = None
    """The line that last switched anomaly detection on during full tracing."""
    seeded_at: CodePosition | None = None
    """The line of the latest ``torch.manual_seed`` since a shuffling loader was started."""
    leftover: IncompleteWindowState | None = None
    """Gradients that were accumulated when a loader ended, and that no step has used yet."""
    before_replicated_backward: Callable[[], None] | None = None
    """Called before each backward pass if a model is replicated."""
    calls: deque[RecordedCall] = field(default_factory=lambda: deque[RecordedCall](maxlen=MAX_CALLS))
    """The latest calls of outermost modules with gradients enabled, recorded during full tracing."""
    nonfinite_calls: tuple[RecordedCall, ...] = ()
    """The recorded calls that computed a non-finite loss."""
    replayed: bool = False
    """Whether calls were replayed to locate a non-finite value, which is done once."""
    forward_depth: int = 0
    """1 while an outermost module is called, otherwise 0."""
    functional_dropout_active: bool = False
    """Whether the latest call of an outermost module applied functional dropout because of train mode."""
    backward_depth: int = 0
    """1 during a backward pass, otherwise 0. Recomputation and reentrant checkpoints run within the pass."""
    step_depth: int = 0
    """Number of nested optimizer steps that are running; the forward and backward of a closure run within a step."""
    record_losses: bool = True
    """Whether the lines of losses are recorded, since the next backward pass reads its losses."""
    scaler: weakref.ref[Any] | None = None
    """The enabled GradScaler that scaled the latest loss."""
    stepping_scaler: weakref.ref[Any] | None = None
    """The GradScaler whose ``step`` is running."""
    autocast: str | None = None
    """Autocast type of the latest model call with gradients enabled; None = autocast was off."""
    on_thread_change: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Called before another thread becomes the training thread, when records about gradients become invalid."""
    _thread_local: threading.local = field(default_factory=threading.local)
    _lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork_in_child)

    def is_training_thread(self) -> bool:
        """Return True on the training thread; without a running training thread, this one becomes it."""
        ident = threading.get_ident()
        if self.training_thread is None:
            with self._lock:
                if self.training_thread is None:
                    self._set_training_thread(ident)
        return self.training_thread == ident

    def thread_number(self) -> int:
        """Return the number of this thread, which is never reused, unlike Python's ident."""
        try:
            return self._thread_local.number
        except AttributeError:
            number = self._thread_local.number = next(_thread_numbers)
            return number

    def detect_second_thread(self) -> None:
        """Set ``multi_threaded`` if a thread of Python, not of the autograd engine, runs a second backward pass."""
        ident = threading.get_ident()
        if not self.multi_threaded:
            self.multi_threaded = not self.backward_depth or any(each.ident == ident for each in threading.enumerate())

    @property
    def loader(self) -> Ref | None:
        """The loader that returned the latest batch."""
        return None if self.loader_pass is None else self.loader_pass.loader

    @property
    def batch(self) -> int:
        """Number of batches that all loaders have returned so far."""
        return self.batches_before_pass + (0 if self.loader_pass is None else self.loader_pass.index)

    def set_loader_pass(self, current: Any) -> None:
        """Record that another pass returned the latest batch, which the pass has not counted yet."""
        self.batches_before_pass = self.batch - current.index
        self.loader_pass = current

    def is_other_thread(self) -> bool:
        """Return True on a thread other than the training thread."""
        return self.training_thread is not None and self.training_thread != threading.get_ident()

    def training_optimizers(self) -> list[Optimizer]:
        """Return the existing optimizers that have stepped in the training thread."""
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
        calls = [
            call for call in list(self.calls) if call.thread == number
        ]  # other threads record calls at the same time
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
        """Reset the state that belongs to an earlier watch, but not the known objects."""
        self.training_thread, self.multi_threaded = None, False
        self._reset_optimizers()
        self.calls.clear()
        self.nonfinite_calls, self.replayed = (), False
        self.anomaly_at = None
        self.forward_depth = self.backward_depth = self.step_depth = 0
        self.batch_sizes, self.record_batch_sizes = None, False
        self.batches_before_pass, self.loader_pass = self.batch, None
        self.leftover = self.scaler = self.stepping_scaler = self.autocast = None
