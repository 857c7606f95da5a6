"""Finds collections that share memory with trained parameters, and lines that mix these parameters with themselves."""

import ast
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from types import CodeType, FrameType
from typing import Any, ClassVar, Final, NamedTuple, cast

from torch import Tensor, nn

from trueloop.analysis.queries.parameter_views import viewed
from trueloop.core.findings import CodePosition
from trueloop.failures.optimizer.kept_weights_not_copied import MixedWithItself
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, OptimizerCreated
from trueloop.tracing.gradients import parameters_of
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.registry import frame_values
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.source_calls import expression_at
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code

SEARCHED_AT: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384)
"""Numbers of updates at which collections are searched; old weights may be stored late."""
AFTER_OPTIMIZER: Final = (1, 4)  # updates after a new optimizer, as for the next task
MAX_SEARCHES: Final = 32
WATCHED: Final = 512  # updates with views of the parameters; an average may be updated once in an epoch
WATCHED_LISTS: Final = 24  # updates with lists of the parameters themselves, which many programs have
MAX_VARIABLES: Final = 2000
MAX_ITEMS: Final = 512
COMPARED: Final = 256  # values
TOLERANCE: Final = 1e-4
_SCALING: Final = ("mul_", "__imul__")
_ADDING: Final = ("add_", "__iadd__")
_MIXING: Final = ("lerp_", "copy_", *_ADDING)
_DIFFERENCES: Final = ("sub", "__sub__")


class _Collection(NamedTuple):
    name: str
    tensors: Iterable[Any]


class SharedMemory(Hook):
    """Emits `MixedWithItself`.

    Cost: 1 ms for each of 8 searches. If a collection shares memory with parameters, 0.3 us for each sum and product of
    tensors in the next 24 updates.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (MixedWithItself,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._search_at = {*SEARCHED_AT}
        self._watch: Patches | None = None
        self._watched_until = -1
        self._name = ""
        self._addresses = frozenset[int]()
        """Addresses of the parameters that a collection shares memory with."""
        self._scaled: dict[int, CodeType] = {}
        """Address of a parameter -> the code that scaled it latest."""
        self._reported = set[CodePosition]()
        self._search = stream.isolated("collections of parameters", self._on_search)
        self._check = stream.isolated("mixtures of parameters", self._on_operation)
        self._created = stream.isolated_inner("collections of parameters", self._on_optimizer_created)

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches, and receive backward passes."""
        self._search_at, self._watched_until = {*SEARCHED_AT}, -1
        self._addresses = frozenset()
        self._scaled.clear()
        self._reported.clear()
        self._program.before_backward.append(self._before_backward)
        patches.add_undo(self._end_watch)
        patches.add_undo(lambda: self._stream.unsubscribe(self._created))
        self._stream.subscribe(self._created, OptimizerCreated)

    def _on_optimizer_created(self, event: OptimizerCreated) -> None:
        if self._stream.update and len(self._search_at) < MAX_SEARCHES:
            self._search_at |= {self._stream.update + each for each in AFTER_OPTIMIZER}

    def _before_backward(self) -> None:
        update = self._stream.update
        if update in self._search_at:
            self._search_at.discard(update)
            self._search()
        elif self._watch is not None and update > self._watched_until:
            self._end_watch()

    def _on_search(self) -> None:
        frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        trained = [each for o in self._program.training_optimizers() for each in parameters_of(o)]
        addresses = frozenset(map(_address, trained)) - {0, *self._tied()}
        found = [
            (any(type(each) is Tensor for each in tensors), name)
            for name, tensors in _collections(frame)
            if any(_address(each) in addresses for each in tensors)
        ]
        if found:
            has_views, self._name = max(found, key=lambda each: each[0])
            self._addresses = addresses
            watched = WATCHED if has_views else WATCHED_LISTS
            self._watched_until = max(self._watched_until, self._stream.update + watched)
            self._begin_watch()

    def _tied(self) -> Iterator[int]:
        """Yield the addresses of parameters that have two names in a model."""
        for model, _ in list(self._program.models.items()):
            counts = Counter(_address(each) for _, each in model.named_parameters(remove_duplicate=False))
            yield from (address for address, count in counts.items() if count > 1)

    def _begin_watch(self) -> None:
        if self._watch is None:
            self._watch = Patches()
            for name in (*_SCALING, *_MIXING, *_DIFFERENCES):
                self._watch.replace(Tensor, name, partial(self._replacement, name))

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.restore()
            self._watch = None

    def _replacement(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program, check = self._stream, self._program, self._check
        is_scaling = name in _SCALING

        def operation(tensor: Any, *args: Any, **options: Any) -> Any:
            other = args[0] if args else None
            if (
                (is_scaling or isinstance(other, Tensor))
                and not program.step_depth
                and stream.active
                and _address(tensor) in self._addresses
            ):
                frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                is_decay = isinstance(options.get("alpha"), float) and options["alpha"] < 0
                if is_user_code(frame.f_code) and not is_decay and not program.is_other_thread():
                    check(name, tensor, other, frame)
            return original(tensor, *args, **options)

        return operation

    def _on_operation(self, name: str, tensor: Tensor, other: Any, frame: FrameType) -> None:
        address = _address(tensor)
        if name in _SCALING:
            self._scaled[address] = frame.f_code
            return
        scaled_by = self._scaled.pop(address, None)
        location = CodePosition(frame.f_code, frame.f_lasti)
        if location in self._reported or other.shape != tensor.shape:
            return
        is_same = _address(other) == address and other.stride() == tensor.stride()
        if name == "copy_":
            is_mixed = not is_same and _are_proportional(other, tensor, equal=True) and _is_sum_with_itself(frame)
        elif is_same:
            is_mixed = not _has_equal_sides(frame)
        else:
            is_mixed = name in _ADDING and scaled_by is frame.f_code and _are_proportional(other, tensor)
        if is_mixed:
            self._reported.add(location)
            found = expression_at(frame)
            text = "" if found is None else ast.unparse(found)
            self._stream.emit(
                MixedWithItself(location=location, text=text, name=self._name, in_place=name not in _DIFFERENCES)
            )


def _address(tensor: Any) -> int:
    """Return the address of the first value of a plain tensor; 0 for anything else."""
    return tensor.data_ptr() if type(tensor) in (Tensor, nn.Parameter) and has_storage(tensor) else 0


def _are_proportional(one: Tensor, other: Tensor, *, equal: bool = False) -> bool:
    """Return True if the values of a tensor on the CPU are those of another one times one number, or equal to them."""
    if not (one.is_cpu and other.is_cpu and one.is_floating_point() and other.is_floating_point()):
        return False
    first, second = (each.detach().reshape(-1)[:COMPARED].double() for each in (one, other))
    square = float(second @ second)
    if len(first) < 3 or not square or float((second - second[0]).abs().max()) <= TOLERANCE * float(second.abs().max()):
        return False  # one value, or equal ones, prove nothing
    ratio = 1.0 if equal else float(first @ second) / square
    return bool(ratio) and float((first - ratio * second).norm()) <= TOLERANCE * abs(ratio) * square**0.5


def _sides(frame: FrameType) -> tuple[str, list[ast.expr]]:
    """Return the text of the tensor on the left of an operation, without ``data``, and the other operands."""
    match expression_at(frame):
        case ast.Call(func=ast.Attribute(value=value), args=args):
            return ast.unparse(viewed(value)), list(args)
        case ast.BinOp(left=left, right=right):
            return ast.unparse(viewed(left)), [right]
        case _:
            return "", []


def _has_equal_sides(frame: FrameType) -> bool:
    """Return True for ``w.add_(w)``, which is meant."""
    tensor, others = _sides(frame)
    return bool(others) and ast.unparse(viewed(others[0])) == tensor


def _is_sum_with_itself(frame: FrameType) -> bool:
    """Return True for ``average.copy_(decay * average + (1 - decay) * weights)``."""
    tensor, others = _sides(frame)
    is_sum = bool(others) and isinstance(others[0], ast.BinOp) and isinstance(others[0].op, ast.Add | ast.Sub)
    return is_sum and any(ast.unparse(each) == tensor for each in ast.walk(others[0]))


def _collections(frame: FrameType | None) -> Iterator[_Collection]:
    """Yield the dictionaries, lists and buffers in variables of the program, and in attributes of its objects."""
    for name, value in islice(frame_values(frame), MAX_VARIABLES):
        yield from _tensors_of(name, value)
        for attribute, item in _attributes(value):
            yield from _tensors_of(f"{name}.{attribute}", item)
            for inner, each in _attributes(item) if type(item).__module__ == type(value).__module__ else ():
                yield from _tensors_of(f"{name}.{attribute}.{inner}", each)


def _tensors_of(name: str, value: Any) -> Iterator[_Collection]:
    if isinstance(value, dict) and type(value).__module__ in ("builtins", "collections"):
        yield _Collection(name, list(cast("Mapping[Any, Any]", value).values()))
    elif type(value) in (list, tuple):
        yield _Collection(name, list(islice(cast("Iterable[Any]", value), MAX_ITEMS)))
    elif isinstance(value, nn.Module):
        yield _Collection(name, [each for each in vars(value).get("_buffers", {}).values() if each is not None])


def _attributes(value: Any) -> list[tuple[str, Any]]:
    is_library = type(value).__module__.partition(".")[0] in ("torch", "numpy", "builtins")
    own = cast("dict[str, Any]", getattr(value, "__dict__", None) if not isinstance(value, weakref.ref) else None)
    if is_library or type(own) is not dict:
        return []
    return [(name, each) for name, each in islice(own.items(), 64) if name != "_parameters"]  # of a module


HOOK: Final = SharedMemory
