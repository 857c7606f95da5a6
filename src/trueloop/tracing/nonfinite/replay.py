"""Locates the origin of a non-finite value by replaying the latest model calls and checking every operation.

The replay has no side effects: each module works on copies of its state, and all generators are restored. Calls that
cannot be replayed this way are left out: on a GPU, across processes, with the program's hooks, or after the batch
or the weights have changed.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, cast

import torch
import torch.nn.modules.module as torch_module
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trueloop.core.findings import CodePosition
from trueloop.core.formatting import format_count
from trueloop.tracing.nonfinite.replica_state import HOOKS, CannotReplayError, ReplicaState
from trueloop.tracing.nonfinite.values import describe_values, has_nan_or_positive_inf, has_nonfinite, tensors_in
from trueloop.tracing.patch import Patches
from trueloop.tracing.torch_modes import modes_active, modes_disabled
from trueloop.tracing.user_location import is_user_code


@contextlib.contextmanager
def attributes_replaced(modules: Sequence[nn.Module], attributes: Sequence[dict[str, Any]]) -> Generator[None]:
    """Give modules other attributes within a ``with`` block, without changing their own dictionaries."""
    own = [vars(module) for module in modules]
    try:
        for module, others in zip(modules, attributes, strict=True):
            object.__setattr__(module, "__dict__", others)
        yield
    finally:
        for module, others in zip(modules, own, strict=True):
            object.__setattr__(module, "__dict__", others)


@contextlib.contextmanager
def generators_restored(state: Tensor | None) -> Generator[None]:
    """Set the CPU generator to a recorded state within a ``with`` block; restore all generators afterwards."""
    numpy: Any = sys.modules.get("numpy")
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    if state is not None:
        torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


def compilation_disabled() -> contextlib.AbstractContextManager[Any]:
    """Run compiled code eagerly, since modules with other attributes would be recompiled."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return cast("Any", torch.compiler).set_stance("force_eager")


class _Muted:
    """A stream that discards the output of this thread."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        """Write the text, unless this thread is the muted one."""
        return len(text) if threading.get_ident() == self._thread else cast("int", self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def output_muted() -> Generator[None]:
    """Discard the output of this thread within a ``with`` block: the original call has printed it already."""
    with (
        contextlib.redirect_stdout(cast("Any", _Muted(sys.stdout))),
        contextlib.redirect_stderr(cast("Any", _Muted(sys.stderr))),
    ):
        yield


MAX_DEPTH: Final = 4  # levels of nested containers in a model's arguments
MAX_WIDTH: Final = 64  # arguments in one container
FILLS: Final = ("fill", "full", "where", "tensor", "empty", "copy_", "setitem", "nan_to_num", "finfo")
_PLAIN: Final = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size)
_module: Any = torch_module


class _TensorRef(NamedTuple):
    """A weak reference to a tensor in the arguments or results of a call."""

    tensor: weakref.ref[Tensor]
    version: int

    @property
    def key(self) -> tuple[int, int]:
        """Identity of the tensor, valid after it is freed: all weak references to one tensor are the same object."""
        return id(self.tensor), self.version


class RecordedCall(NamedTuple):
    """One outermost call of a module, recorded for a replay."""

    module: weakref.ref[nn.Module]
    args: Any
    options: Any
    generator: Tensor | None
    """State of the CPU generator before the call; None = not recorded, since an earlier call has recorded it."""
    autocast: torch.dtype | None
    update: int
    backward_count: int
    outputs: list[_TensorRef]
    """Tensors that the call returned."""
    thread: int
    """Number of the calling thread; see `ProgramState.thread_number`."""


class Origin(NamedTuple):
    """The origin of a non-finite value."""

    module: str
    operation: str
    location: CodePosition | None
    inputs: str


class Replay(NamedTuple):
    """The result of a replay."""

    origin: Origin | None
    """Origin of a non-finite output, or of the first non-finite value within the model if all outputs are finite."""
    finite: bool
    """Whether every module with parameters was replayed with finite outputs."""
    infinite_derivative: Origin | None = None
    """The first operation with an infinite derivative at its input; None = there is none, or a value is non-finite."""


def record_call(
    module: nn.Module,
    args: tuple[Any, ...],
    options: dict[str, Any],
    update: int,
    backward_count: int = 0,
    *,
    record_generator: bool = True,
    thread: int = 0,
) -> RecordedCall | None:
    """Record a call that is about to run; None if a replay is impossible.

    Args:
        module: the called module.
        args: positional arguments of the call.
        options: keyword arguments of the call.
        update: number of updates before the call.
        backward_count: number of backward passes before the call.
        record_generator: whether to record the state of the generator.
        thread: number of the calling thread.

    Cost: 3 us; with the generator 3 us more.
    """
    try:
        values, named_values = _record_value(args, 0), _record_value(options, 0) if options else options
    except CannotReplayError:
        return None
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    state = torch.default_generator.get_state() if record_generator else None
    return RecordedCall(weakref.ref(module), values, named_values, state, autocast, update, backward_count, [], thread)


def record_output(call: RecordedCall, output: Any) -> None:
    """Record the outputs of a call, which may be arguments of the next call, but freed when that is replayed."""
    call.outputs.extend([_TensorRef(weakref.ref(tensor), tensor._version) for tensor in _first_in(output)])  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def replay(calls: Sequence[RecordedCall]) -> Replay:
    """Replay calls, oldest first, until one has a non-finite output.

    Args:
        calls: calls recorded by `record_call`; the weights must not have changed since.

    Raises:
        Exception: a module raised in the replay; even then all state is restored.
    """
    if is_observable():
        return Replay(None, finite=False)
    first_inside = infinite_derivative = None
    replayed_tensors: dict[tuple[int, int], Tensor] = {}
    finite, ran = True, False
    for call in calls:
        module = call.module()
        if module is None:
            continue
        module = cast("nn.Module", getattr(module, "_orig_mod", module))
        has_parameters = next(iter(module.parameters()), None) is not None
        try:
            found, output_is_finite, tracer = _replay_call(module, call, replayed_tensors)
        except CannotReplayError:  # not serious for a loss module, whose arguments are often freed already
            finite = finite and not has_parameters
            continue
        if found is not None:
            return Replay(found, finite=False)
        first_inside, infinite_derivative = (
            first_inside or tracer.first,
            infinite_derivative or tracer.infinite_derivative,
        )
        ran, finite = ran or has_parameters, finite and output_is_finite
    return Replay(
        first_inside if finite else None,
        finite=finite and ran,
        infinite_derivative=infinite_derivative if finite and not first_inside else None,
    )


def is_observable() -> bool:
    """Return True if the program would notice a replay, or other processes would have to replay too."""
    return bool(
        (torch.distributed.is_available() and torch.distributed.is_initialized())
        or any(getattr(_module, f"_global{hooks}") for hooks in HOOKS)
        or modes_disabled()
        or modes_active()
        or cast("Any", torch.autograd)._profiler_enabled()  # noqa: SLF001
    )


def _replay_call(
    module: nn.Module, call: RecordedCall, replayed_tensors: dict[tuple[int, int], Tensor]
) -> tuple[Origin | None, bool, _NonFiniteTracer]:
    """Return the origin of a non-finite output, whether the output is finite, and the tracer."""
    modules = list(module.modules())
    if any(isinstance(each, torch.jit.ScriptModule) for each in modules):
        raise CannotReplayError
    args, options = restore_arguments(call.args, replayed_tensors), restore_arguments(call.options, replayed_tensors)
    state_copies = ReplicaState(modules)
    attributes = [state_copies.copy_module(each) for each in modules]
    tracer = _NonFiniteTracer(module)
    tracer.register_arguments((args, options))
    with (
        generators_restored(call.generator),
        attributes_replaced(modules, attributes),
        tracer.track_modules(),
        output_muted(),
        compilation_disabled(),
    ):
        dtype = call.autocast
        with torch.enable_grad(), torch.autocast("cpu", dtype, enabled=dtype is not None, cache_enabled=False):
            tracer.register_parameters(module)
            with tracer:
                output = module(*args, **options)
        replayed_tensors.update(zip((recorded.key for recorded in call.outputs), _first_in(output), strict=False))
        return tracer.find_origin(output), not any(map(has_nonfinite, tensors_in(output))), tracer


class _NonFiniteTracer(TorchFunctionMode):
    """Tracks every non-finite value from the operation that made it.

    An infinity that the program set as a mask is tracked too, but has no origin.
    """

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self.first: Origin | None = None
        """Origin of the first non-finite value that requires a gradient."""
        self.infinite_derivative: Origin | None = None
        """The first operation with an infinite derivative at its input."""
        self._names = {module: name for name, module in root.named_modules()}
        self._path: list[tuple[str, nn.Module]] = []
        self._thread = threading.get_ident()
        self._origins: dict[int, tuple[Tensor, Origin | None]] = {}
        """Id of a tensor -> the tensor, and the origin of its non-finite values; None = a mask."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        inputs = [*tensors_in(args), *tensors_in(kwargs or {})]
        nonfinite_inputs = [value for value in inputs if has_nonfinite(value)]
        summary = next((describe_values(value) for value in inputs if value.is_floating_point()), "")
        had_nan = any(bool(value.isnan().any()) for value in nonfinite_inputs)
        if (
            self.infinite_derivative is None
            and inputs
            and inputs[0].requires_grad
            and _has_infinite_derivative(_name(func), args)
        ):
            self.infinite_derivative = Origin(
                self._module(), _name(func), replayed_position(_replay_call.__code__), summary
            )
        result = func(*args, **(kwargs or {}))
        results = [value for value in tensors_in(result) if has_nonfinite(value)]
        if results:
            here = Origin(self._module(), _name(func), None, summary)
            self._track(func, nonfinite_inputs, results, here, had_nan)
        return result

    def register_arguments(self, arguments: Any) -> None:
        """Record the non-finite arguments of the model as origins."""
        name = type(next(iter(self._names))).__name__
        for number, tensor in enumerate(tensors_in(arguments), 1):
            if has_nan_or_positive_inf(tensor):
                summary = f"argument {number} of {name} itself ({describe_values(tensor)})"
                self._origins[id(tensor)] = (tensor, Origin(name, "", None, summary))

    def register_parameters(self, root: nn.Module) -> None:
        """Record the parameters that were already non-finite as origins."""
        broken = [(key, parameter) for key, parameter in root.named_parameters() if has_nan_or_positive_inf(parameter)]
        for _, parameter in broken:
            summary = f"{format_count(len(broken), 'parameter')} not finite before, {broken[0][0]} the first"
            self._origins[id(parameter)] = (parameter, Origin(type(root).__name__, "", None, summary))

    def find_origin(self, output: Any) -> Origin | None:
        """Return the origin of the first non-finite output."""
        for tensor in tensors_in(output):
            known = self._origins.get(id(tensor))
            if known is not None and known[1] is not None and has_nonfinite(tensor):
                return known[1]
        return None

    @contextlib.contextmanager
    def track_modules(self) -> Generator[None]:
        """Track the running module; raise `CannotReplayError` at a module whose state was not copied."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def __call__(module: nn.Module, /, *args: Any, **options: Any) -> Any:  # noqa: N807
                if threading.get_ident() != self._thread:
                    return original(module, *args, **options)
                if module not in self._names and has_state(module):
                    raise CannotReplayError
                self._path.append((self._names.get(module, ""), module))
                try:
                    return original(module, *args, **options)
                finally:
                    self._path.pop()

            return __call__

        patches = Patches()
        patches.replace(nn.Module, "__call__", make)
        try:
            yield
        finally:
            patches.restore()

    def _track(self, func: Any, inputs: list[Tensor], results: list[Tensor], here: Origin, had_nan: bool) -> None:
        """Record the origin of the non-finite results of an operation: this operation, or that of its inputs."""
        origin = next((o for value in inputs if (o := self._origins.get(id(value), (value, None))[1])), None)
        if origin is None:
            nan = not had_nan and any(bool(value.isnan().any()) for value in results)
            infinite = not inputs and not any(word in _name(func) for word in FILLS)
            if nan or infinite:
                origin = here._replace(location=replayed_position(_replay_call.__code__))
                if any(value.requires_grad for value in results):
                    self.first = self.first or origin
        for value in results:
            self._origins[id(value)] = (value, origin)

    def _module(self) -> str:
        if not self._path:
            return ""
        name, module = self._path[-1]
        return f"{name} ({type(module).__name__})" if name else type(module).__name__


def _record_value(value: Any, depth: int) -> Any:
    kind: type[Any] = type(value)  # compared before `isinstance`, which is slow when it returns False
    if kind is Tensor or kind is nn.Parameter:
        if not value.is_cpu or value.is_inference():
            raise CannotReplayError
        return _TensorRef(weakref.ref(value), value._version)  # noqa: SLF001
    if kind is not tuple and kind is not list and kind is not dict:
        if isinstance(value, _PLAIN):
            return value
        raise CannotReplayError
    if depth == MAX_DEPTH or len(value) > MAX_WIDTH:
        raise CannotReplayError
    if kind is dict:
        return {key: _record_value(each, depth + 1) for key, each in value.items()}
    return kind([_record_value(each, depth + 1) for each in value])


def _first_in(output: Any) -> Iterable[Tensor]:
    return (output,) if type(output) is Tensor else islice(tensors_in(output), MAX_WIDTH)


def restore_arguments(value: Any, replayed_tensors: dict[tuple[int, int], Tensor]) -> Any:
    """Return a copy of recorded arguments; raise if they have changed, or were freed and not replayed."""
    if isinstance(value, _TensorRef):
        tensor = value.tensor()
        if tensor is None and value.key in replayed_tensors:
            tensor = replayed_tensors[value.key]
        elif tensor is None or tensor._version != value.version:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            raise CannotReplayError
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    if type(value) in (tuple, list):
        return type(value)(restore_arguments(each, replayed_tensors) for each in value)
    return (
        {key: restore_arguments(each, replayed_tensors) for key, each in value.items()}
        if type(value) is dict
        else value
    )


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).strip("_")


def _has_infinite_derivative(name: str, args: Sequence[Any]) -> bool:
    """Return True for a root of a tensor with zeros, where its derivative is infinite."""
    exponent = args[1] if name == "pow" and len(args) > 1 else 0.5 if name == "sqrt" else None
    if not isinstance(exponent, float) or not 0 < exponent < 1:
        return False
    return bool((cast("Tensor", args[0]) == 0).any())


def has_state(module: nn.Module) -> bool:
    """Return True if a module has parameters, buffers or hooks."""
    hooked = any(vars(module)[hooks] for hooks in HOOKS)
    return hooked or any(True for _ in (*module.parameters(), *module.buffers()))


def replayed_position(start: CodeType) -> CodePosition | None:
    """Return the innermost user line within a replay, which the function of code ``start`` has started."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    while frame is not None and frame.f_code is not start:
        if is_user_code(frame.f_code):
            return CodePosition(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None
