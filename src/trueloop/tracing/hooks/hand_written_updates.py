"""Detects updates that a program writes itself, such as ``p -= lr * p.grad``, while it uses no ``torch.optim``.

After each backward pass a few values of the parameters are compared, as neither the version nor the memory of a
parameter changes in ``p.data.add_(...)``. Parameters count as updated by hand once they have changed after two backward
passes and nearly all of the compared values have moved along the gradient, or all against it: a new initialisation, a
loaded checkpoint or an average does not. From then on these parameters are traced like those of an optimizer.
"""

import importlib
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import Event, Refs, StepTaken
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.graph_leaves import graph_leaves
from trueloop.tracing.hooks.optimizers import Steps, StepStart
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import HandWrittenOptimizer, OptimizerState, ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import dispatch_modes, function_modes
from trueloop.tracing.user_location import ISOLATED_CALLER_DEPTH, is_user_code, user_location

MAX_SEARCHES: Final = 64  # backward passes whose leaves are compared without finding an update, for each known model
MIN_WINDOWS: Final = 2  # updates that are compared before they count
MIN_VALUES: Final = 6  # compared values before updates count
MIN_AGREEMENT: Final = 0.8  # of these values move along the gradient, or against it: momentum may overshoot
VALUES: Final = 16  # compared values of one parameter
MAX_SEARCHED: Final = 4096  # values of a gradient among which the largest are searched
SAMPLED: Final = 4  # parameters of a known group that are compared
_TYPES: Final = {Tensor, nn.Parameter}
_DTYPES: Final = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_bindings: Any = importlib.import_module("torch._C")
_dispatch_mode_at: Callable[[int], Any] = _bindings._get_dispatch_stack_at  # noqa: SLF001


class _Sample(NamedTuple):
    """A few values of a parameter, where its gradient is largest, and their gradients."""

    parameter: weakref.ref[Tensor]
    version: tuple[int, int]
    at: Tensor
    values: Tensor
    gradients: Tensor

    @classmethod
    def take(cls, parameter: Tensor) -> "_Sample | None":
        """Return a sample; None for a parameter without a dense gradient of real numbers on the CPU."""
        gradient = parameter.grad
        if gradient is None or not _is_readable(parameter) or not _is_readable(gradient) or not gradient.numel():
            return None
        flat = gradient.detach().reshape(-1)[:MAX_SEARCHED].float()
        at = flat.abs().topk(min(VALUES, len(flat))).indices
        return cls(weakref.ref(parameter), _version(parameter), at, _values(parameter, at), flat[at])

    def has_changed(self) -> bool:
        """Return True if the parameter has changed."""
        parameter = self.parameter()
        if parameter is None or _version(parameter) != self.version:
            return parameter is not None
        return not torch.equal(_values(parameter, self.at), self.values)

    def count_moves(self) -> tuple[int, int]:
        """Return how many of the values have moved against the gradient, and how many along it."""
        parameter = self.parameter()
        if parameter is None or parameter.numel() <= int(self.at.max()):
            return 0, 0
        moves = (_values(parameter, self.at) - self.values) * self.gradients
        return int((moves < 0).sum()), int((moves > 0).sum())


@dataclass(slots=True)
class _Candidate:
    """Parameters that changed together after a backward pass, but may not be updated by hand."""

    parameters: dict[int, weakref.ref[Tensor]]
    windows: int = 0
    along: int = 0
    against: int = 0
    location: CodePosition | None = None

    def is_certain(self) -> bool:
        values = self.along + self.against
        agreement = max(self.along, self.against) / max(values, 1)
        return self.windows >= MIN_WINDOWS and values >= MIN_VALUES and agreement >= MIN_AGREEMENT


@dataclass(slots=True)
class _Group:
    """Parameters that are updated by hand together."""

    optimizer: HandWrittenOptimizer
    state: OptimizerState
    location: CodePosition | None
    climbs: bool = False
    """Whether the values moved along the gradient, not against it, before the group was known."""
    start: StepStart | None = None
    """The state before the next update; None = no backward pass since the latest update has reached the group."""
    samples: Sequence[_Sample] = ()


class _LineFinder(TorchDispatchMode):
    """Records the line of the last operation before one of a few samples has changed."""

    def __init__(self, samples: Sequence[_Sample], stream: EventStream) -> None:
        super().__init__()
        self.samples: Sequence[_Sample] = samples
        self.location: CodePosition | None = None
        self._stream = stream
        self.check = stream.isolated_inner("lines of updates without torch.optim", self._check)

    def _check(self) -> None:
        """Record the line of the operation that is about to run, until a sample has changed."""
        if not self.samples or _any_changed(self.samples):
            self.samples = ()
        else:
            self.location = user_location(ISOLATED_CALLER_DEPTH)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Iterable[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._stream.active:  # not in a worker that was forked meanwhile
            self.check()
        return func(*args, **(kwargs or {}))


@dataclass(eq=False)
class HandWrittenUpdates:
    """Emits `StepTaken` for updates that the program writes itself, until it creates a ``torch.optim.Optimizer``.

    An update is detected when anything else is traced: a call of a model, a batch, the next backward pass.

    Parameters on an accelerator are not compared, since that would synchronise it.

    Cost: nothing with ``torch.optim``; otherwise as an optimizer's step, and 50 us for each fully traced update. In
    sampled tracing updates are only counted.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (StepTaken,)
    stream: EventStream
    program: ProgramState
    steps: Steps
    _groups: list[_Group] = field(default_factory=list[_Group])
    _candidates: list[_Candidate] = field(default_factory=list[_Candidate])
    _leaves: Sequence[Tensor] = ()
    """Leaves of the running backward pass that belong to no group."""
    _samples: Sequence[_Sample] = ()
    """Samples of these leaves after the latest backward pass."""
    _searches: tuple[int, int] = (0, 0)
    """Number of changes of the models' structure, and of searches since the latest one."""
    _optimizers_before: int = 0
    """Number of optimizers that were created before the watch."""
    _line_finder: _LineFinder | None = None
    _modes: int = 0
    """Number of modes of the program when the latest backward pass started."""
    _line: CodePosition | None = None
    """The line that first changed a sample after the latest backward pass; None = not searched, or not found."""

    def __post_init__(self) -> None:
        subject = "updates without torch.optim"
        self._on_start = self.stream.isolated_inner(subject, self._find_leaves)
        self._on_next_backward = self.stream.isolated(subject, self._compare)
        self._on_next_event = self.stream.isolated(subject, self._finish_updates)
        self.program.after_traced_backward.append(self.stream.isolated_inner(subject, self._take_samples))
        self.stream.on_detach.append(self._before_event)
        self.program.on_thread_change.append(self._discard)

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches."""
        self._groups, self._searches = [], (0, 0)
        self._discard()
        self._optimizers_before = self.program.optimizers_seen
        self.program.before_backward.append(self._before_backward)
        self.program.on_backward_start.append(self._on_start)
        patches.add_undo(self._remove_line_finder)

    def install_full_tracing(self, patches: Patches) -> None:
        """Discard what was recorded before the gap."""
        self._discard()

    def _before_backward(self) -> None:
        self._remove_line_finder()
        self._modes = function_modes() + dispatch_modes()
        self._on_next_backward()

    def _before_event(self) -> None:
        if not self.program.is_other_thread():
            self._remove_line_finder()
            self._on_next_event()

    def _discard(self) -> None:
        self._candidates, self._leaves, self._samples = [], (), ()
        self.stream.before_event = None
        for group in self._groups:
            group.start, group.samples = None, ()

    def _stop(self) -> None:
        """Leave all updates to the program's optimizers."""
        self._discard()
        self._groups = []
        self.program.before_backward.remove(self._before_backward)
        self.program.on_backward_start.remove(self._on_start)

    def _uses_optimizer(self) -> bool:
        own = {id(group.state) for group in self._groups}
        return self.program.optimizers_seen != self._optimizers_before or any(
            state.in_training_thread and id(state) not in own for state in self.program.optimizers.values()
        )

    def _compare(self) -> None:
        """Report and count the updates since the latest backward pass, and search for others."""
        if self._uses_optimizer():
            self._stop()
        elif not self.stream.full_tracing:
            pending = self.stream.backward_count - self.stream.backward_count_at_step
            if self._groups and pending >= max(1, self.stream.window_size):
                self.steps.count_update(self._groups[0].state)
        else:
            self._finish_updates()
            self._compare_samples()

    def _find_leaves(self, roots: Sequence[Tensor]) -> None:
        """Find the leaves that the starting backward pass reaches."""
        changes, searches = self._searches
        if changes != self.program.structure_changes:
            changes, searches = self.program.structure_changes, 0
        self._searches = changes, searches + 1
        if searches < MAX_SEARCHES:
            known = {id(each) for group in self._groups for each in group.optimizer.parameters()}
            self._leaves = [each for each in graph_leaves(roots) if id(each) not in known]

    def _take_samples(self, reached: Refs, location: CodePosition | None) -> None:
        """Take samples after a backward pass, to detect an update."""
        if not self._leaves and not self._groups:
            return
        self._samples = [each for leaf in self._leaves if (each := _Sample.take(leaf)) is not None]
        self._leaves = ()
        for group in self._groups:
            if group.start is not None or not reached.isdisjoint(
                self.stream.registry.refs(group.optimizer.parameters())
            ):
                group.start = self.steps.start_hand_written(group.optimizer)
                self.stream.before_event = self._before_event
                group.samples = _take_few(group.optimizer.parameters())
        self._line = None
        unlocated = next((group.samples for group in self._groups if group.start and not group.location), self._samples)
        if unlocated and self._line_finder is None and not self._modes and not uses_compiler():
            self._line_finder = _LineFinder(unlocated[:SAMPLED], self.stream)
            self._line_finder.__enter__()

    def _finish_updates(self) -> None:
        """Report the updates since the latest backward pass."""
        for group in self._groups:
            if group.start is not None and _any_changed(group.samples):
                self.stream.before_event = None
                start, group.start, group.samples = group.start, None, ()
                group.location = group.location or self._line
                self.steps.end_hand_written(group.optimizer, start, group.location, climbs=group.climbs)
        self.stream.before_event = self._before_event if any(group.start for group in self._groups) else None

    def _compare_samples(self) -> None:
        """Compare the leaves that belong to no group with their samples, before the next backward pass."""
        samples, self._samples = self._samples, ()
        changed = [each for each in samples if each.has_changed()]
        if not changed or (_any_parameter(samples) and not _any_parameter(changed)):
            return  # an input that is changed along its gradient, while the model's parameters stay the same
        ids = {id(each.parameter()): each.parameter for each in changed}
        found = [each for each in self._candidates if not each.parameters.keys().isdisjoint(ids)]
        candidate = found[0] if found else _Candidate({})
        self._candidates = [each for each in self._candidates if each not in found] + [candidate]
        candidate.parameters.update(ids)
        candidate.windows += 1
        candidate.location = candidate.location or self._line
        for each in changed:
            against, along = each.count_moves()
            candidate.against += against
            candidate.along += along
        if candidate.is_certain():
            self._candidates.remove(candidate)
            self._add_group(candidate)

    def _add_group(self, candidate: _Candidate) -> None:
        optimizer = HandWrittenOptimizer(candidate.parameters.values())
        self.stream.registry.ref(optimizer, "the hand-written update")
        _name_by_variables(optimizer.parameters(), self.stream)
        state = self.program.optimizers.put(cast("Any", optimizer), OptimizerState(in_training_thread=True))
        climbs = candidate.along > candidate.against
        self._groups.append(_Group(optimizer, state, candidate.location, climbs))
        self.program.structure_changes += 1
        self._searches = self.program.structure_changes, 0
        start = self.steps.start_hand_written(optimizer)
        self.steps.end_hand_written(optimizer, start, candidate.location, climbs=climbs)
        for _ in range(candidate.windows - 1):
            self.steps.count_update(state)

    def _remove_line_finder(self) -> None:
        """Remove the mode that searches the line; not called by an isolated handler, which disables all modes."""
        finder, modes = self._line_finder, dispatch_modes()
        if finder is not None:
            latest = finder.location
            finder.check()
            self._line, finder.samples = None if finder.samples else latest, ()
            if modes and _dispatch_mode_at(modes - 1) is finder:  # otherwise a mode of the program is above it
                finder.__exit__(None, None, None)
                self._line_finder = None


def uses_compiler() -> bool:
    """Return True if the program may use ``torch.compile``, which compiles nothing while a mode is active."""
    return "torch._dynamo" in sys.modules


def _is_readable(tensor: Tensor) -> bool:
    """Return True for real numbers on the CPU, which are read without waiting for an accelerator."""
    return type(tensor) in _TYPES and tensor.is_cpu and tensor.layout is torch.strided and tensor.dtype in _DTYPES


def _version(parameter: Tensor) -> tuple[int, int]:
    return parameter._version, parameter.data_ptr()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _values(parameter: Tensor, at: Tensor) -> Tensor:
    return parameter.detach().take(at).float()


def _any_changed(samples: Iterable[_Sample]) -> bool:
    return any(each.has_changed() for each in samples)


def _any_parameter(samples: Iterable[_Sample]) -> bool:
    return any(isinstance(each.parameter(), nn.Parameter) for each in samples)


def _take_few(parameters: Sequence[Tensor]) -> Sequence[_Sample]:
    """Return samples of the smallest parameters with a gradient that is not zero."""
    samples: list[_Sample] = []
    for parameter in sorted(parameters, key=torch.numel):
        sample = _Sample.take(parameter)
        if sample is not None and bool(sample.gradients.any()):
            samples.append(sample)
            if len(samples) == SAMPLED:
                break
    return samples


def _name_by_variables(parameters: Sequence[Tensor], stream: EventStream) -> None:
    """Name parameters without a module after the program's variables."""
    frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        for name, value in list(variables(frame).items()) if is_user_code(frame.f_code) else ():
            several = cast("list[Any]", value) if type(value) in (list, tuple) else []
            for index, each in enumerate([value, *several[:64]]):
                if any(each is parameter for parameter in parameters) and type(each) is Tensor:
                    stream.registry.ref(each, f"{name}[{index - 1}]" if index else name)
        frame = frame.f_back
