"""Forward passes of whole models, and what runs within them."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from time import perf_counter
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.tracing.casts import find_weight_cast
from trueloop.tracing.events import (
    NO_REFS,
    BatchNormSingleSample,
    BatchNormTrained,
    DominatingEpsilon,
    Event,
    ForwardBypassed,
    FreezeAttribute,
    HighBatchNormMomentum,
    IneffectiveFreeze,
    ModelCalled,
    RecurrentLayerCalled,
    Ref,
    Refs,
    UnregisteredModuleCalled,
)
from trueloop.tracing.hooks.forward_bypass import ForwardBypasses
from trueloop.tracing.layer_calls import INSPECTED_LAYERS, LayerCalls
from trueloop.tracing.layer_settings import find_dominating_epsilon, find_high_momentum, find_ineffective_freezes
from trueloop.tracing.model_structure import ModuleModes, parameters_and_modes
from trueloop.tracing.nonfinite.replay import RecordedCall, record_call, record_output
from trueloop.tracing.object_facts import WeakIdDict
from trueloop.tracing.patch import Patches, hide_from_compiler
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import ISOLATED_CALLER_DEPTH, user_location

_NO_IDS: Final[frozenset[int]] = frozenset()
UNDRAWN: Final = 4  # calls without a random number, after which the generator's state is not noted any more
MOST_OUTPUTS: Final = 16  # tensors of an output that are looked at

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_bindings: Any = importlib.import_module("torch._C")
_any_autocast: Callable[[], bool] = getattr(_bindings, "_is_any_autocast_enabled", lambda: True)
_transformed: Callable[[], bool] = getattr(_bindings, "_are_functorch_transforms_active", lambda: True)
"""True within ``torch.func.grad`` and its like. Looking at their stack would make one for this thread, and from then on
that is copied for every node of every backward."""


class _Known:
    """What is known of one model that was called."""

    __slots__ = ("batch", "looked", "marks", "met", "ref", "refs", "training", "undrawn", "used")

    def __init__(self, ref: Ref) -> None:
        self.ref = ref
        self.refs: Refs = NO_REFS
        """Its parameters, at its latest call."""
        self.batch = -1
        """Batches drawn when it was last called."""
        self.used = False
        """Its latest graph, made in eval mode, was run backward."""
        self.looked = False
        """Its layers' settings were looked at."""
        self.undrawn, self.training = 0, False
        """Calls in a row that have drawn no random numbers, in this mode."""
        self.marks: tuple[FreezeAttribute, ...] = ()
        """Attributes on its parts that nothing reads."""
        self.met = 0
        """Optimizers met so far, when these were looked for."""


class _Held(NamedTuple):
    """The modules within a model that are known, by id; those apart that are looked at each time."""

    root: weakref.ref[nn.Module]
    plain: set[int]
    looked_at: set[int]

    def add(self, module: nn.Module) -> None:
        for each in module.modules():
            (self.looked_at if isinstance(each, INSPECTED_LAYERS) else self.plain).add(id(each))


class ModuleCalls:
    """Tells of calls of models and what is odd about them, and has `ForwardBypasses` look, all while watching in full.

    Cost: 10 us for each call of a model and 0.5 us for each module within it.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (
        BatchNormSingleSample,
        BatchNormTrained,
        DominatingEpsilon,
        ForwardBypassed,
        IneffectiveFreeze,
        ModelCalled,
        RecurrentLayerCalled,
        HighBatchNormMomentum,
        UnregisteredModuleCalled,
    )

    def __init__(
        self, stream: EventStream, program: ProgramState, met: Callable[[nn.Module], None] = lambda model: None
    ) -> None:
        self._stream, self._program, self._met_by = stream, program, met
        self._tell = stream.isolated("calls of models", self._returned)
        self._look = stream.isolated("modules within models", self._within)
        self._bypasses = ForwardBypasses(stream, program)
        self._direct = stream.isolated_inner("direct calls of forward", self._bypasses.check)
        self._note = stream.isolated("arguments of models", self._noted)
        self._root: nn.Module | None = None
        self._held: dict[int, _Held] = {}
        self._plain: frozenset[int] | set[int] = _NO_IDS
        """Of the model that is just running."""
        self._strangers: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._caller = 0
        """The thread in which the model is running."""
        self._waiting: list[tuple[weakref.ref[nn.Module], weakref.ref[nn.Module], CodePosition | None, int]] = []
        """Strangers without a gradient so far, the model they ran in, where, and in which thread, by its number."""
        self._layers = LayerCalls(stream, program)
        self._given: tuple[Any, ...] = ()
        """The arguments of the model that is just running."""
        self._models = WeakIdDict[nn.Module, _Known]()
        self._drawn_at = (-1, -1)
        """Updates and backwards when the generator's state was noted last."""

    def install_always(self, patches: Patches) -> None:
        """Nothing is needed lightly; what was told to others is forgotten."""
        self._waiting = []
        self._models.clear()
        self._drawn_at = (-1, -1)
        self._strangers.clear()
        self._layers.begin()

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``nn.Module.__call__``."""
        self._held.clear()
        self._bypasses.reset()
        patches.replace(nn.Module, "__call__", self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program = self._stream, self._program

        def __call__(module: nn.Module, /, *args: Any, **options: Any) -> Any:  # noqa: N807
            if id(module) in self._plain or not stream.active or _is_compiling() or program.is_other_thread():
                return original(module, *args, **options)
            if program.forward_depth:
                root = self._root
                if root is not None and module is not root and self._caller == get_ident():
                    self._look(root, module, args)
                return original(module, *args, **options)
            if not module._modules and not module._parameters and type(module).__module__.startswith("torch.nn"):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                return original(module, *args, **options)  # a loss of torch's own: the graph tells
            noted = None
            if not program.backward_depth and not program.replayed and torch.is_grad_enabled() and not _transformed():
                noted = self._note(module, args, options)
            program.forward_depth, program.functional_dropout_active, self._root, self._caller = (
                1,
                False,
                module,
                get_ident(),
            )
            self._given = args
            held = self._held.get(id(module))
            self._plain = held.plain if held is not None and held.root() is module else _NO_IDS
            start = perf_counter()
            try:
                output = original(module, *args, **options)
            finally:
                program.forward_depth, self._root, self._given, self._plain = 0, None, (), _NO_IDS
            self._tell(module, output, perf_counter() - start, noted)
            return output

        return __call__

    def _noted(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> RecordedCall | None:
        if isinstance(module, nn.RNNBase):
            self._layers.look(module, module, args, args)
        now, known = (self._stream.update, self._stream.backward_count), self._models.get(module)
        draws = known is None or known.undrawn < UNDRAWN or known.training is not module.training
        first, thread = draws and self._drawn_at != now, self._program.thread_number()
        call = record_call(module, args, options, *now, drawn=first, thread=thread)
        if call is not None:
            self._program.calls.append(call)
            if first:
                self._drawn_at = now
        return call

    def _returned(self, model: nn.Module, output: Any, seconds: float, noted: RecordedCall | None) -> None:
        if noted is not None:
            record_output(noted, output)
        self._called(model, output, seconds)
        known = self._models.get(model)
        if known is not None and noted is not None and noted.generator is not None:
            drawn = not torch.equal(noted.generator, torch.default_generator.get_state())
            before = known.undrawn if known.training is model.training else 0
            known.undrawn, known.training = 0 if drawn else before + 1, model.training

    def _called(self, model: nn.Module, output: Any, seconds: float) -> None:
        parameters, modes = parameters_and_modes(model)
        if not parameters:
            return
        stream, program = self._stream, self._program
        known = self._models.get(model)
        if known is None:
            known = self._models.put(model, _Known(stream.registry.ref(model)))
            self._met_by(model)
        called, before = (program.thread_number(), stream.update), program.models.get(model)
        if before != called:
            program.models.put(model, called)
            program.structure_changes += before is None or before[0] != called[0]
        refs = stream.registry.refs(parameters)
        if known.refs is not refs:
            known.refs = refs
            program.structure_changes += 1
            stream.registry.name_parameters(model)
        batch = program.batch
        fresh, known.batch = known.batch != batch, batch
        used, known.used = known.used, False
        autocast = _autocast()
        if self._waiting and not program.backward_depth:
            self._met(model)
        graphs = [graph for tensor in _tensors(output) if (graph := tensor.grad_fn) is not None]
        grad_mode = torch.is_grad_enabled()
        if grad_mode:  # not that of a teacher
            program.autocast = autocast
        place = user_location(ISOLATED_CALLER_DEPTH + 1)
        stream.emit(
            ModelCalled(
                location=place,
                model=known.ref,
                training=model.training,
                dropout_active=modes.dropout or (modes.training and program.functional_dropout_active),
                batchnorm_active=modes.batchnorm,
                all_eval=not modes.training,
                grad_mode=grad_mode,
                inference_mode=torch.is_inference_mode_enabled(),
                has_graph=bool(graphs),
                autocast=autocast,
                recomputed=program.backward_depth > 0,
                loader=program.loader if fresh else None,
                parameters=refs,
                seconds=seconds,
                live_module=model,
                output=output,
                autocast_parameter=self._cast(graphs) if autocast and graphs else None,
                previous_graph_used=used,
            )
        )
        if graphs and not program.backward_depth:
            self._direct(place)
            if modes.training:
                self._settings(model, known, modes)
        if graphs and not modes.training and not program.backward_depth and not _transformed():
            _mark(graphs, known)

    def _settings(self, model: nn.Module, known: _Known, modes: ModuleModes) -> None:
        """Look at layers' settings once; at what was frozen in vain for each new optimizer, and again where any was."""
        stream, registry = self._stream, self._stream.registry
        if not known.looked and modes.batchnorm:
            known.looked = True
            stream.emit(BatchNormTrained(location=user_location(), model=known.ref))
            for found in find_high_momentum(model):
                stream.emit(HighBatchNormMomentum(
                    location=user_location(), module=registry.ref(found.first), model=known.ref, momentum=found.value,
                    layers=found.layers,
                ))  # fmt: skip
            for found in find_dominating_epsilon(model):
                stream.emit(DominatingEpsilon(
                    location=user_location(), module=registry.ref(found.first), model=known.ref, epsilon=found.value,
                    layers=found.layers,
                ))  # fmt: skip
        if (
            known.met == self._program.optimizers_seen and not known.marks
        ):  # before there is an optimizer nothing is trained
            return
        before, known.met = known.marks, self._program.optimizers_seen
        known.marks = tuple(
            FreezeAttribute(each.attribute, each.value, tuple(each.names), each.modules, registry.refs(each.parameters))
            for each in find_ineffective_freezes(model)
        )
        if known.marks != before:
            stream.emit(IneffectiveFreeze(location=user_location(), model=known.ref, attributes=known.marks))

    def _cast(self, graphs: Sequence[Any]) -> tuple[Ref, int] | None:
        found = find_weight_cast(graphs)
        return found and (self._stream.registry.parameter_ref(found[0]), found[1])

    def _within(self, root: nn.Module, module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, INSPECTED_LAYERS):
            self._layers.look(root, module, args, self._given)
        known = self._held.get(id(root))
        if known is None or known.root() is not root:
            known = self._held[id(root)] = _Held(weakref.ref(root), set(), set())
            known.add(root)
        self._plain = known.plain
        if id(module) in known.plain or id(module) in known.looked_at:
            return
        known.add(module)
        own = list(module.parameters())
        if module in self._strangers or not own or not module.training:
            return
        registered = set(map(id, root.parameters()))
        if all(id(p) in registered for p in own):
            return
        for inner in module.modules():
            self._strangers.add(inner)
        self._waiting.append((weakref.ref(module), weakref.ref(root), user_location(), self._program.thread_number()))

    def _met(self, model: nn.Module) -> None:
        """Tell of strangers that have got gradients: those that are random on purpose never do."""
        waiting, self._waiting = self._waiting, []
        own_thread = self._program.thread_number()  # gradients of others are not touched
        for known, owner, place, thread in waiting:
            module, root = known(), owner()
            if module is None or root is None or thread != own_thread:
                continue
            own = list(module.parameters())
            if (self._program.multi_threaded and root is not model) or all(p.grad is None for p in own):
                self._waiting.append((known, owner, place, thread))
                continue
            registry = self._stream.registry
            self._stream.emit(
                UnregisteredModuleCalled(
                    location=place,
                    module=registry.ref(module),
                    model=registry.ref(root),
                    parameters=registry.refs(own),
                    trainable=any(p.requires_grad for p in own),
                    live_module=module,
                )
            )


def _mark(graphs: list[Any], model: _Known) -> None:
    """Have it noted when a graph is run backward."""

    def note(gradients: Any) -> None:
        model.used = True

    hide_from_compiler(note)
    for graph in graphs:
        graph.register_prehook(note)


def _tensors(output: Any) -> list[Tensor]:
    """Return the first tensors of a model's output."""
    if isinstance(output, Tensor):
        return [output]
    found, queue = list[Tensor](), [output]
    while queue and len(found) < MOST_OUTPUTS:
        value = queue.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, dict):
            queue.extend(value.values())
        elif isinstance(value, list | tuple):
            queue.extend(value[:MOST_OUTPUTS])
    return found


def _autocast() -> str | None:
    """Return the type of autocast that is on, for whichever kind of device."""
    if not _any_autocast():
        return None
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None
