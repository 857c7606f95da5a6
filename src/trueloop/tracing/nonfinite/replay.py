"""Where a value that is not finite came from: the newest calls are run once more, with every operation looked at.

Nothing of the program may notice. Each module works on copies of what it holds meanwhile, and all generators are put
back. What cannot be run again so is not: on an accelerator, across processes, with hooks of the program's own, after
the batch or the weights have changed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from types import FrameType
from typing import Any, Final, NamedTuple, cast

import torch
import torch.nn.modules.module as torch_module
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trueloop.core.findings import CodePosition
from trueloop.core.formatting import format_count
from trueloop.tracing.nonfinite.replica_state import HOOKS, CannotReplayError, ReplicaState
from trueloop.tracing.nonfinite.side_effect_free import (
    attributes_replaced,
    compilation_disabled,
    generators_restored,
    output_muted,
)
from trueloop.tracing.nonfinite.values import describe_values, has_nan_or_positive_inf, has_nonfinite, tensors_in
from trueloop.tracing.patch import Patches
from trueloop.tracing.torch_modes import modes_active, modes_disabled
from trueloop.tracing.user_location import is_user_code

DEEPEST: Final = 4  # containers within containers in a model's arguments
WIDEST: Final = 64  # arguments in one of them
FILLS: Final = ("fill", "full", "where", "tensor", "empty", "copy_", "setitem", "nan_to_num", "finfo")
_PLAIN: Final = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size)
_module: Any = torch_module


class _Given(NamedTuple):
    """A tensor among arguments or results, kept by nobody here."""

    tensor: weakref.ref[Tensor]
    version: int

    @property
    def key(self) -> tuple[int, int]:
        """Tell it apart also when the tensor is gone: all references to one are the same object."""
        return id(self.tensor), self.version


class RecordedCall(NamedTuple):
    """One outermost call of a module, as far as it can be made again."""

    module: weakref.ref[nn.Module]
    args: Any
    options: Any
    generator: Tensor | None
    """The state of the CPU's generator; None = not noted, since a call just before it has one."""
    autocast: torch.dtype | None
    update: int
    backward_count: int
    outputs: list[_Given]
    """What it returned, as far as that is tensors."""
    thread: int
    """That made it; see `ProgramState.thread_number`."""


class Origin(NamedTuple):
    """The first value that is not finite."""

    module: str
    operation: str
    location: CodePosition | None
    inputs: str


class Replay(NamedTuple):
    """What running calls again has shown."""

    origin: Origin | None
    """Where what is not finite in an output was made; with finite outputs, the first such value within."""
    finite: bool
    """Every module with parameters was run again, and gave finite values only."""
    infinite_derivative: Origin | None = None
    """With finite values throughout: the first operation whose gradient is infinite for what it was given."""


def record_call(
    module: nn.Module,
    args: tuple[Any, ...],
    options: dict[str, Any],
    update: int,
    micro: int = 0,
    *,
    drawn: bool = True,
    thread: int = 0,
) -> RecordedCall | None:
    """Note a call that is about to be made; None where it could not be made again.

    Args:
        module: that is called, with ``args`` and ``options``.
        update: steps, and ``backward_count`` backwards, before it.
        drawn: note the state of the generator, too.
        thread: that makes it, by its number.

    Cost: 3 us; with the generator 3 us more.
    """
    try:
        given, named = _noted(args, 0), _noted(options, 0) if options else options
    except CannotReplayError:
        return None
    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    state = torch.default_generator.get_state() if drawn else None
    return RecordedCall(weakref.ref(module), given, named, state, kind, update, micro, [], thread)


def record_output(call: RecordedCall, output: Any) -> None:
    """Note what a call has returned: it may be gone when it is wanted as the argument of the next one."""
    call.outputs.extend([_Given(weakref.ref(tensor), tensor._version) for tensor in _first_in(output)])  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def replay(calls: Sequence[RecordedCall]) -> Replay:
    """Run calls again, the oldest first, until one gives a value that is not finite.

    Args:
        calls: noted by `record_call`; the weights must still be those they were made with.

    Raises:
        Exception: whatever a module raises the second time; everything is put back all the same.
    """
    if _is_watched():
        return Replay(None, finite=False)
    hidden = steep = None
    again: dict[tuple[int, int], Tensor] = {}
    finite, ran = True, False
    for call in calls:
        module = call.module()
        if module is None:
            continue
        module = cast("nn.Module", getattr(module, "_orig_mod", module))
        matters = next(iter(module.parameters()), None) is not None
        try:
            found, output_is_finite, watching = _of_call(module, call, again)
        except CannotReplayError:
            finite = finite and not matters  # the arguments of a loss are often gone: it was behind the model
            continue
        if found is not None:
            return Replay(found, finite=False)
        hidden, steep = hidden or watching.first, steep or watching.steep
        ran, finite = ran or matters, finite and output_is_finite
    return Replay(
        hidden if finite else None, finite=finite and ran, infinite_derivative=steep if finite and not hidden else None
    )


def _is_watched() -> bool:
    """True where somebody would see that a module runs again, or would have to run it as well."""
    return bool(
        (torch.distributed.is_available() and torch.distributed.is_initialized())
        or any(getattr(_module, f"_global{hooks}") for hooks in HOOKS)
        or modes_disabled()
        or modes_active()
        or cast("Any", torch.autograd)._profiler_enabled()  # noqa: SLF001
    )


def _of_call(
    module: nn.Module, call: RecordedCall, again: dict[tuple[int, int], Tensor]
) -> tuple[Origin | None, bool, _Watching]:
    """Return the origin of what is not finite in the output, whether there is none, and what else was seen."""
    modules = list(module.modules())
    if any(isinstance(each, torch.jit.ScriptModule) for each in modules):
        raise CannotReplayError
    args, options = _restored(call.args, again), _restored(call.options, again)
    stand_ins = ReplicaState(modules)
    attributes = [stand_ins.copy_module(each) for each in modules]
    watching = _Watching(module)
    watching.given((args, options))
    with (
        generators_restored(call.generator),
        attributes_replaced(modules, attributes),
        watching.modules(),
        output_muted(),
        compilation_disabled(),
    ):
        kind = call.autocast
        with (
            torch.enable_grad(),
            torch.autocast("cpu", kind, enabled=kind is not None, cache_enabled=False),
        ):
            watching.weights(module)
            with watching:
                output = module(*args, **options)
        again.update(zip((made.key for made in call.outputs), _first_in(output), strict=False))
        return watching.of(output), not any(map(has_nonfinite, tensors_in(output))), watching


class _Watching(TorchFunctionMode):
    """Follows every value that is not finite back to the operation that made it.

    An infinity that was written on purpose, as a mask, is followed too, but is nobody's fault.
    """

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self.first: Origin | None = None
        """The first value of all that is not finite and has a gradient."""
        self.steep: Origin | None = None
        """The first operation whose gradient is infinite for what it was given."""
        self._names = {module: name for name, module in root.named_modules()}
        self._path: list[tuple[str, nn.Module]] = []
        self._thread = threading.get_ident()
        self._origins: dict[int, tuple[Tensor, Origin | None]] = {}
        """Tensor, by id -> it, and where it became so; None = a mask."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [*tensors_in(args), *tensors_in(kwargs or {})]
        before = [value for value in given if has_nonfinite(value)]
        words = next((describe_values(value) for value in given if value.is_floating_point()), "")
        had_nan = any(bool(value.isnan().any()) for value in before)
        if self.steep is None and given and given[0].requires_grad and _is_steep(_name(func), args):
            self.steep = Origin(self._module(), _name(func), _users_line(), words)
        result = func(*args, **(kwargs or {}))
        made = [value for value in tensors_in(result) if has_nonfinite(value)]
        if made:
            self._follow(func, before, made, Origin(self._module(), _name(func), None, words), had_nan)
        return result

    def given(self, arguments: Any) -> None:
        """Take into account what came in already not finite."""
        name = type(next(iter(self._names))).__name__
        for number, tensor in enumerate(tensors_in(arguments), 1):
            if has_nan_or_positive_inf(tensor):
                words = f"argument {number} of {name} itself ({describe_values(tensor)})"
                self._origins[id(tensor)] = (tensor, Origin(name, "", None, words))

    def weights(self, root: nn.Module) -> None:
        """Take into account what was broken before."""
        broken = [(key, parameter) for key, parameter in root.named_parameters() if has_nan_or_positive_inf(parameter)]
        for _, parameter in broken:
            words = f"{format_count(len(broken), 'parameter')} not finite before, {broken[0][0]} the first"
            self._origins[id(parameter)] = (parameter, Origin(type(root).__name__, "", None, words))

    def of(self, output: Any) -> Origin | None:
        """Return where the first output that is not finite became so."""
        for tensor in tensors_in(output):
            known = self._origins.get(id(tensor))
            if known is not None and known[1] is not None and has_nonfinite(tensor):
                return known[1]
        return None

    @contextlib.contextmanager
    def modules(self) -> Generator[None]:
        """Follow which module runs, and stop at one that has no copies to work on."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def __call__(module: nn.Module, /, *args: Any, **options: Any) -> Any:  # noqa: N807
                if threading.get_ident() != self._thread:
                    return original(module, *args, **options)
                if module not in self._names and _has_state(module):
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

    def _follow(self, func: Any, before: Sequence[Tensor], made: Sequence[Tensor], here: Origin, had_nan: bool) -> None:
        found = next((o for value in before if (o := self._origins.get(id(value), (value, None))[1])), None)
        if found is None:
            nan = not had_nan and any(bool(value.isnan().any()) for value in made)
            infinite = not before and not any(word in _name(func) for word in FILLS)
            if nan or infinite:
                found = here._replace(location=_users_line())
                if any(value.requires_grad for value in made):
                    self.first = self.first or found
        for value in made:
            self._origins[id(value)] = (value, found)

    def _module(self) -> str:
        if not self._path:
            return ""
        name, module = self._path[-1]
        return f"{name} ({type(module).__name__})" if name else type(module).__name__


def _noted(value: Any, depth: int) -> Any:
    kind: type[Any] = type(value)  # asked first, since `isinstance` takes longest where it says no
    if kind is Tensor or kind is nn.Parameter:
        if not value.is_cpu or value.is_inference():
            raise CannotReplayError
        return _Given(weakref.ref(value), value._version)  # noqa: SLF001
    if kind is not tuple and kind is not list and kind is not dict:
        if isinstance(value, _PLAIN):
            return value
        raise CannotReplayError
    if depth == DEEPEST or len(value) > WIDEST:
        raise CannotReplayError
    if kind is dict:
        return {key: _noted(each, depth + 1) for key, each in value.items()}
    return kind([_noted(each, depth + 1) for each in value])


def _first_in(output: Any) -> Iterable[Tensor]:
    return (output,) if type(output) is Tensor else islice(tensors_in(output), WIDEST)


def _restored(value: Any, again: dict[tuple[int, int], Tensor]) -> Any:
    """Return copies of what was given, where it is still what it was, or was made again."""
    if isinstance(value, _Given):
        tensor = value.tensor()
        if tensor is None and value.key in again:
            tensor = again[value.key]
        elif tensor is None or tensor._version != value.version:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            raise CannotReplayError
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    if type(value) in (tuple, list):
        return type(value)(_restored(each, again) for each in value)
    return {key: _restored(each, again) for key, each in value.items()} if type(value) is dict else value


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).strip("_")


def _is_steep(name: str, args: Sequence[Any]) -> bool:
    """True where the gradient of a root is infinite: at zero."""
    exponent = args[1] if name == "pow" and len(args) > 1 else 0.5 if name == "sqrt" else None
    if not isinstance(exponent, float) or not 0 < exponent < 1:
        return False
    return bool((cast("Tensor", args[0]) == 0).any())


def _has_state(module: nn.Module) -> bool:
    """True for what running it would change, or would be seen by."""
    hooked = any(vars(module)[hooks] for hooks in HOOKS)
    return hooked or any(True for _ in (*module.parameters(), *module.buffers()))


def _users_line() -> CodePosition | None:
    """Return the innermost line of the program's within the replay."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    while frame is not None and frame.f_code is not _of_call.__code__:
        if is_user_code(frame.f_code):
            return CodePosition(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None
