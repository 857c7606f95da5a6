"""Records the operations of a few updates, to find what cuts the graph between parameters and the loss."""

import ast
import contextlib
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.core.source_text import read_source
from trueloop.tracing.attach import Hook
from trueloop.tracing.cut_recorder import CallRecorder, Cut, CutRecorder
from trueloop.tracing.events import (
    NO_REFS,
    BackwardEnded,
    DetachedTerm,
    Event,
    GraphCut,
    LossTraced,
    LossTracingEnded,
    Ref,
    Refs,
    StepTaken,
)
from trueloop.tracing.graph_leaves import adds_constant
from trueloop.tracing.module_expressions import module_expressions
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.running_code import program_stack, user_files, user_modules
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import dispatch_modes, function_modes, in_transform
from trueloop.tracing.user_location import ISOLATED_CALLER_DEPTH, user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

FIRST_STEP: Final = 3  # step after which an update is recorded; then again whenever the number of steps has doubled
LONG_RUN: Final = 2048  # updates after which cuts are reported, since the program may run for days
COMPARED_VALUES: Final = 256  # values of a parameter that are compared
COPY_DISTANCE: Final = 0.5  # of a weight's norm: independent initial weights have a distance of 1.4
_FUSED_IN_EVAL: Final = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
_bindings: Any = torch._C  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class GraphCuts(Hook):
    """Emits `LossTraced` and `LossTracingEnded`.

    An update is recorded only while some optimizer has a parameter that never had a gradient, if a term of the loss
    has no graph, or if the program samples from distributions; not in compiled programs, and not while the program uses
    a function mode of its own, as for a default device.

    Cost: 1 us for each backward pass and step in full tracing; about 5 us for each call of a PyTorch function in an
    update that is recorded, and 1 us for each operation of a graph that is cut.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (LossTraced, LossTracingEnded)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._receive_step = stream.isolated_inner("parameters without gradients", self._on_step)
        self._receive_backward = stream.isolated_inner("parameters without gradients", self._on_backward_ended)
        self._start_recording = stream.isolated("operations", self._start)
        self._end_recording = stream.isolated("operations", self.remove)
        self._inspect_loss = stream.isolated("terms of losses", self._on_backward)
        self._record_call = stream.isolated("operations", self._record)
        self._end = stream.isolated("parameters without gradients", self._end_tracing)
        self._recorder: CutRecorder | None = None
        self._mode: CallRecorder | None = None
        self._disabled: list[CallRecorder] = []
        """Modes that no longer record and could not be removed yet."""
        self._fused = Patches()
        """Replacements during a recorded update."""
        self._reset()

    def _reset(self) -> None:
        self._received: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Parameters that had a gradient in some step."""
        self._frames_at_start = _compiled_frames()
        self._latest = self._latest_with_gradient = NO_REFS
        """The parameters with a gradient in the latest step."""
        self._untrained: weakref.WeakKeyDictionary[Ref, Refs] = weakref.WeakKeyDictionary()
        """Optimizer -> its trainable parameters without a gradient at its latest step."""
        self._steps: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._recorded_optimizer: Ref | None = None
        """The optimizer whose next step ends the recorded update."""
        self._constant_terms: dict[CodePosition | None, bool] = {}
        """Line of a backward pass -> whether a term of its latest loss had no graph."""
        self._lines_with_terms: set[CodePosition | None] = set()
        """Lines of backward passes for which a detached term was reported."""
        self._samples = WeakIdDict[Tensor, Tensor]()
        """Parameter without a gradient -> its first values when an update was first recorded."""
        self._groups: dict[CodePosition | None, Refs] = {}
        """Location of a cut -> the parameters behind it that never had a gradient."""
        self._excluded: set[Ref] = set()
        """Parameters that change without a gradient, or are copies of trained ones, as in a target network."""
        self._numbers: set[Ref] = set()
        """Parameters with one element, such as a temperature."""
        self._is_ended = False
        self._samples_distributions: bool | None = None

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches, and receive steps."""
        self._reset()
        self._stream.subscribe(self._receive_step, StepTaken)
        self._stream.subscribe(self._receive_backward, BackwardEnded)
        patches.add_undo(lambda: self._stream.unsubscribe(self._receive_step))
        patches.add_undo(lambda: self._stream.unsubscribe(self._receive_backward))
        self._stream.on_detach.append(self._end)
        patches.add_undo(self._forget_detach)

    def _forget_detach(self) -> None:
        if self._end in self._stream.on_detach:
            self._stream.on_detach.remove(self._end)

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``torch.autograd.backward``."""
        patches.replace(torch.autograd, "backward", self._replacement)
        patches.add_handle(self)

    def remove(self) -> None:
        """Stop recording; called when full tracing stops."""
        mode, self._mode, self._recorder = self._mode, None, None
        self._fused.restore()
        for call in (self._start_recording, self._end_recording):
            if call in self._program.after_step:
                self._program.after_step.remove(call)
        if mode is not None:
            mode.enabled = False
            self._disabled.append(mode)
        if self._disabled:
            self._pop_disabled()

    def _pop_disabled(self) -> None:
        """Remove the modes that no longer record, except one within a call that it runs, which PyTorch pushes again."""
        modes = [_bindings._pop_torch_function_stack() for _ in range(function_modes())]  # noqa: SLF001
        for each in reversed(modes):
            if all(each is not mode for mode in self._disabled):
                _bindings._push_on_torch_function_stack(each)  # noqa: SLF001
        self._disabled = [mode for mode in self._disabled if all(each is not mode for each in modes)]

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program, inspect_loss = self._stream, self._program, self._inspect_loss

        def backward(tensors: Any, *args: Any, **options: Any) -> Any:
            if not stream.full_tracing or program.backward_depth or program.is_other_thread():
                return original(tensors, *args, **options)
            if self._disabled:
                self._pop_disabled()
            mode = self._mode
            if mode is not None:
                mode.enabled = False
            inspect_loss(tensors)
            try:
                return original(tensors, *args, **options)
            finally:
                if mode is not None:
                    mode.enabled = mode is self._mode

        return backward

    def _on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the parameters that got a gradient, which may be cleared before the step."""
        if event.reached_parameters is not self._latest:
            self._latest = event.reached_parameters
            self._received.update(event.reached_parameters)

    def _on_step(self, event: StepTaken) -> None:
        """Record the parameters without a gradient, and record the next update if it is time to."""
        received = event.with_gradient
        if received is not self._latest_with_gradient:
            self._latest_with_gradient = received
            self._received.update(received)
        steps = self._steps[event.optimizer] = self._steps.get(event.optimizer, 0) + 1
        untrained = NO_REFS
        if len(received) + len(event.frozen) < len(event.parameters):
            untrained = (event.parameters - event.frozen).difference(self._received)
        if untrained or event.optimizer in self._untrained:
            self._untrained[event.optimizer] = untrained
        if event.update >= LONG_RUN and not self._is_ended:
            self._end()
        if self._mode is not None:
            if event.optimizer is self._recorded_optimizer:
                self._program.after_step.append(self._end_recording)
            return
        is_due = steps % FIRST_STEP == 0 and (steps // FIRST_STEP).bit_count() == 1
        if is_due and (untrained or any(self._constant_terms.values()) or self._may_sample()):
            self._recorded_optimizer = event.optimizer
            self._program.after_step.append(self._start_recording)

    def _may_sample(self) -> bool:
        """Return True if a source file of the program may sample from distributions."""
        if self._samples_distributions is None:
            files = {*user_files(program_stack()), *user_modules().values()}
            self._samples_distributions = any(map(_samples_distributions, files))
        return self._samples_distributions

    def _start(self) -> None:
        """Record the operations until the next step of the same optimizer."""
        self.remove()
        if function_modes() or dispatch_modes() or _compiled_frames() != self._frames_at_start:
            return
        owned = self._owned_parameters()
        self._find_changed()
        self._sample_untrained(owned)
        self._recorder = CutRecorder(
            {id(parameter): ref for ref, parameter in owned.items()}, lambda: self._program.gradients_off_at
        )
        # PyTorch would warn again, at a line of cut_recorder, of what earlier updates did at a line of the program.
        warnings.filterwarnings("ignore", module=r"trueloop\.tracing\.cut_recorder")
        for kind in _FUSED_IN_EVAL:
            self._fused.replace(kind, "forward", self._fused_forward)
        if self._disabled:  # it is running the function within which the step was reported
            self._mode = self._disabled.pop()
            self._mode.enabled = True
        else:
            self._mode = CallRecorder(self._record_call)
            _bindings._push_on_torch_function_stack(self._mode)  # noqa: SLF001

    def _fused_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Run a layer that has a fused kernel for inference without the mode, under which PyTorch would not use it."""
        record = self._record_call

        def forward(module: nn.Module, *args: Any, **options: Any) -> Any:
            if module.training or torch.is_grad_enabled():
                return original(module, *args, **options)
            with _bindings.DisableTorchFunction():
                result = original(module, *args, **options)
            record(original, (args, list(module.parameters())), options, result)
            return result

        return forward

    def _record(self, function: Any, args: Any, options: Any, result: Any) -> None:
        recorder, program = self._recorder, self._program
        if recorder is None or program.backward_depth or program.is_other_thread() or not self._stream.active:
            return
        if program.step_depth and not torch.is_grad_enabled():  # the optimizer's own operations, not those of a closure
            return
        if in_transform() or torch.jit.is_tracing():
            return
        recorder.record(function, args, options, result)
        if recorder.is_exhausted and self._mode is not None:
            self._mode.enabled, self._recorder = False, None

    def _owned_parameters(self) -> dict[Ref, Tensor]:
        """Return the parameters that optimizers train, with a learning rate other than 0."""
        return {
            self._stream.registry.parameter_ref(parameter): parameter
            for optimizer in self._program.training_optimizers()
            for group in optimizer.param_groups
            if isinstance(group.get("lr"), Tensor) or group.get("lr") != 0
            for parameter in group["params"]
            if parameter.requires_grad
        }

    def _all_untrained(self) -> Refs:
        return NO_REFS.union(*self._untrained.values()).difference(self._received)

    def _on_backward(self, tensors: Any) -> None:
        root = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None) if tensors else None
        if not isinstance(root, Tensor):
            return
        location, recorder = user_location(ISOLATED_CALLER_DEPTH), self._recorder
        had_terms = location in self._lines_with_terms
        constant = self._constant_terms[location] = adds_constant(root)
        if recorder is None:
            if had_terms and not constant:
                self._lines_with_terms.discard(location)
                self._stream.emit(LossTraced(location=location, cuts=(), detached_terms=()))
            return
        terms = () if recorder.is_deliberate else sorted(recorder.terms_of(root), key=lambda term: term.cut.number)
        detached = tuple(DetachedTerm(each.location, self._graph_cut(each.cut)) for each in terms)
        if detached:
            self._lines_with_terms.add(location)
        cuts = self._merged_cuts(recorder.cuts_of(root))
        samples = {cut.location: self._graph_cut(cut) for cut in recorder.sampled_for(root)}
        if cuts or detached or had_terms:
            self._stream.emit(
                LossTraced(location=location, cuts=cuts, detached_terms=detached, samples=tuple(samples.values()))
            )

    def _merged_cuts(self, cuts: frozenset[Cut]) -> tuple[GraphCut, ...]:
        """Return the cuts in the order of the program, those at one location as one."""
        merged: dict[CodePosition | None, Cut] = {}
        for cut in sorted(cuts, key=lambda cut: cut.number):
            first = merged.setdefault(cut.location, cut)
            merged[cut.location] = first._replace(parameters=first.parameters | cut.parameters)
        untrained = self._all_untrained()
        for location, cut in merged.items():
            if behind := cut.parameters & untrained:
                self._groups[location] = self._groups.get(location, NO_REFS) | behind
        return tuple(map(self._graph_cut, merged.values()))

    def _graph_cut(self, cut: Cut) -> GraphCut:
        untrained = cut.parameters & self._all_untrained()
        names: list[str] = []
        if untrained:
            owned = self._owned_parameters()
            ids = {id(owned[ref]): ref for ref in untrained if ref in owned}
            frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            names, unnamed = module_expressions(ids, frame)
            names += sorted(ids[each].name for each in unnamed)
        return GraphCut(cut.location, cut.operation, cut.parameters, tuple(names))

    def _sample_untrained(self, owned: Mapping[Ref, Tensor]) -> None:
        """Keep some values of parameters without a gradient, and find those that are copies of trained ones."""
        untrained = self._all_untrained()
        trained: dict[tuple[int, ...], list[Tensor]] = {}
        for ref, parameter in owned.items():
            if ref not in untrained and parameter.dim() > 1:
                trained.setdefault(tuple(parameter.shape), []).append(parameter)
        for ref in untrained:
            parameter = owned.get(ref)
            if parameter is None or self._samples.get(parameter) is not None:
                continue
            values = self._samples.put(parameter, _first_values(parameter))
            limit = COPY_DISTANCE * values.norm()
            similar = trained.get(tuple(parameter.shape), ())
            if any((_first_values(each).to(values) - values).norm() <= limit for each in similar):
                self._excluded.add(ref)
            if values.numel() == 1:
                self._numbers.add(ref)

    def _find_changed(self) -> None:
        """Find parameters without a gradient whose values differ from those of the first recorded update."""
        for parameter, values in self._samples.items():
            if not _first_values(parameter).equal(values):
                self._excluded.add(self._stream.registry.parameter_ref(parameter))

    def _end_tracing(self) -> None:
        """Report the parameters behind cuts that nothing has changed; some may be freed when the program has ended."""
        self._is_ended = True
        self._find_changed()
        untrained = self._all_untrained()
        unchanged = [
            group & untrained
            for group in self._groups.values()
            if self._excluded.isdisjoint(group) and not group <= self._numbers
        ]
        self._stream.emit(LossTracingEnded(unchanged=NO_REFS.union(*unchanged)))


def _first_values(parameter: Tensor) -> Tensor:
    return parameter.detach().flatten()[:COMPARED_VALUES].clone()


def _compiled_frames() -> int:
    """Return how many functions this process has compiled; they would be compiled again under a function mode."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return sum(counters["frames"].values()) if counters else 0


def _samples_distributions(file: str) -> bool:
    """Return True if a source file mentions distributions, and calls a method ``sample``."""
    text = read_source(file)
    if "distribution" not in text or ".sample(" not in text:
        return False
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        nodes = ast.walk(ast.parse(text))
        return any(isinstance(node, ast.Attribute) and node.attr == "sample" for node in nodes)
    return False
