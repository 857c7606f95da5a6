"""Copies the state of modules, so that they can be replayed without side effects.

Everything that the replay could change is copied: parameters, buffers, containers, plain objects, generators. If
an object can neither be shared nor copied without running the program's code, the module is not replayed.
"""

import collections
import copy
import enum
import functools
import random
import types
import weakref
from typing import Any, Final

import torch
from torch import Tensor, nn

MAX_BYTES: Final = 1 << 30  # size of all copies: enough for 250 million float32 parameters
MAX_OBJECTS: Final = 20_000  # copied objects
MAX_DEPTH: Final = 16  # levels of nested containers and objects
SHARED: Final = (
    type(None), bool, int, float, complex, str, bytes, slice, range, type, types.ModuleType, types.FunctionType,
    types.MethodDescriptorType, enum.Enum, weakref.ref, torch.dtype, torch.device, torch.Size, torch.layout,
    torch.memory_format, type(Ellipsis),
)  # fmt: skip
HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks")
BACKWARD_HOOKS: Final = ("_backward_hooks", "_backward_pre_hooks")
_PLAIN_TENSORS: Final = (Tensor, nn.Parameter)


class CannotReplayError(BaseException):
    """A call cannot be replayed unchanged or without side effects; ``except Exception`` does not catch this."""


class ReplicaState:
    """Copies of module state; each object is copied once, so shared objects remain shared.

    Args:
        modules: all reachable modules, which are not copied themselves.
    """

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules = {id(module) for module in modules}
        self._copies: dict[int, Any] = {}
        self._bytes = self._count = 0

    def copy_module(self, module: nn.Module) -> dict[str, Any]:
        """Return a copy of a module's attributes; raise if the program has put forward hooks on it."""
        if any(not _is_pytorch_hook(hook) for hooks in HOOKS for hook in vars(module)[hooks].values()):
            raise CannotReplayError  # such hooks may change the output
        attributes = {
            key: value if key in HOOKS else type(value)() if key in BACKWARD_HOOKS else self.copy(value)
            for key, value in vars(module).items()
        }
        return attributes | {hooks: attributes[hooks].copy() for hooks in HOOKS}

    def copy(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of a value, or the value itself if it can be shared.

        Raises:
            CannotReplayError: the value can be neither copied nor shared.
        """
        if isinstance(value, SHARED) or id(value) in self._modules:
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        self._count += 1
        if self._count > MAX_OBJECTS or depth > MAX_DEPTH:
            raise CannotReplayError
        if isinstance(value, Tensor):
            return self._tensor(value)
        copied = self._container(value, depth)
        return self._object(value, depth) if copied is None else copied

    def _tensor(self, value: Tensor) -> Tensor:
        if (
            type(value) not in _PLAIN_TENSORS
            or value.device.type != "cpu"
            or value.layout is not torch.strided
            or value.is_inference()
        ):
            raise CannotReplayError
        self._count_bytes(value.numel() * value.element_size())
        copied: Tensor = value.detach().clone().requires_grad_(value.requires_grad)
        if isinstance(value, nn.Parameter):
            copied = nn.Parameter(copied, value.requires_grad)
        self._copies[id(value)] = copied
        return copied

    def _container(self, value: Any, depth: int) -> Any:
        """Return a copy of a built-in container; None for other objects."""
        kind = type(value)
        if kind in (dict, collections.OrderedDict, collections.defaultdict, collections.Counter):
            copied = self._copies[id(value)] = copy.copy(value)
            copied.update((key, self.copy(inner, depth + 1)) for key, inner in value.items())
            return copied
        if kind in (list, collections.deque):
            copied = self._copies[id(value)] = [] if kind is list else collections.deque(maxlen=value.maxlen)
            copied.extend(self.copy(inner, depth + 1) for inner in value)
            return copied
        if kind in (tuple, set, frozenset):
            return kind(self.copy(inner, depth + 1) for inner in value)
        return None

    def _object(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if self._is_shared_callable(value):
            return value
        copied = _copy_generator(value)
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and not value.dtype.hasobject:
            self._count_bytes(value.nbytes)
            copied = value.copy()
        if copied is not None:
            self._copies[id(value)] = copied
            return copied
        if isinstance(value, nn.Module) or not isinstance(getattr(value, "__dict__", None), dict) or _has_slots(kind):
            raise CannotReplayError
        try:
            copied = self._copies[id(value)] = object.__new__(kind)
            object.__setattr__(copied, "__dict__", self.copy(vars(value), depth + 1))
        except (TypeError, AttributeError) as error:  # not a pure Python object
            raise CannotReplayError from error
        return copied

    def _is_shared_callable(self, value: Any) -> bool:
        match value:
            case types.MethodType():
                return id(value.__self__) in self._modules
            case types.BuiltinFunctionType():
                return isinstance(value.__self__, types.NoneType | types.ModuleType | type)
            case functools.partial():
                parts = (value.func, *value.args, *value.keywords.values())
                return all(isinstance(part, SHARED) or self._is_shared_callable(part) for part in parts)
            case _:
                return False

    def _count_bytes(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_BYTES:
            raise CannotReplayError


def _copy_generator(value: Any) -> Any:
    """Return a copy of a random generator; None for other objects."""
    if type(value) is torch.Generator:
        return value.clone_state() if value.device.type == "cpu" else None
    named = (type(value).__module__, type(value).__name__)
    if type(value) is random.Random or named == ("numpy.random._generator", "Generator"):
        return copy.deepcopy(value)
    if named == ("numpy.random.mtrand", "RandomState"):
        return copy.deepcopy(value)
    return None


def _has_slots(kind: type) -> bool:
    """Return True if a class has slots, which are not in an object's ``__dict__``."""
    return any(vars(each).get("__slots__") for each in kind.__mro__)


def _is_pytorch_hook(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.")
