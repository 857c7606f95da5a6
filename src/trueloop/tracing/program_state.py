"""The state of the traced program that hooks share: training thread, optimizers, models, latest batch, call depths."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor, nn
from torch.optim import Optimizer

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import ModelCalled, Ref, Refs
from trueloop.tracing.nonfinite.replay import RecordedCall
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_CALLS: Final = 4  # recorded calls: a model and its loss, and those of an adversary


@dataclass(slots=True)
class OptimizerState:
    """The steps of one optimizer."""

    steps: int = 0
    """Number of steps so far."""
    in_training_thread: bool = False
    """Whether the optimizer has stepped in the training thread."""
    fully_traced: bool = False
    """Whether tracing was complete since its latest step, or since its creation if it has not stepped."""


class HandWrittenOptimizer:
    """Parameters that the program updates together without ``torch.optim``, in place of their optimizer."""

    def __init__(self, parameters: Iterable[weakref.ref[Tensor]]) -> None:
        self._parameters = tuple(parameters)

    def parameters(self) -> list[Tensor]:
        """Return the parameters that still exist."""
        return [parameter for reference in self._parameters if (parameter := reference()) is not None]

    def replace_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Record the tensors that the program has computed in place of the parameters, in the same order."""
        self._parameters = tuple(map(weakref.ref, parameters))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameters in the form of ``torch.optim.Optimizer``; the learning rate is not known."""
        return [{"params": self.parameters()}]


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
    """Optimizers that were created or have stepped while tracing was active; also each `HandWrittenOptimizer`."""
    optimizers_seen: int = 0
    """Number of these optimizers so far, including those that no longer exist."""
    loader_pass: Any = None
    """The pass over a loader that returned the latest batch; see ``batch``."""
    starting_pass: Any = None
    """The pass whose iterator is being created; its constructor already requests indices for the workers."""
    batches_before_pass: int = 0
    """Number of batches that all loaders have returned so far, without those of ``loader_pass``."""
    gradients_off_at: CodePosition | None = None
    """Where the program entered ``torch.no_grad`` or ``torch.inference_mode`` latest."""
    calls: deque[RecordedCall] = field(default_factory=lambda: deque[RecordedCall](maxlen=MAX_CALLS))
    """The latest calls of outermost modules with gradients enabled, recorded during full tracing."""
    keeps_arguments: bool = False
    """Whether the arguments of recorded calls are kept in memory until the next backward pass."""
    kept_arguments: deque[Any] = field(default_factory=lambda: deque[Any](maxlen=MAX_CALLS))
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
    latest_optimizer: Callable[[], Optimizer | None] = lambda: None
    """Returns the optimizer of the latest step in the training thread; None if it no longer exists."""
    step_depth: int = 0
    """Number of nested optimizer steps that are running; the forward and backward of a closure run within a step."""
    record_losses: bool = True
    """Whether the lines of losses are recorded, since the next backward pass reads its losses."""
    scaler: weakref.ref[Any] | None = None
    """The enabled GradScaler that scaled the latest loss."""
    stepping_scaler: weakref.ref[Any] | None = None
    """The GradScaler whose ``step`` is running."""
    hand_written_at: CodePosition | None = None
    """The line of the update that is being counted if the program wrote it itself; None = an optimizer steps."""
    autocast: str | None = None
    """Autocast type of the latest model call with gradients enabled; None = autocast was off."""
    on_thread_change: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Called before another thread becomes the training thread, when records about gradients become invalid."""
    after_traced_backward: list[Callable[[Refs, CodePosition | None], None]] = field(
        default_factory=list[Callable[[Refs, CodePosition | None], None]]
    )
    """Called after each fully traced backward pass, with the parameters that it reached, and its line."""
    on_losses_read: list[Callable[..., None]] = field(default_factory=list[Callable[..., None]])
    """Called before each fully traced backward pass with the losses whose answers and targets could be read, and with
    the nodes of all losses."""
    on_model_called: list[Callable[[ModelCalled], None]] = field(default_factory=list[Callable[[ModelCalled], None]])
    """Called before the event of a fully traced call of a model is emitted."""
    on_unknown_submodule: list[Callable[..., None]] = field(default_factory=list[Callable[..., None]])
    """Called with a running model and a module that it calls for the first time and that is not known to be its own."""
    before_backward: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Called before each outermost backward pass, also in sampled tracing; hooks add them only while needed."""
    starting_roots: Any = None
    """The roots of the backward pass that is about to start, while ``before_backward`` is called."""
    on_backward_start: list[Callable[[Sequence[Tensor]], None]] = field(
        default_factory=list[Callable[[Sequence[Tensor]], None]]
    )
    """Called with the roots before each fully traced backward pass; hooks add them only while needed."""
    after_step: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Called after each step, before it is counted, also in sampled tracing; hooks add them only while needed."""
    on_unflagged_dropout: list[Callable[..., None]] = field(default_factory=list[Callable[..., None]])
    """Called at functional dropout without ``training``, with its frame, function, input and rate."""
    on_scheduler_step: list[Callable[[Any], None]] = field(default_factory=list[Callable[[Any], None]])
    """Called with a learning-rate scheduler before each of its steps, also if another scheduler steps it."""
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
        self.nonfinite_calls = ()
        self._thread_local.sentinel = _ThreadSentinel(self, thread)
        self.training_thread = thread

    def _reset_optimizers(self) -> None:
        for state in self.optimizers.values():
            if state.in_training_thread:
                state.in_training_thread = state.fully_traced = False

    def reset(self) -> None:
        """Reset the state that belongs to an earlier watch, but not the known objects."""
        self.training_thread, self.multi_threaded = None, False
        self._reset_optimizers()
        self.calls.clear()
        self.nonfinite_calls, self.replayed = (), False
        self.forward_depth = self.backward_depth = self.step_depth = 0
        self.batches_before_pass, self.loader_pass = self.batch, None
        self.latest_optimizer = lambda: None
        self.before_backward.clear()
        self.after_step.clear()
        self.on_backward_start.clear()
        self.keeps_arguments = False
        self.kept_arguments.clear()
        self.scaler = self.stepping_scaler = self.autocast = self.hand_written_at = None
