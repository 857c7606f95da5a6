"""Detects updates that a program writes itself, such as ``p -= lr * p.grad``, while it uses no ``torch.optim``.

After each backward pass a few values of the parameters are compared, as neither the version nor the memory of a
parameter changes in ``p.data.add_(...)``. Parameters count as updated by hand once they have changed after two backward
passes and nearly all of the compared values have moved along the gradient, or all against it: a new initialisation, a
loaded checkpoint or an average does not. From then on these parameters are traced like those of an optimizer.

New leaves that replace all parameters in the next backward pass, as after ``params = [p - lr * g for ...]``, are the
same parameters if their values have moved in this way; they keep the refs and the `HandWrittenOptimizer`.
"""

import importlib
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import Event, ModelCalled, Ref, Refs, StepTaken
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
MIN_DEVIATION: Final = 3.0  # standard deviations of chance by which the moves of new tensors must agree
SAME_DIRECTION: Final = 0.6  # of a known parameter's values move as before, or the new tensor is no successor
MAX_MOVE: Final = 0.5  # relative distance up to which a new tensor is a successor without that, as with momentum
MAX_CALLS: Final = 4  # latest calls of torch.autograd.grad whose inputs are compared with those of the next calls
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
    origin: weakref.ref[Tensor]
    """The parameter of which the sample was taken; ``parameter`` may be a tensor computed from it."""
    key: int
    """Id of that parameter."""
    form: "_Form"
    version: tuple[int, int]
    at: Tensor
    values: Tensor
    gradients: Tensor

    @classmethod
    def take(cls, parameter: Tensor, gradient: Tensor | None) -> "_Sample | None":
        """Return a sample; None for a parameter without a dense gradient of real numbers on the CPU."""
        if gradient is None or not _is_readable(parameter) or not _is_readable(gradient) or not gradient.numel():
            return None
        flat = gradient.detach().reshape(-1)[:MAX_SEARCHED].float()
        at = flat.abs().topk(min(VALUES, len(flat))).indices
        reference, form = weakref.ref(parameter), _form(parameter)
        return cls(reference, reference, id(parameter), form, _version(parameter), at, _values(parameter, at), flat[at])

    def moved_to(self, successor: Tensor) -> "_Sample | None":
        """Return the sample of a tensor that may be computed from the parameter; None if the values are the same."""
        if torch.equal(_values(successor, self.at), self.values):
            return None
        return self._replace(parameter=weakref.ref(successor), version=(-1, -1))

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


_Form = tuple[torch.Size, torch.dtype]


@dataclass(slots=True)
class _Candidate:
    """Parameters that changed together after a backward pass, but may not be updated by hand."""

    parameters: dict[int, weakref.ref[Tensor]]
    """Id of a reference -> the reference, which is one object for each existing parameter."""
    is_replaced: bool = False
    """Whether new tensors have replaced the parameters."""
    windows: int = 0
    along: int = 0
    against: int = 0
    location: CodePosition | None = None

    def is_certain(self) -> bool:
        values = self.along + self.against
        agreement = max(self.along, self.against) / max(values, 1)
        if self.is_replaced and abs(self.along - self.against) < MIN_DEVIATION * values**0.5:
            return False  # new data of the same shape, of which a gradient is computed too
        return self.windows >= MIN_WINDOWS and values >= MIN_VALUES and agreement >= MIN_AGREEMENT

    def climbs(self) -> bool:
        return self.along > self.against


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
    refs: Sequence[Ref] = ()
    """Refs of the parameters, in order."""
    forms: Sequence[_Form] = ()
    keys: Sequence[int] = ()
    """Ids of the parameters, in order; those of freed ones may belong to other objects."""
    gradients: Mapping[Ref, Tensor] = field(default_factory=dict[Ref, Tensor])
    """Gradients since the latest call of ``torch.autograd.grad``, until the update is reported."""
    is_replaced: bool = False
    """Whether new tensors replace the parameters at each update."""

    def moves_to(self, successors: Sequence[Tensor]) -> bool:
        """Return True if an update may have computed new tensors of the same shapes from the parameters."""
        if not self.samples:
            return self.is_replaced
        against = along = 0
        move = size = 0.0
        for each in self.samples:
            new = successors[self.keys.index(each.key)] if each.key in self.keys else None
            if new is None:
                continue
            counts = each._replace(parameter=weakref.ref(new)).count_moves()
            against, along = against + counts[0], along + counts[1]
            move += float((_values(new, each.at) - each.values).square().sum())
            size += float(each.values.square().sum())
        same = along if self.climbs else against
        return same >= SAME_DIRECTION * (along + against) or move <= MAX_MOVE**2 * size


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

    An update is detected when anything else is traced: a call of a model, a batch, the next backward pass. An update
    that computes new tensors is detected when the next backward pass starts.

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
    _calls: dict[tuple[_Form, ...], Sequence[_Sample | None]] = field(
        default_factory=dict[tuple[_Form, ...], "Sequence[_Sample | None]"]
    )
    """Shapes of the inputs of ``torch.autograd.grad`` -> a sample of each at the latest call; not of known groups."""
    _calls_model: bool = False
    """Whether the program has called a model, whose input may be an adversarial example."""
    call_inputs: Sequence[Tensor] = ()
    """Inputs of ``torch.autograd.grad`` if the running backward pass is such a call, whose gradients are in ``.grad``
    only while it is traced."""

    def __post_init__(self) -> None:
        subject = "updates without torch.optim"
        self._on_start = self.stream.isolated_inner(subject, self._find_leaves)
        self._on_next_backward = self.stream.isolated(subject, self._compare)
        self._on_next_event = self.stream.isolated(subject, self._finish_updates)
        self.program.after_traced_backward.append(self.stream.isolated_inner(subject, self._take_samples))
        self.stream.on_detach.append(self._on_detach)
        self.program.on_thread_change.append(self._on_thread_change)

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches."""
        self._groups, self._searches, self._calls_model = [], (0, 0), False
        self._discard()
        self.program.on_model_called.append(self._on_model_called)
        patches.add_undo(self._forget_models)
        self._optimizers_before = self.program.optimizers_seen
        self.program.before_backward.append(self._before_backward)
        self.program.on_backward_start.append(self._on_start)
        patches.add_undo(self._remove_line_finder)

    def install_full_tracing(self, patches: Patches) -> None:
        """Discard what was recorded before the gap."""
        self._discard()

    def _on_model_called(self, event: ModelCalled) -> None:
        self._calls_model = True

    def _forget_models(self) -> None:
        if self._on_model_called in self.program.on_model_called:
            self.program.on_model_called.remove(self._on_model_called)

    def _before_backward(self) -> None:
        self._remove_line_finder()
        self._modes = function_modes() + dispatch_modes()
        self._on_next_backward()

    def _before_event(self) -> None:
        if not self.program.is_other_thread():
            self._remove_line_finder()
            self._on_next_event()

    def _on_detach(self) -> None:
        self._before_event()
        for group in self._groups:
            if group.is_replaced and group.start is not None and not self.program.is_other_thread():
                group.start = None  # no backward pass follows that would show the new tensors
                self.steps.count_update(group.state)

    def _on_thread_change(self) -> None:
        candidates, calls = self._candidates, self._calls
        self._discard()
        if self.program.training_thread is None:  # a call of torch.autograd.grad does not choose the training thread
            self._candidates, self._calls = candidates, calls

    def _discard(self) -> None:
        self._candidates, self._leaves, self._samples = [], (), ()
        self._calls = {}
        self.stream.before_event = None
        for group in self._groups:
            group.start, group.samples, group.gradients = None, (), {}

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
            return
        leaves = self.call_inputs or (self._find_successors() if self.stream.full_tracing else ())
        self._follow(leaves)
        if not self.stream.full_tracing:
            pending = self.stream.backward_count - self.stream.backward_count_at_step
            if self._groups and pending >= max(1, self.stream.window_size):
                self.steps.count_update(self._groups[0].state)
        else:
            self._finish_updates()
            self._compare_samples(leaves)

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
        self._samples = [each for leaf in self._leaves if (each := _Sample.take(leaf, leaf.grad)) is not None]
        self._leaves = ()
        for group in self._groups:
            pending = group.start is not None and not (self.call_inputs or group.gradients)
            if pending or not reached.isdisjoint(self.stream.registry.refs(group.optimizer.parameters())):
                group.start = self.steps.start_hand_written(group.optimizer)
                self.stream.before_event = self._before_event
                group.samples = _take_few(group.optimizer.parameters())
                group.gradients = _gradients(group.start.live_parameters) if self.call_inputs else {}
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
                group.location = group.location or self._line
                self._report(group, group.start)
        self.stream.before_event = self._before_event if any(group.start for group in self._groups) else None

    def _report(self, group: _Group, start: StepStart) -> None:
        """Report an update of a group, while its gradients are where detectors read them."""
        gradients, group.gradients, group.start, group.samples = group.gradients, {}, None, ()
        with shown_gradients([(start.live_parameters[ref], each) for ref, each in gradients.items()]):
            self.steps.end_hand_written(group.optimizer, start, group.location, climbs=group.climbs)

    def _find_successors(self) -> Sequence[Tensor]:
        """Return the leaves that the next backward pass will reach, if some may have replaced known tensors."""
        roots = self.program.starting_roots
        roots = (roots,) if isinstance(roots, Tensor) else roots
        if not isinstance(roots, list | tuple):
            return ()
        plain = any(type(each.parameter()) is not nn.Parameter and not each.has_changed() for each in self._samples)
        if not plain and not any(group.is_replaced for group in self._groups):
            return ()
        return graph_leaves(each for each in cast("Sequence[Any]", roots) if isinstance(each, Tensor))

    def _follow(self, leaves: Sequence[Tensor]) -> None:
        """Report and count the updates that have computed new tensors in place of all parameters of a group."""
        known = {id(each) for group in self._groups for each in group.optimizer.parameters()}
        new = [each for each in leaves if id(each) not in known and each.is_leaf and each.requires_grad]
        found = [(group, each) for group, each in self._matches(leaves) if new]
        for group, _ in found:
            successors = _match(group.forms, new)
            if successors is not None and group.moves_to(successors):
                new = [each for each in new if all(each is not other for other in successors)]
                self._replace_parameters(group, successors)

    def _replace_parameters(self, group: _Group, successors: Sequence[Tensor]) -> None:
        for ref, key, each in zip(group.refs, group.keys, successors, strict=True):
            self.stream.registry.transfer(ref, key, each)
        group.optimizer.replace_parameters(successors)
        group.keys, group.is_replaced, start = list(map(id, successors)), True, group.start
        self.program.structure_changes += 1
        self._searches = self.program.structure_changes, self._searches[1]
        if start is not None:
            group.gradients = group.gradients or _gradients(start.live_parameters)
            group.location = group.location or start.event.location
            live = dict(zip(group.refs, successors, strict=True))
            group.gradients = {ref: each for ref, each in group.gradients.items() if ref in live}
            self._report(group, start._replace(live_parameters=live))

    def follow_call(self, inputs: Sequence[Tensor]) -> bool:
        """Return True if a call of ``torch.autograd.grad`` is about to compute gradients of known parameters.

        Args:
            inputs: the leaves whose gradients it computes; they are compared with those of an earlier call.
        """
        if self._uses_optimizer() or self._before_backward not in self.program.before_backward:
            return False
        if self.stream.full_tracing and not self._knows(inputs):
            samples = self._calls.pop(tuple(map(_form, inputs)), ())
            pairs = [(each, leaf) for each, leaf in zip(samples, inputs, strict=False) if each is not None]
            is_replaced = any(each.parameter() is not leaf for each, leaf in pairs)
            moved = [each if each.parameter() is leaf else each.moved_to(leaf) for each, leaf in pairs]
            changed = [each for each in moved if each is not None and each.has_changed()]
            self._add_window(changed, is_call=True, is_replaced=is_replaced)
        return self._knows(inputs)

    def _knows(self, inputs: Sequence[Tensor]) -> bool:
        """Return True for parameters of a group, or new tensors in place of them."""
        known = {id(each) for group in self._groups for each in group.optimizer.parameters()}
        if any(id(each) in known for each in inputs):
            return True
        return any(found is not None and group.moves_to(found) for group, found in self._matches(inputs))

    def _matches(self, leaves: Sequence[Tensor]) -> Iterator[tuple[_Group, list[Tensor] | None]]:
        """Yield each group whose parameters are gone, and leaves of their shapes."""
        present = {id(each) for each in leaves}
        for group in self._groups:
            if not any(id(each) in present for each in group.optimizer.parameters()):
                yield group, _match(group.forms, leaves)

    def record_call(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Take samples after a call of ``torch.autograd.grad`` whose inputs belong to no group.

        Args:
            inputs: the leaves whose gradients it has computed.
            gradients: its results.
        """
        samples = [_Sample.take(each, gradient) for each, gradient in zip(inputs, gradients, strict=True)]
        self._calls[tuple(map(_form, inputs))] = samples
        if len(self._calls) > MAX_CALLS:
            del self._calls[next(iter(self._calls))]

    def _compare_samples(self, leaves: Sequence[Tensor]) -> None:
        """Compare the leaves that belong to no group with their samples, before the next backward pass.

        Args:
            leaves: leaves that it will reach, if some may be new tensors in place of others.
        """
        samples, self._samples = self._samples, ()
        changed = [each for each in samples if each.has_changed()]
        replaced = self._replaced(samples, leaves) if leaves else []
        changed += replaced
        if not changed or (_any_parameter(samples) and not _any_parameter(changed)):
            return  # an input that is changed along its gradient, while the model's parameters stay the same
        self._add_window(changed, is_replaced=bool(replaced))

    def _replaced(self, samples: Sequence[_Sample], leaves: Sequence[Tensor]) -> list[_Sample]:
        """Return the samples of leaves that are gone, with the new leaves of the same shapes in their places."""
        known = {id(each) for group in self._groups for each in group.optimizer.parameters()}
        known |= {id(each.parameter()) for each in samples}
        present, new = {id(each) for each in leaves}, [each for each in leaves if id(each) not in known]
        gone = [each for each in samples if each.parameter() is None or id(each.parameter()) not in present]
        found: list[_Sample] = []
        for form in {each.form: None for each in gone}:
            before, after = [each for each in gone if each.form == form], [each for each in new if _form(each) == form]
            if len(before) == len(after):
                moved = [each.moved_to(leaf) for each, leaf in zip(before, after, strict=True)]
                found += [each for each in moved if each is not None]
        order = {id(leaf): index for index, leaf in enumerate(leaves)}
        return sorted(found, key=lambda each: order[id(each.parameter())])

    def _add_window(self, changed: Sequence[_Sample], *, is_call: bool = False, is_replaced: bool = False) -> None:
        """Count the moves of leaves that may be updated by hand together.

        Args:
            changed: samples of the leaves that have changed since the latest backward pass.
            is_call: whether ``torch.autograd.grad`` has computed the gradients.
            is_replaced: whether some of the leaves are new tensors.
        """
        if not changed:
            return
        keys = {id(each.origin) for each in changed}
        found = [each for each in self._candidates if not each.parameters.keys().isdisjoint(keys)]
        candidate = found[0] if found else _Candidate({})
        self._candidates = [each for each in self._candidates if each not in found] + [candidate]
        if is_replaced:
            candidate.parameters = {key: each for key, each in candidate.parameters.items() if key not in keys}
            candidate.is_replaced = True
        candidate.parameters.update((id(each.parameter), each.parameter) for each in changed)
        candidate.windows += 1
        candidate.location = candidate.location or self._line
        for each in changed:
            against, along = each.count_moves()
            candidate.against += against
            candidate.along += along
        if candidate.is_certain():
            self._candidates.remove(candidate)
            is_attack = (is_call or candidate.is_replaced) and candidate.climbs() and not _any_parameter(changed)
            if not is_attack or not self._calls_model:
                self.stream.backward_count += candidate.windows if is_call else 0
                self._add_group(candidate)

    def _add_group(self, candidate: _Candidate) -> None:
        optimizer = HandWrittenOptimizer(candidate.parameters.values())
        self.stream.registry.ref(optimizer, "the hand-written update")
        _name_by_variables(optimizer.parameters(), self.stream)
        state = self.program.optimizers.put(cast("Any", optimizer), OptimizerState(in_training_thread=True))
        climbs, parameters = candidate.climbs(), optimizer.parameters()
        refs, _ = self.stream.registry.ordered_refs(parameters)
        group = _Group(optimizer, state, candidate.location, climbs, refs=refs, forms=list(map(_form, parameters)))
        group.keys, group.is_replaced = list(map(id, parameters)), candidate.is_replaced
        self._groups.append(group)
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


def _form(tensor: Tensor) -> _Form:
    return tensor.shape, tensor.dtype


def _match(forms: Sequence[_Form], leaves: Sequence[Tensor]) -> list[Tensor] | None:
    """Return leaves of the given shapes and types, in order; None if some is missing."""
    found, rest = list[Tensor](), iter(leaves)
    for form in forms:
        each = next((leaf for leaf in rest if _form(leaf) == form), None)
        if each is None:
            return None
        found.append(each)
    return found


def _gradients(live: Mapping[Ref, Tensor]) -> dict[Ref, Tensor]:
    return {ref: each.grad for ref, each in live.items() if each.grad is not None}


@contextmanager
def shown_gradients(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> Generator[None]:
    """Set ``.grad`` of some leaves to the results of ``torch.autograd.grad``, and restore it.

    Args:
        pairs: leaves, each with its gradient; a gradient that does not fit is left out.
    """
    before: list[tuple[Tensor, Tensor | None]] = []
    try:
        for leaf, gradient in pairs:
            if gradient is not None and _form(gradient) == _form(leaf) and gradient.device == leaf.device:
                before.append((leaf, leaf.grad))
                leaf.grad = gradient
        yield
    finally:
        for leaf, gradient in before:
            leaf.grad = gradient


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
        sample = _Sample.take(parameter, parameter.grad)
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
