"""Runs a recorded call of a model again, on copies of its state, and records the operations of the run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.overrides import TorchFunctionMode

from trueloop.core.findings import CodePosition
from trueloop.tracing.nonfinite.replay import (
    RecordedCall,
    attributes_replaced,
    compilation_disabled,
    generators_restored,
    has_state,
    output_muted,
    replayed_position,
    restore_arguments,
)
from trueloop.tracing.nonfinite.replica_state import CannotReplayError, ReplicaState
from trueloop.tracing.nonfinite.values import tensors_in
from trueloop.tracing.patch import Patches

MAX_BYTES: Final = 1 << 30  # size of all results of operations of one run, which are kept until they are compared
_pytree: Any = pytree


class Operation(NamedTuple):
    """One PyTorch function that a run has called."""

    name: str
    """Name of the function: "lstm", "getitem", "softmax"."""
    location: CodePosition | None
    """The user's line that led to it."""
    module: str
    """Name and class of the module of PyTorch that called it: "2 (Softmax)"; "" = another module."""
    inputs: Sequence[tuple[int, int] | None]
    """For each tensor among its arguments, the number of the operation that made it and its place among the results;
    None = the model's arguments and parameters."""
    input_shapes: Sequence[tuple[int, ...]]
    results: Sequence[Tensor]


class Run(NamedTuple):
    """One run of a model."""

    outputs: Sequence[Tensor]
    operations: Sequence[Operation]
    makers: Mapping[int, tuple[int, int]]
    """Id of a tensor -> number of the operation that made it, and its place among the results."""
    is_random: bool
    """Whether the run has drawn random numbers."""

    def counterpart(self, other: Run, tensor: Tensor) -> Tensor:
        """Return the tensor of another run in the place of one of this run."""
        for mine, theirs in zip(self.outputs, other.outputs, strict=False):
            if mine is tensor:
                return theirs
        operation, place = self.makers[id(tensor)]
        return other.operations[operation].results[place]


class Reruns:
    """A model call that can be repeated with other arguments.

    Args:
        call: the call, whose arguments are still in memory.

    Raises:
        CannotReplayError: the call cannot be repeated without side effects.
    """

    def __init__(self, call: RecordedCall) -> None:
        module = call.module()
        if module is None:
            raise CannotReplayError
        self.module = cast("nn.Module", getattr(module, "_orig_mod", module))
        self._call = call
        self._modules = list(self.module.modules())
        if any(isinstance(each, torch.jit.ScriptModule) for each in self._modules):
            raise CannotReplayError
        arguments = (restore_arguments(call.args, {}), restore_arguments(call.options, {}))
        self.leaves, self._structure = _pytree.tree_flatten(arguments, is_leaf=_is_numbers)
        """All arguments: tensors, lists of integers and single values."""

    def tensors(self) -> list[tuple[int, Tensor]]:
        """Return the tensors among the arguments, with their place: the index in `leaves`."""
        return [(place, each) for place, each in enumerate(self.leaves) if isinstance(each, Tensor)]

    def run(self, changes: Mapping[int, Any], *, evaluating: bool, as_it_was: bool = True) -> Run:
        """Run the model.

        Args:
            changes: place of an argument -> its new value.
            evaluating: whether all modules are in eval mode; otherwise only batch normalisation is.
            as_it_was: whether the generator starts from the recorded state.

        Raises:
            Exception: the model raised; even then all state is restored.
        """
        copies = ReplicaState(self._modules)
        attributes = [copies.copy_module(each) for each in self._modules]
        for module, each in zip(self._modules, attributes, strict=True):
            if evaluating or isinstance(module, _BatchNorm):
                each["training"] = False
        leaves = [changes.get(place, _copy(each)) for place, each in enumerate(self.leaves)]
        args, options = _pytree.tree_unflatten(leaves, self._structure)
        kind, recorder = self._call.autocast, _Recorder(Reruns.run.__code__)
        with (
            generators_restored(self._call.generator if as_it_was else None),
            attributes_replaced(self._modules, attributes),
            _only_modules(dict(self.module.named_modules()), recorder.modules),
            output_muted(),
            compilation_disabled(),
        ):
            before = torch.get_rng_state()
            autocast = torch.autocast("cpu", kind, enabled=kind is not None, cache_enabled=False)
            with torch.enable_grad(), autocast, recorder:
                output = self.module(*args, **options)
            is_random = not torch.equal(before, torch.get_rng_state())
        return Run(_values(output), recorder.operations, recorder.makers, is_random)


def _name(func: Any) -> str:
    name = str(getattr(func, "__name__", func)).strip("_")
    return str(func.__self__.__name__) if name == "get" else name  # of an attribute, such as ``x.T``


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in cast("list[Any]", value))


def _copy(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _values(output: Any) -> list[Tensor]:
    """Return the tensors of an output, also of an object such as a dataclass."""
    found = list(tensors_in(output))
    if not found and hasattr(output, "__dict__"):
        found = list(tensors_in(vars(output)))
    return found


class _Recorder(TorchFunctionMode):
    """Records the PyTorch functions of one thread.

    Args:
        start: code of the function that starts the run.
    """

    def __init__(self, start: Any) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.makers: dict[int, tuple[int, int]] = {}
        self.modules = [""]
        """Names of the running modules of PyTorch, outermost first."""
        self._start, self._bytes = start, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        results = list(tensors_in(result))
        if results:
            inputs = [*tensors_in(args), *tensors_in(kwargs or {})]
            location = replayed_position(self._start)
            operation = Operation(
                _name(func),
                location,
                self.modules[-1],
                [self.makers.get(id(each)) for each in inputs],
                [tuple(each.shape) for each in inputs],
                results,
            )
            self._bytes += sum(each.numel() * each.element_size() for each in results)
            if self._bytes > MAX_BYTES:
                raise CannotReplayError
            self.makers.update((id(each), (len(self.operations), place)) for place, each in enumerate(results))
            self.operations.append(operation)
        return result


@contextlib.contextmanager
def _only_modules(modules: Mapping[str, nn.Module], running: list[str]) -> Generator[None]:
    """Raise `CannotReplayError` at a call of a module that has state which was not copied.

    Args:
        modules: the modules whose state was copied, by name.
        running: names of the running modules of PyTorch, which are added and removed.
    """
    thread, ended = threading.get_ident(), list[bool]()
    known = {id(module): _description(name, module) for name, module in modules.items()}

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: nn.Module, /, *args: Any, **options: Any) -> Any:  # noqa: N807
            if ended or threading.get_ident() != thread:
                return original(module, *args, **options)
            if id(module) not in known and has_state(module):
                raise CannotReplayError
            running.append(known.get(id(module), ""))
            try:
                return original(module, *args, **options)
            finally:
                running.pop()

        return __call__

    patches = Patches()
    patches.replace(nn.Module, "__call__", make)
    try:
        yield
    finally:
        ended.append(True)  # in case other code has wrapped the replacement
        patches.restore()


def _description(name: str, module: nn.Module) -> str:
    return f"{name} ({type(module).__name__})" if name and type(module).__module__.startswith("torch.nn") else ""


def find_culprit(run: Run, other: Run, tensor: Tensor, is_mixed: Callable[[Tensor, Tensor], bool]) -> Operation | None:
    """Return the operation of a run that mixes what was separate before it, going back from a tensor that is mixed.

    Args:
        run: a run of the model.
        other: a run with other values, in which the same operations ran.
        tensor: a tensor of ``run`` that is mixed.
        is_mixed: returns whether a tensor is mixed, from its values in both runs.
    """
    if [each.name for each in run.operations] != [each.name for each in other.operations]:
        return None
    made_by = run.makers.get(id(tensor))
    while made_by is not None:
        operation = run.operations[made_by[0]]
        mixed = [each for each in operation.inputs if each is not None and _mixed(run, other, each, is_mixed)]
        earlier = [each for each in mixed if each[0] < made_by[0]]
        if not earlier:
            return operation
        made_by = max(earlier)
    return None


def _mixed(run: Run, other: Run, made_by: tuple[int, int], is_mixed: Callable[[Tensor, Tensor], bool]) -> bool:
    number, place = made_by
    return is_mixed(run.operations[number].results[place].detach(), other.operations[number].results[place].detach())


def keeps_slices(values: Tensor, others: Tensor, needed: Callable[[int], float]) -> bool:
    """Return True if enough slices along some dimension are equal in both tensors, up to rounding.

    Args:
        values: a tensor.
        others: a tensor of the same shape; if it has another one, nothing is kept.
        needed: returns the number of equal slices that are needed along a dimension of a size.
    """
    if values.shape != others.shape:
        return False
    different = differs(values, others)
    if not different.any():
        return True
    for dim, size in enumerate(values.shape):
        touched = different.movedim(dim, 0).reshape(size, -1).any(1)
        if size > 1 and int((~touched).sum()) >= needed(size):
            return True
    return False


def differs(values: Tensor, others: Tensor) -> Tensor:
    """Return where two tensors differ by more than rounding."""
    if not values.is_floating_point():
        return values != others
    spread = values.detach().double().nan_to_num(0, 0, 0).std(unbiased=False).item()
    return ~torch.isclose(values, others, rtol=1e-3, atol=1e-4 * spread + 1e-9, equal_nan=True)
