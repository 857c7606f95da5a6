"""What is known of the watched program by now: the facts that one source learns and another one needs."""

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
from trueloop.tracing.nonfinite.replay import Call
from trueloop.tracing.object_facts import Facts

CALLS: Final = 4  # a model, its loss, and the same of an adversary


@dataclass(slots=True, kw_only=True)
class IncompleteWindowState:
    """Gradients that were accumulated when a loader ended within a window."""

    loader: Ref
    batches: int
    left: int
    window: int
    place: CodePosition | None
    marks: dict[int, tuple[weakref.ref[Tensor], int, int]]
    """Parameter, by id -> it, its gradient by id, and that one's version."""
    kept: bool = False
    """They were still there at the next backward."""


@dataclass(slots=True)
class OptimizerState:
    """What is known of one optimizer; but for the first two, of what happened since its latest step, seen in full."""

    steps: int = 0
    """So far, counted by the source of steps."""
    trains: bool = False
    """It has stepped in the thread that trains."""
    backwards: int = 0
    """That reached one of its parameters."""
    norm_made: float | None = None
    """Joint norm of its gradients after the latest backward, read in windows of several."""
    cleared_at: CodePosition | None = None
    """The latest clearing of its parameters, after the latest backward that reached them."""
    left: tuple[weakref.ref[Tensor], weakref.ref[Tensor]] | None = None
    """One of its parameters, and the gradient that the latest backward left there."""
    whole: bool = False
    """It was watched in full since the step before, or since the optimizer was built."""

    def begin(self, *, whole: bool) -> None:
        """Begin the next window."""
        self.backwards, self.cleared_at, self.norm_made, self.left, self.whole = 0, None, None, None, whole

    def replaced(self) -> bool:
        """True where the gradient is another object than the latest backward left: it was made by hand."""
        parameter = self.left and self.left[0]()
        gradient = None if parameter is None else parameter.grad
        return self.left is not None and gradient is not None and self.left[1]() is not gradient


class _Stay:
    """Lies among what belongs to the thread that trains, and goes with it: no other one has its number yet."""

    def __init__(self, program: ProgramState, thread: int) -> None:
        self._program, self._thread = program, thread

    def __del__(self) -> None:
        if self._program.training_thread == self._thread:
            self._program.training_thread = None


_numbers = itertools.count()


@dataclass(slots=True)
class ProgramState:
    """Grows while the program runs; keeps nothing of it alive."""

    thread: int | None = None
    """The thread that trains: the first to run backward or step. Gradients of others must not be touched: torch writes
    them from there at any moment. What others do is not followed."""
    multi_threaded: bool = False
    """Another thread runs backward, too, and may train tomorrow what this one trains today: only gradients of models
    that were called since the latest step are looked at."""
    models: Facts[nn.Module, tuple[int, int]] = field(default_factory=Facts[nn.Module, tuple[int, int]])
    """Outermost modules with parameters that were called -> the thread that called them last, by `thread_number`, and the
    updates before."""
    structure_changes: int = 0
    """Times the parameters of a model were found to be others than before."""
    optimizers: Facts[Optimizer, OptimizerState] = field(default_factory=Facts[Optimizer, OptimizerState])
    """That were built while watching, or have stepped."""
    met: int = 0
    """How many those have been so far, the dead ones included."""
    loader_pass: Any = None
    """The pass over a loader that gave the latest batch; it counts its own, see ``batch``."""
    batches_before_pass: int = 0
    """Batches drawn so far, from all loaders, but for those that this pass counts."""
    drawn: frozenset[tuple[int, int]] | None = None
    """First dimension and number of values of each tensor in the latest batch drawn while watching in full, if
    somebody ``record_batch_sizes`` to be noted."""
    record_batch_sizes: bool = False
    anomaly_at: CodePosition | None = None
    """The latest switching on of ``detect_anomaly`` while watching in full."""
    seeded_at: CodePosition | None = None
    """The latest ``torch.manual_seed`` since a shuffling loader was started."""
    leftover: IncompleteWindowState | None = None
    """What a loader's end has left to be stepped."""
    replicated: Callable[[], None] | None = None
    """Called before each backward, where a model is replicated."""
    calls: deque[Call] = field(default_factory=lambda: deque[Call](maxlen=CALLS))
    """The newest calls of outermost modules that make a graph, noted while watching in full."""
    suspects: tuple[Call, ...] = ()
    """Of those, the ones before a loss that is not finite."""
    replayed: bool = False
    """Calls were made again, to find where such a value comes from: that is done once."""
    forward_depth: int = 0
    """Depth of module calls; 0 = outside."""
    dropped: bool = False
    """Within the latest outermost module call, functional dropout acted because its module is in train mode."""
    backward_depth: int = 0
    """Depth of backward; recomputation and reentrant checkpoints run inside."""
    step_depth: int = 0
    """Depth of optimizer steps; a closure's forward and backward run inside."""
    record_losses: bool = True
    """The losses of the next backward are wanted: where they are computed is to be noted."""
    scaler: weakref.ref[Any] | None = None
    """The GradScaler that scaled the newest loss, where it is enabled."""
    stepping_scaler: weakref.ref[Any] | None = None
    """The GradScaler that is just calling a step."""
    autocast: str | None = None
    """The type of autocast the newest call of a model ran under that made a graph."""
    on_thread_change: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Called before another thread trains: what is known of gradients is of no use, nor safe to look at."""
    _own: threading.local = field(default_factory=threading.local)
    _choosing: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._left_behind)

    def is_training_thread(self) -> bool:
        """True on the thread that trains; where there is none, or it has ended, this one becomes it."""
        here = threading.get_ident()
        if self.thread is None:
            with self._choosing:
                if self.thread is None:
                    self._becomes(here)
        return self.thread == here

    def number(self) -> int:
        """Return a number of this thread that, unlike Python's own, is never given to another one."""
        try:
            return self._own.number
        except AttributeError:
            number = self._own.number = next(_numbers)
            return number

    def shared(self) -> None:
        """Note that backward runs on another thread, unless that is torch's own, for the one that trains."""
        here = threading.get_ident()
        if not self.multi_threaded:
            self.multi_threaded = not self.backward_depth or any(each.ident == here for each in threading.enumerate())

    @property
    def loader(self) -> Ref | None:
        """The loader that gave the latest batch."""
        return None if self.loader_pass is None else self.loader_pass.loader

    @property
    def batch(self) -> int:
        """Batches drawn so far, from all loaders."""
        return self.batches_before_pass + (0 if self.loader_pass is None else self.loader_pass.index)

    def set_loader_pass(self, current: Any) -> None:
        """Take note that the latest batch came from another pass than the one before; it is not counted yet."""
        self.batches_before_pass = self.batch - current.index
        self.loader_pass = current

    def is_other_thread(self) -> bool:
        """True on another thread than the one that trains."""
        return self.thread is not None and self.thread != threading.get_ident()

    def mine(self) -> list[Optimizer]:
        """Return the optimizers that have stepped in the thread that trains."""
        return [optimizer for optimizer, known in self.optimizers.items() if known.trains]

    def _left_behind(self) -> None:
        """In a forked child no thread is the one that trains: nothing is watched there."""
        self.thread = None
        self._choosing = threading.RLock()

    def _becomes(self, thread: int) -> None:
        self._nobodys()
        for forget in self.on_thread_change:
            forget()
        number = self.number()
        calls = [call for call in list(self.calls) if call.thread == number]  # others note theirs meanwhile
        self.calls.clear()
        self.calls.extend(calls)
        self.suspects, self.leftover = (), None
        self._own.stay = _Stay(self, thread)
        self.thread = thread

    def _nobodys(self) -> None:
        for known in self.optimizers.facts():
            if known.trains:
                known.trains = False
                known.begin(whole=False)

    def begin(self) -> None:
        """Forget what was going on when somebody listened before; what objects there are stays known."""
        self.thread, self.multi_threaded = None, False
        self._nobodys()
        self.calls.clear()
        self.suspects, self.replayed = (), False
        self.anomaly_at = None
        self.forward_depth = self.backward_depth = self.step_depth = 0
        self.drawn, self.record_batch_sizes = None, False
        self.batches_before_pass, self.loader_pass = self.batch, None
        self.leftover = self.scaler = self.stepping_scaler = self.autocast = None
