"""Traces calls of models, which are the outermost modules on the stack, and of suspicious modules within them."""

import importlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from time import perf_counter
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor, nn

from trueloop.core.findings import CodePosition
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
from trueloop.tracing.graph_leaves import sequence_number
from trueloop.tracing.hooks.forward_bypass import ForwardBypasses
from trueloop.tracing.layer_calls import INSPECTED_LAYERS, LayerCalls
from trueloop.tracing.layer_settings import find_dominating_epsilon, find_high_momentum, find_ineffective_freezes
from trueloop.tracing.model_structure import ModuleModes, parameters_and_modes
from trueloop.tracing.nonfinite.replay import RecordedCall, record_call, record_output
from trueloop.tracing.patch import Patches, hide_from_compiler
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import ISOLATED_CALLER_DEPTH, user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_NODES: Final = 96  # searched operations, backwards from a model's output
CAST: Final = "ToCopyBackward0"


def find_weight_cast(graphs: Iterable[Any]) -> tuple[Tensor, int] | None:
    """Return a leaf that was converted to another type near the output, and the conversion's sequence number; or None.

    Args:
        graphs: the last operations of a model, where the search starts.

    Cost: 30 us.
    """
    queue = list(graphs)
    for node in queue:
        if len(queue) > MAX_NODES:
            break
        followers = [follower for follower, _ in node.next_functions if follower is not None]
        leaf = getattr(followers[0], "variable", None) if followers and node.name() == CAST else None
        number = sequence_number(node)
        if isinstance(leaf, Tensor) and number is not None:
            return leaf, number
        queue += followers
    return None


_NO_IDS: Final[frozenset[int]] = frozenset()
MAX_DETERMINISTIC_CALLS: Final = 4  # calls without a random number, after which the generator is no longer recorded
MAX_OUTPUTS: Final = 16  # tensors in a model's output that are inspected

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_bindings: Any = importlib.import_module("torch._C")
_any_autocast: Callable[[], bool] = getattr(_bindings, "_is_any_autocast_enabled", lambda: True)
_transformed: Callable[[], bool] = getattr(_bindings, "_are_functorch_transforms_active", lambda: True)
"""Returns True within ``torch.func.grad`` and similar transforms. Reading their stack would create one for this thread,
which is then copied for every node of every backward."""


class _ModelState:
    """The recorded state of a model that was called."""

    __slots__ = (
        "batch",
        "deterministic_calls",
        "freeze_attributes",
        "graph_used",
        "optimizers_checked",
        "ref",
        "refs",
        "settings_checked",
        "training",
    )

    def __init__(self, ref: Ref) -> None:
        self.ref = ref
        self.refs: Refs = NO_REFS
        """Parameters of the model at its latest call."""
        self.batch = -1
        """Number of batches that all loaders had returned at the latest call."""
        self.graph_used = False
        """Whether the graph of the latest call in eval mode was run backward."""
        self.settings_checked = False
        """Whether the settings of the layers were checked."""
        self.deterministic_calls, self.training = 0, False
        """Number of calls in a row without random numbers, and the mode in which they ran."""
        self.freeze_attributes: tuple[FreezeAttribute, ...] = ()
        """Attributes of the model's modules and parameters that no code reads."""
        self.optimizers_checked = 0
        """Number of known optimizers at the latest search for ``freeze_attributes``."""


class _KnownSubmodules(NamedTuple):
    """Ids of the known submodules of a model: plain ones, and those that are inspected at each call."""

    root: weakref.ref[nn.Module]
    plain: set[int]
    inspected: set[int]

    def add(self, module: nn.Module) -> None:
        for each in module.modules():
            (self.inspected if isinstance(each, INSPECTED_LAYERS) else self.plain).add(id(each))


class ModuleCalls:
    """Emits calls of models and their suspicious properties during full tracing; also runs `ForwardBypasses`.

    Cost: 10 us for each call of a model, and 0.5 us for each submodule.
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
        self, stream: EventStream, program: ProgramState, on_new_model: Callable[[nn.Module], None] = lambda model: None
    ) -> None:
        self._stream, self._program, self._on_new_model = stream, program, on_new_model
        self._report = stream.isolated("calls of models", self._on_return)
        self._inspect_submodule = stream.isolated("submodules of models", self._on_submodule)
        self._bypasses = ForwardBypasses(stream, program)
        self._check_bypass = stream.isolated_inner("direct calls of forward", self._bypasses.check)
        self._record = stream.isolated("arguments of models", self._record_call)
        self._root: nn.Module | None = None
        self._known_submodules: dict[int, _KnownSubmodules] = {}
        self._plain: frozenset[int] | set[int] = _NO_IDS
        """Ids of the plain submodules of the running model."""
        self._unregistered: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._running_thread = 0
        """Ident of the thread that runs the model."""
        self._pending: list[tuple[weakref.ref[nn.Module], weakref.ref[nn.Module], CodePosition | None, int]] = []
        """Unregistered modules without a gradient so far, each with its model, line and thread number."""
        self._layers = LayerCalls(stream, program)
        self._arguments: tuple[Any, ...] = ()
        """Positional arguments of the running model."""
        self._models = WeakIdDict[nn.Module, _ModelState]()
        self._generator_recorded_at = (-1, -1)
        """Numbers of updates and of backward passes when the generator's state was last recorded."""

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches."""
        self._pending = []
        self._models.clear()
        self._generator_recorded_at = (-1, -1)
        self._unregistered.clear()
        self._layers.reset()

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``nn.Module.__call__``."""
        self._known_submodules.clear()
        self._bypasses.reset()
        patches.replace(nn.Module, "__call__", self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program = self._stream, self._program

        def __call__(module: nn.Module, /, *args: Any, **options: Any) -> Any:  # noqa: N807
            if id(module) in self._plain or not stream.active or _is_compiling() or program.is_other_thread():
                return original(module, *args, **options)
            if program.forward_depth:
                root = self._root
                if root is not None and module is not root and self._running_thread == get_ident():
                    self._inspect_submodule(root, module, args)
                return original(module, *args, **options)
            if not module._modules and not module._parameters and type(module).__module__.startswith("torch.nn"):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                return original(module, *args, **options)  # a PyTorch loss, which is read from the graph
            recorded = None
            if not program.backward_depth and not program.replayed and torch.is_grad_enabled() and not _transformed():
                recorded = self._record(module, args, options)
            program.forward_depth, program.functional_dropout_active, self._root, self._running_thread = (
                1,
                False,
                module,
                get_ident(),
            )
            self._arguments = args
            known = self._known_submodules.get(id(module))
            self._plain = known.plain if known is not None and known.root() is module else _NO_IDS
            start = perf_counter()
            try:
                output = original(module, *args, **options)
            finally:
                program.forward_depth, self._root, self._arguments, self._plain = 0, None, (), _NO_IDS
            self._report(module, output, perf_counter() - start, recorded)
            return output

        return __call__

    def _record_call(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> RecordedCall | None:
        if isinstance(module, nn.RNNBase):
            self._layers.inspect(module, module, args, args)
        now, known = (self._stream.update, self._stream.backward_count), self._models.get(module)
        is_deterministic = known is not None and known.deterministic_calls >= MAX_DETERMINISTIC_CALLS
        may_draw = known is None or not is_deterministic or known.training is not module.training
        record, thread = may_draw and self._generator_recorded_at != now, self._program.thread_number()
        call = record_call(module, args, options, *now, record_generator=record, thread=thread)
        if call is not None:
            self._program.calls.append(call)
            if record:
                self._generator_recorded_at = now
        return call

    def _on_return(self, model: nn.Module, output: Any, seconds: float, recorded: RecordedCall | None) -> None:
        if recorded is not None:
            record_output(recorded, output)
        self._report_call(model, output, seconds)
        known = self._models.get(model)
        if known is not None and recorded is not None and recorded.generator is not None:
            is_random = not torch.equal(recorded.generator, torch.default_generator.get_state())
            before = known.deterministic_calls if known.training is model.training else 0
            known.deterministic_calls, known.training = 0 if is_random else before + 1, model.training

    def _report_call(self, model: nn.Module, output: Any, seconds: float) -> None:
        parameters, modes = parameters_and_modes(model)
        if not parameters:
            return
        stream, program = self._stream, self._program
        known = self._models.get(model)
        if known is None:
            known = self._models.put(model, _ModelState(stream.registry.ref(model)))
            self._on_new_model(model)
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
        is_new_batch, known.batch = known.batch != batch, batch
        previous_graph_used, known.graph_used = known.graph_used, False
        autocast = _autocast()
        if self._pending and not program.backward_depth:
            self._report_unregistered(model)
        graphs = [graph for tensor in _tensors(output) if (graph := tensor.grad_fn) is not None]
        grad_mode = torch.is_grad_enabled()
        if grad_mode:  # not for a teacher model, which is called without gradients
            program.autocast = autocast
        location = user_location(ISOLATED_CALLER_DEPTH + 1)
        stream.emit(
            ModelCalled(
                location=location,
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
                loader=program.loader if is_new_batch else None,
                parameters=refs,
                seconds=seconds,
                live_module=model,
                output=output,
                autocast_parameter=self._find_cast(graphs) if autocast and graphs else None,
                previous_graph_used=previous_graph_used,
            )
        )
        if graphs and not program.backward_depth:
            self._check_bypass(location)
            if modes.training:
                self._check_settings(model, known, modes)
        if graphs and not modes.training and not program.backward_depth and not _transformed():
            _watch_backward(graphs, known)

    def _check_settings(self, model: nn.Module, known: _ModelState, modes: ModuleModes) -> None:
        """Check layer settings once, and freezing after each new optimizer, or as long as it has no effect."""
        stream, registry = self._stream, self._stream.registry
        if not known.settings_checked and modes.batchnorm:
            known.settings_checked = True
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
        if known.optimizers_checked == self._program.optimizers_seen and not known.freeze_attributes:
            return  # also before the first optimizer, without which nothing is trained
        before, known.optimizers_checked = known.freeze_attributes, self._program.optimizers_seen
        known.freeze_attributes = tuple(
            FreezeAttribute(each.attribute, each.value, tuple(each.names), each.modules, registry.refs(each.parameters))
            for each in find_ineffective_freezes(model)
        )
        if known.freeze_attributes != before:
            stream.emit(
                IneffectiveFreeze(location=user_location(), model=known.ref, attributes=known.freeze_attributes)
            )

    def _find_cast(self, graphs: Sequence[Any]) -> tuple[Ref, int] | None:
        found = find_weight_cast(graphs)
        return found and (self._stream.registry.parameter_ref(found[0]), found[1])

    def _on_submodule(self, root: nn.Module, module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, INSPECTED_LAYERS):
            self._layers.inspect(root, module, args, self._arguments)
        known = self._known_submodules.get(id(root))
        if known is None or known.root() is not root:
            known = self._known_submodules[id(root)] = _KnownSubmodules(weakref.ref(root), set(), set())
            known.add(root)
        self._plain = known.plain
        if id(module) in known.plain or id(module) in known.inspected:
            return
        known.add(module)
        own = list(module.parameters())
        if module in self._unregistered or not own or not module.training:
            return
        registered = set(map(id, root.parameters()))
        if all(id(p) in registered for p in own):
            return
        for inner in module.modules():
            self._unregistered.add(inner)
        self._pending.append((weakref.ref(module), weakref.ref(root), user_location(), self._program.thread_number()))

    def _report_unregistered(self, model: nn.Module) -> None:
        """Report unregistered modules that have gradients; modules that stay random on purpose never have any."""
        pending, self._pending = self._pending, []
        own_thread = self._program.thread_number()  # gradients of other threads must not be read
        for module_ref, root_ref, location, thread in pending:
            module, root = module_ref(), root_ref()
            if module is None or root is None or thread != own_thread:
                continue
            own = list(module.parameters())
            if (self._program.multi_threaded and root is not model) or all(p.grad is None for p in own):
                self._pending.append((module_ref, root_ref, location, thread))
                continue
            registry = self._stream.registry
            self._stream.emit(
                UnregisteredModuleCalled(
                    location=location,
                    module=registry.ref(module),
                    model=registry.ref(root),
                    parameters=registry.refs(own),
                    trainable=any(p.requires_grad for p in own),
                    live_module=module,
                )
            )


def _watch_backward(graphs: list[Any], model: _ModelState) -> None:
    """Hook the last nodes of a graph, to record that the graph is run backward."""

    def mark_used(gradients: Any) -> None:
        model.graph_used = True

    hide_from_compiler(mark_used)
    for graph in graphs:
        graph.register_prehook(mark_used)


def _tensors(output: Any) -> list[Tensor]:
    """Return the tensors in a model's output, at most `MAX_OUTPUTS`."""
    if isinstance(output, Tensor):
        return [output]
    found, queue = list[Tensor](), [output]
    while queue and len(found) < MAX_OUTPUTS:
        value = queue.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, dict):
            queue.extend(value.values())
        elif isinstance(value, list | tuple):
            queue.extend(value[:MAX_OUTPUTS])
    return found


def _autocast() -> str | None:
    """Return the active autocast type, of any device."""
    if not _any_autocast():
        return None
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None
