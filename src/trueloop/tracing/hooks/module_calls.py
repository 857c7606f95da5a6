"""Traces calls of models, which are the outermost modules on the stack, and of suspicious modules within them."""

import importlib
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from trueloop.tracing.events import NO_REFS, Event, LayerCalled, ModelCalled, Ref, Refs
from trueloop.tracing.model_structure import has_trained_layers_only, parameters_and_modes
from trueloop.tracing.nonfinite.replay import RecordedCall, record_call, record_output
from trueloop.tracing.patch import Patches, hide_from_compiler
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import in_transform
from trueloop.tracing.user_location import ISOLATED_CALLER_DEPTH, user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

_NO_IDS: Final[frozenset[int]] = frozenset()
REPORTED_LAYERS: Final = (_BatchNorm, nn.RNNBase)
MAX_DETERMINISTIC_CALLS: Final = 4  # calls without a random number, after which the generator is no longer recorded
MAX_OUTPUTS: Final = 16  # tensors in a model's output that are inspected

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_bindings: Any = importlib.import_module("torch._C")
_any_autocast: Callable[[], bool] = getattr(_bindings, "_is_any_autocast_enabled", lambda: True)


class _ModelState:
    """The recorded state of a model that was called."""

    __slots__ = (
        "batch",
        "deterministic_calls",
        "eval_graphs",
        "eval_graphs_used",
        "graph_used",
        "ref",
        "refs",
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
        self.eval_graphs = weakref.WeakSet[Callable[..., None]]()
        """Hooks of graphs that were built in eval mode and are still in memory; one for each call."""
        self.eval_graphs_used = False
        self.deterministic_calls, self.training = 0, False
        """Number of calls in a row without random numbers, and the mode in which they ran."""


class _KnownSubmodules(NamedTuple):
    """Ids of the known submodules of a model: plain ones, and those that are inspected at each call."""

    root: weakref.ref[nn.Module]
    plain: set[int]
    inspected: set[int]

    def add(self, module: nn.Module) -> None:
        for each in module.modules():
            (self.inspected if isinstance(each, REPORTED_LAYERS) else self.plain).add(id(each))


class ModuleCalls:
    """Emits calls of models and their suspicious properties during full tracing.

    Cost: 10 us for each call of a model, and 0.5 us for each submodule.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (LayerCalled, ModelCalled)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._report = stream.isolated("calls of models", self._on_return)
        self._inspect_submodule = stream.isolated("submodules of models", self._on_submodule)
        self._record = stream.isolated("arguments of models", self._record_call)
        self._root: nn.Module | None = None
        self._known_submodules: dict[int, _KnownSubmodules] = {}
        self._plain: frozenset[int] | set[int] = _NO_IDS
        """Ids of the plain submodules of the running model."""
        self._running_thread = 0
        """Ident of the thread that runs the model."""
        self._layer_inputs = WeakIdDict[nn.Module, tuple[Ref | None, torch.Size]]()
        """Reported layer -> the loader of the latest batch and the shape of the input, at its latest call."""
        self._arguments: tuple[Any, ...] = ()
        """Positional arguments of the running model."""
        self._models = WeakIdDict[nn.Module, _ModelState]()
        self._generator_recorded_at = (-1, -1)
        """Numbers of updates and of backward passes when the generator's state was last recorded."""

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches."""
        self._models.clear()
        self._generator_recorded_at = (-1, -1)
        self._layer_inputs.clear()

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``nn.Module.__call__``."""
        self._known_submodules.clear()
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
            if stream.before_event is not None:
                stream.before_event()
            recorded = None
            if not program.backward_depth and not program.replayed and torch.is_grad_enabled() and not in_transform():
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
            self._report(module, (args, options), output, perf_counter() - start, recorded)
            return output

        return __call__

    def _record_call(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> RecordedCall | None:
        if isinstance(module, nn.RNNBase):
            self._report_layer(module, module, args, args)
        now, known = (self._stream.update, self._stream.backward_count), self._models.get(module)
        is_deterministic = known is not None and known.deterministic_calls >= MAX_DETERMINISTIC_CALLS
        may_draw = known is None or not is_deterministic or known.training is not module.training
        record, thread = may_draw and self._generator_recorded_at != now, self._program.thread_number()
        call = record_call(module, args, options, *now, record_generator=record, thread=thread)
        if call is not None:
            self._program.calls.append(call)
            if self._program.keeps_arguments:
                self._program.kept_arguments.append((args, options))
            if record:
                self._generator_recorded_at = now
        return call

    def _on_return(
        self, model: nn.Module, arguments: Any, output: Any, seconds: float, recorded: RecordedCall | None
    ) -> None:
        if recorded is not None:
            record_output(recorded, output)
        self._report_call(model, arguments, output, seconds)
        known = self._models.get(model)
        if known is not None and recorded is not None and recorded.generator is not None:
            is_random = not torch.equal(recorded.generator, torch.default_generator.get_state())
            before = known.deterministic_calls if known.training is model.training else 0
            known.deterministic_calls, known.training = 0 if is_random else before + 1, model.training

    def _report_call(self, model: nn.Module, arguments: Any, output: Any, seconds: float) -> None:
        parameters, modes = parameters_and_modes(model)
        if not parameters:
            return
        stream, program = self._stream, self._program
        known = self._models.get(model)
        if known is None:
            known = self._models.put(model, _ModelState(stream.registry.ref(model)))
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
        graphs = [graph for tensor in tensors_in(output) if (graph := tensor.grad_fn) is not None]
        grad_mode = torch.is_grad_enabled()
        if grad_mode:  # not for a teacher model, which is called without gradients
            program.autocast = autocast
        event = ModelCalled(
            location=user_location(ISOLATED_CALLER_DEPTH + 1),
            model=known.ref,
            training=model.training,
            dropout_active=modes.dropout or (modes.training and program.functional_dropout_active),
            batchnorm_active=modes.batchnorm,
            root_only_eval=modes.training and not model.training and has_trained_layers_only(model),
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
            inputs=None if in_transform() or torch.jit.is_tracing() else next(iter(tensors_in(arguments, 1)), None),
            previous_graph_used=previous_graph_used,
            eval_graphs_alive=len(known.eval_graphs),
            eval_graphs_used=lambda: known.eval_graphs_used,
        )
        for receive in program.on_model_called:
            receive(event)
        stream.emit(event)
        if graphs and not modes.training and not program.backward_depth and not in_transform():
            _watch_backward(graphs, known)

    def _report_layer(
        self, root: nn.Module, layer: nn.Module, args: tuple[Any, ...], model_args: tuple[Any, ...]
    ) -> None:
        """Report the call of a BatchNorm or recurrent layer if its input has another shape or source than before."""
        recurrent = isinstance(layer, nn.RNNBase)
        if not args or not isinstance(args[0], Tensor) or args[0].dim() < 2 or not (recurrent or layer.training):
            return
        loader, shape = self._program.loader, args[0].shape
        if self._layer_inputs.get(layer) != (loader, shape):
            self._layer_inputs.put(layer, (loader, shape))
            registry = self._stream.registry
            self._stream.emit(LayerCalled(
                location=user_location(), layer=registry.ref(layer), model=registry.ref(root), shape=tuple(shape),
                batch_first=layer.batch_first if recurrent else None, loader=loader, model_arguments=model_args,
            ))  # fmt: skip

    def _on_submodule(self, root: nn.Module, module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, REPORTED_LAYERS):
            self._report_layer(root, module, args, self._arguments)
        known = self._known_submodules.get(id(root))
        if known is None or known.root() is not root:
            known = self._known_submodules[id(root)] = _KnownSubmodules(weakref.ref(root), set(), set())
            known.add(root)
        self._plain = known.plain
        if id(module) in known.plain or id(module) in known.inspected:
            return
        known.add(module)
        for report in self._program.on_unknown_submodule:
            report(root, module)


def _watch_backward(graphs: list[Any], model: _ModelState) -> None:
    """Hook the last nodes of a graph, to record that the graph is run backward."""

    def mark_used(gradients: Any) -> None:
        model.graph_used = model.eval_graphs_used = True

    hide_from_compiler(mark_used)
    model.eval_graphs.add(mark_used)
    for graph in graphs:
        graph.register_prehook(mark_used)


def tensors_in(nested: Any, most: int = MAX_OUTPUTS) -> list[Tensor]:
    """Return the tensors in a model's output or arguments, in order."""
    if isinstance(nested, Tensor):
        return [nested]
    found, queue = list[Tensor](), [nested]
    while queue and len(found) < most:
        value = queue.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, dict):
            queue.extend(reversed(value.values()))
        elif isinstance(value, list | tuple):
            queue.extend(value[MAX_OUTPUTS - 1 :: -1] if len(value) > MAX_OUTPUTS else value[::-1])
    return found


def _autocast() -> str | None:
    """Return the active autocast type, of any device."""
    if not _any_autocast():
        return None
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None
