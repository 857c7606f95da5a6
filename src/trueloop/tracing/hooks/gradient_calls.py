"""Traces ``torch.autograd.grad`` as a backward pass where the program updates parameters with its results.

The inputs of the first calls are only compared, as `hand_written_updates` describes: an adversarial example, a gradient
penalty or a product with the Hessian is no backward pass. Once they count as parameters that are updated by hand, each
call is passed through ``torch.autograd.backward``, so that every hook sees it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import FunctionType
from typing import Any, ClassVar, Final, NamedTuple, cast

import torch
from torch import Tensor, nn

from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.graph_leaves import graph_leaves
from trueloop.tracing.hooks.hand_written_updates import HandWrittenUpdates, shown_gradients
from trueloop.tracing.patch import HIDDEN_FILE, Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import in_transform
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_SEARCHES: Final = 64  # calls whose inputs are compared without finding an update
_LEAVES: Final = {Tensor, nn.Parameter}
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class _Call(NamedTuple):
    """A call whose inputs may be updated by hand."""

    root: Tensor
    inputs: Sequence[Tensor]
    is_known: bool
    """Whether the inputs are updated by hand, so that the call is a backward pass."""


class GradientCalls(Hook):
    """Traces calls of ``torch.autograd.grad`` by which a program without ``torch.optim`` and ``backward()`` trains.

    The outputs must be one number, the inputs leaves on the CPU, and ``create_graph`` False. The gradients count as
    cleared before each call; they are in ``.grad`` only while hooks and listeners read them.

    Cost: nothing once the program has an optimizer or calls ``backward()``; otherwise 10 us for each of the first
    calls, and then that of a backward pass. The latest gradients stay in memory until their update is reported.
    """

    emits: ClassVar[tuple[type[Event], ...]] = ()

    def __init__(self, stream: EventStream, program: ProgramState, updates: HandWrittenUpdates) -> None:
        self._stream, self._program, self._updates = stream, program, updates
        subject = "calls of torch.autograd.grad"
        self._inspect = stream.isolated(subject, self._on_call)
        self._record = stream.isolated(subject, self._on_gradients)
        self._show = stream.isolated(subject, self._on_results)
        self._passed: Callable[[], None] | None = None
        """Computes the gradients of the running call, in place of a backward pass."""
        self._shown = ExitStack()
        self._running = False
        self._reset()

    def _reset(self) -> None:
        self._is_ended = False
        self._searches = 0
        self._differentiated = WeakIdDict[Tensor, bool]()
        """Leaves whose gradients were computed with a graph, and so may be part of later outputs."""

    def install_always(self, patches: Patches) -> None:
        """Replace ``torch.autograd.backward`` before all other hooks, and the code of ``torch.autograd.grad``."""
        self._reset()
        patches.replace(torch.autograd, "backward", self._backward)
        patches.swap_code(cast("FunctionType", torch.autograd.grad), self._grad)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(
            tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: Any = False,
            grad_variables: Any = None, inputs: Any = None,
        ) -> Any:  # fmt: skip
            passed, self._passed = self._passed, None
            if passed is not None:
                return passed()
            self._is_ended = True
            return original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)

        return backward

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program = self._stream, self._program

        def grad(outputs: Any, inputs: Any, *options: Any) -> Any:
            if self._is_ended or self._running or not stream.active or program.backward_depth or _is_compiling():
                return original(outputs, inputs, *options)
            if program.is_other_thread():
                return original(outputs, inputs, *options)
            if isinstance(inputs, Iterator):  # such as ``model.parameters()``
                inputs = tuple(cast("Iterator[Any]", inputs))
            call = self._inspect(outputs, inputs, options)
            if call is None:
                return original(outputs, inputs, *options)
            self._running = True
            try:
                if call.is_known:
                    return self._pass_through(call, lambda: original(outputs, inputs, *options), options[1])
                results = original(outputs, inputs, *options)
            finally:
                self._running = False
            self._record(call, results)
            return results

        return grad

    def _pass_through(self, call: _Call, compute: Callable[[], Any], retain_graph: Any) -> Any:
        """Return the gradients, which are computed where ``torch.autograd.backward`` would run the graph."""
        results: list[Any] = []

        def run() -> None:
            results.append(compute())
            self._show(call, results[0])

        self._passed = run
        self._updates.call_inputs = call.inputs
        try:
            torch.autograd.backward(call.root, None, retain_graph)
        finally:
            self._passed, self._updates.call_inputs = None, ()
            self._shown.close()
        return results[0] if results else compute()

    def _on_call(self, outputs: Any, inputs: Any, options: Sequence[Any]) -> _Call | None:
        leaves, create_graph = _leaves(inputs), options[2]
        if not leaves or in_transform():
            return None
        root = _number(outputs, options)
        if create_graph:
            for each in leaves:
                self._differentiated.put(each, True)
        if root is None or any(self._differentiated.get(each) for each in leaves):
            return None
        if self._updates.follow_call(leaves):
            code = getattr(torch.autograd.backward, "__code__", None)
            return _Call(root, leaves, is_known=True) if getattr(code, "co_filename", "") == HIDDEN_FILE else None
        self._searches += 1
        is_searched = self._stream.full_tracing and self._searches <= MAX_SEARCHES and not _is_data(root, leaves)
        return _Call(root, leaves, is_known=False) if is_searched else None

    def _on_gradients(self, call: _Call, results: Any) -> None:
        self._updates.record_call(call.inputs, _gradients(results))

    def _on_results(self, call: _Call, results: Any) -> None:
        self._shown.enter_context(shown_gradients(list(zip(call.inputs, _gradients(results), strict=True))))


def _leaves(inputs: Any) -> Sequence[Tensor]:
    """Return the inputs if all of them are leaves on the CPU that may be parameters, otherwise ()."""
    several = list(inputs.values()) if isinstance(inputs, dict) else inputs
    several = [several] if isinstance(several, Tensor) else several
    if not isinstance(several, list | tuple):
        return ()
    found = [each for each in cast("Sequence[Any]", several) if type(each) in _LEAVES and each.is_leaf and each.is_cpu]
    return found if len(found) == len(several) and all(each.requires_grad for each in found) else ()


def _number(outputs: Any, options: Sequence[Any]) -> Tensor | None:
    """Return the output if it is one number with a graph, and the gradients are those of a backward pass from it."""
    several = cast("Sequence[Any]", outputs if isinstance(outputs, list | tuple) else [outputs])
    grad_outputs, _, create_graph, _, _, is_batched, *_ = options
    if len(several) != 1 or not isinstance(several[0], Tensor) or several[0].numel() != 1:
        return None
    is_plain = several[0].grad_fn is not None and grad_outputs is None and not create_graph and not is_batched
    return several[0] if is_plain else None


def _gradients(results: Any) -> Sequence[Tensor | None]:
    return list(results.values()) if isinstance(results, dict) else list(results)


def _is_data(root: Tensor, inputs: Sequence[Tensor]) -> bool:
    """Return True if the output depends on parameters of a module, and its gradient is computed for other leaves."""
    return not any(isinstance(each, nn.Parameter) for each in inputs) and any(
        isinstance(each, nn.Parameter) for each in graph_leaves([root])
    )
