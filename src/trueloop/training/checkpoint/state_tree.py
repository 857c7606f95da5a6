"""Convert a training state to JSON and named tensors and back, exactly and without any executable content.

The JSON is the tree. A value that JSON cannot represent exactly becomes an object whose first key is the type:

    {"dict": {...}}            string keys; {"dict": [[key, value], ...]} if some key is not a string
    {"OrderedDict": ...}       with the "metadata" of a module's state_dict; {"Counter": ...}
    {"tuple": [...]}           a plain JSON array is a list
    {"int": "0x..."}           an integer beyond 64 bits
    {"float": "7ff8..."}       a non-finite float: the eight bytes of the IEEE double
    {"bytes": "..."}           base64
    {"tensor": name}           with "stride" unless row-major, and "dtype" if safetensors does not have that type
    {"array": name}, {"scalar": "hex bytes"}    NumPy, with "dtype" and, for an array, "shape"
    {"sharded": name}          with "shape" and "dtype": a tensor of which every process wrote a part, see `sharded`
"""

import base64
import math
import operator
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from trueloop.core.errors import CheckpointError
from trueloop.training.checkpoint.tensor_file import DTYPE_NAMES, RESERVED

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Path: TypeAlias = tuple[object, ...]

MAX_DEPTH = 100  # far deeper than any real state; reached by a tree that contains itself

_MAPPINGS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_KEY_TYPES = (str, int, bool, float, bytes, type(None))
# Types without a name in safetensors, and the type as which their memory is stored.
_STORED_AS: dict[torch.dtype, torch.dtype] = {torch.complex128: torch.float64, torch.complex32: torch.float16}
if hasattr(torch, "float4_e2m1fn_x2"):  # since torch 2.8
    _STORED_AS[torch.float4_e2m1fn_x2] = torch.uint8
_STORABLE = {*DTYPE_NAMES, *_STORED_AS}
_STORED_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in _STORED_AS}
_PLAIN_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPE_NAMES}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReference:
    """Reference to a sharded tensor, of which every process holds a part."""

    name: str
    """Name of the tensor in the shards; tied tensors share one name."""
    shape: tuple[int, ...]
    """Shape of the full tensor."""
    dtype: torch.dtype


def pack(tree: object, *, at: str = "", copy: Mapping[str, Tensor] | None = None) -> tuple[Json, dict[str, Tensor]]:
    """Split a state into JSON and tensors, from which `unpack` rebuilds it bit for bit.

    Args:
        tree: nested dict, OrderedDict, Counter, list, tuple, None, bool, int, float, str, bytes, dense tensors,
            `ShardReference`, and NumPy numbers or numeric arrays.
        at: path of the tree, for the error message only.
        copy: None, or tensors of an earlier call ({} if there was none). If not None, every tensor is copied, so that
            the state may change while the copies are written: into the memory of the earlier tensor if shape and dtype
            match, which is seven times faster than filling new memory.

    Returns:
        The JSON value, and the tensors by name: the path in the tree, joined with dots. They are contiguous and on the
        CPU. Without ``copy``, contiguous CPU tensors share memory with the tree: write them before the state changes.
        Entries that are the same tensor (tied weights) become one tensor, also after `unpack`. Tensors that only
        overlap are each stored in full.

    Raises:
        CheckpointError: the tree contains a value of another type; the message has its path and type.
    """
    packer = _Packer(at, copy)
    return packer.node(tree, ()), packer.tensors


def unpack(packed: Json, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild the tree that `pack` converted; tensors are on the CPU.

    Args:
        packed: the JSON value.
        tensors: the tensors by name; they are not copied unless their strides have to be restored.

    Raises:
        CheckpointError: the JSON is not what `pack` writes, or names a missing tensor.
    """
    try:
        return _Unpacker(tensors).node(packed)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, StopIteration, struct.error) as error:
        raise CheckpointError(
            f"The state is not readable: {type(error).__name__}: {error}",
            why="It was not written by trueloop, or it was changed afterwards.",
            fix="Use another checkpoint.",
        ) from error


class _Packer:
    """Packs one tree."""

    def __init__(self, at: str, copy: Mapping[str, Tensor] | None) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._at = at
        self._earlier = copy
        self._names: dict[object, str] = {}  # a tensor's memory and layout -> the name of its stored tensor

    def node(self, value: Any, path: Path) -> Json:
        if len(path) > MAX_DEPTH:
            raise self._cannot_pack(path[:5], f"is nested deeper than {MAX_DEPTH} levels, or contains itself")
        value_type = type(value)
        if value is None or value_type is bool or value_type is str:
            return value
        if value_type in _PACKERS:
            return _PACKERS[value_type](self, value, path)
        if value_type is np.ndarray or isinstance(value, np.generic):
            return self.numpy(value, path)
        article = "an" if value_type.__name__[0].lower() in "aeiou" else "a"
        raise self._cannot_pack(path, f"is {article} {value_type.__name__}")

    def integer(self, value: int, path: Path) -> Json:
        return value if -(2**63) <= value < 2**63 else {"int": hex(value)}

    def number(self, value: float, path: Path) -> Json:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}

    def binary(self, value: bytes, path: Path) -> Json:
        return {"bytes": base64.b64encode(value).decode()}

    def sequence(self, value: list[Any], path: Path) -> Json:
        return [self.node(item, (*path, index)) for index, item in enumerate(value)]

    def tuple_node(self, value: tuple[Any, ...], path: Path) -> Json:
        return {"tuple": [self.node(item, (*path, index)) for index, item in enumerate(value)]}

    def mapping(self, value: dict[Any, Any], path: Path) -> Json:
        tag = type(value).__name__
        for key in value:
            if type(key) not in _KEY_TYPES:
                raise self._cannot_pack(path, f"has a key that is a {type(key).__name__}: {key!r}")
        if all(type(key) is str for key in value):
            return {tag: {key: self.node(item, (*path, key)) for key, item in value.items()}}
        return {tag: [[self.node(key, path), self.node(item, (*path, key))] for key, item in value.items()]}

    def ordered(self, value: OrderedDict[Any, Any], path: Path) -> Json:
        packed = cast("dict[str, Json]", self.mapping(value, path))
        # A module's state_dict has the version of every submodule in this attribute.
        if "_metadata" in vars(value):
            packed["metadata"] = self.node(vars(value)["_metadata"], (*path, "_metadata"))
        return packed

    def numpy(self, value: np.ndarray[Any, Any] | np.generic, path: Path) -> Json:
        if value.dtype.kind not in "biufc":
            raise self._cannot_pack(path, f"is a NumPy array of {value.dtype}")
        if isinstance(value, np.generic):
            return {"scalar": value.tobytes().hex(), "dtype": value.dtype.str}
        stored = torch.from_numpy(np.frombuffer(bytearray(value.tobytes()), dtype=np.uint8))
        return {"array": self._store(stored, path), "dtype": value.dtype.str, "shape": list(value.shape)}

    def tensor(self, value: Tensor, path: Path) -> Json:
        if value.layout is not torch.strided or value.is_meta or value.dtype not in _STORABLE:
            problem = f"is a tensor of {value.dtype}, {value.layout}, on {value.device}, which cannot be saved"
            raise self._cannot_pack(path, problem)
        if value.requires_grad:
            raise self._cannot_pack(path, "is a tensor that requires a gradient, so it belongs to a graph; detach() it")
        memory = value.data_ptr() if value.numel() else id(value)
        identity = (memory, value.device, value.dtype, value.shape, value.stride(), value.is_conj(), value.is_neg())
        if identity not in self._names:
            self._names[identity] = self._store(value.resolve_conj().resolve_neg(), path)
        packed: dict[str, Json] = {"tensor": self._names[identity]}
        if not value.is_contiguous():
            # Fused optimizers read parameter and moments as raw memory: the moments need the parameter's strides.
            packed["stride"] = list(torch.empty_like(value, device="meta").stride())
        if value.dtype in _STORED_AS:
            packed["dtype"] = str(value.dtype).removeprefix("torch.")
        return packed

    def shard_reference(self, value: ShardReference, path: Path) -> Json:
        dtype = str(value.dtype).removeprefix("torch.")
        return {"sharded": value.name, "shape": list(value.shape), "dtype": dtype}

    def _store(self, tensor: Tensor, path: Path) -> str:
        stem = ".".join(map(str, path)).encode("utf-8", "backslashreplace").decode() or "tensor"
        name, number = stem, 1
        while name in self.tensors or name == RESERVED:
            number += 1
            name = f"{stem}#{number}"
        stored = tensor.cpu().contiguous() if self._earlier is None else self._copy_into(name, tensor, self._earlier)
        self.tensors[name] = _as_storable(stored)
        return name

    def _copy_into(self, name: str, tensor: Tensor, earlier: Mapping[str, Tensor]) -> Tensor:
        """Copy a tensor into the memory of an earlier copy if shape and dtype match, else into new memory."""
        memory = earlier.get(name)
        if memory is None or memory.dtype != tensor.dtype or memory.shape != tensor.shape:
            memory = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        return memory.copy_(tensor)

    def _cannot_pack(self, path: Path, problem: str) -> CheckpointError:
        location = ".".join(map(str, (self._at, *path) if self._at else path)) or "The state"
        return CheckpointError(
            f"{location} {problem}.",
            why="A checkpoint holds data only, so that loading it never runs code and restores every bit.",
            fix="Convert it to dicts, lists, tuples, numbers, strings, bytes and tensors.",
        )


_PACKERS: dict[type, Callable[[_Packer, Any, Path], Json]] = {
    int: _Packer.integer,
    float: _Packer.number,
    bytes: _Packer.binary,
    list: _Packer.sequence,
    tuple: _Packer.tuple_node,
    dict: _Packer.mapping,
    Counter: _Packer.mapping,
    OrderedDict: _Packer.ordered,
    Tensor: _Packer.tensor,
    ShardReference: _Packer.shard_reference,
}


def _as_storable(tensor: Tensor) -> Tensor:
    """View the tensor's memory as a type that safetensors has."""
    stored_dtype = _STORED_AS.get(tensor.dtype)
    if stored_dtype is None:
        return tensor
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor.view(stored_dtype)


class _Unpacker:
    """Unpacks one tree; all entries that refer to the same tensor get the same object."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._built: dict[str, Tensor] = {}

    def node(self, packed: Any) -> Any:
        if isinstance(packed, list):
            return [self.node(item) for item in packed]
        if isinstance(packed, dict):
            return _UNPACKERS[next(iter(packed))](self, packed)
        return packed

    def integer(self, packed: dict[str, Any]) -> int:
        return int(packed["int"], 16)

    def number(self, packed: dict[str, Any]) -> float:
        return struct.unpack(">d", bytes.fromhex(packed["float"]))[0]

    def binary(self, packed: dict[str, Any]) -> bytes:
        return base64.b64decode(packed["bytes"], validate=True)

    def tuple_node(self, packed: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(self.node(item) for item in packed["tuple"])

    def mapping(self, packed: dict[str, Any]) -> dict[Any, Any]:
        tag, items = next(iter(packed.items()))
        pairs = items.items() if isinstance(items, dict) else ((self.node(key), item) for key, item in items)
        tree = _MAPPINGS[tag]()
        for key, item in pairs:
            tree[key] = self.node(item)
        if "metadata" in packed:
            tree._metadata = self.node(packed["metadata"])  # pyright: ignore[reportAttributeAccessIssue]  # noqa: SLF001
        return tree

    def scalar(self, packed: dict[str, Any]) -> np.generic:
        return np.frombuffer(bytes.fromhex(packed["scalar"]), dtype=_numpy_dtype(packed["dtype"]))[0]

    def array(self, packed: dict[str, Any]) -> np.ndarray[Any, Any]:
        memory = bytearray(self._tensors[packed["array"]].numpy().tobytes())
        return np.frombuffer(memory, dtype=_numpy_dtype(packed["dtype"])).reshape(packed["shape"])

    def shard_reference(self, packed: dict[str, Any]) -> ShardReference:
        shape = tuple(map(operator.index, packed["shape"]))
        return ShardReference(name=packed["sharded"], shape=shape, dtype=_PLAIN_NAMES[packed["dtype"]])

    def tensor(self, packed: dict[str, Any]) -> Tensor:
        name = packed["tensor"]
        if name not in self._built:
            self._built[name] = self._build(packed)
        return self._built[name]

    def _build(self, packed: dict[str, Any]) -> Tensor:
        tensor = self._tensors[packed["tensor"]]
        if "dtype" in packed:
            dtype = _STORED_NAMES[packed["dtype"]]
            tensor = torch.view_as_complex(tensor) if dtype.is_complex else tensor.view(dtype)
        if "stride" in packed:
            strided = torch.empty_strided(tensor.shape, packed["stride"], dtype=tensor.dtype, device="cpu")
            tensor = strided.copy_(tensor)
        return tensor


def _numpy_dtype(name: str) -> np.dtype[Any]:
    """Parse a dtype that `pack` writes; np.dtype alone would also accept lists, fields and objects."""
    if not re.fullmatch(r"[<>|][biufc]\d{1,2}", name):
        raise ValueError(f"no numeric type: {name!r}")
    return np.dtype(name)


_UNPACKERS: dict[str, Callable[[_Unpacker, dict[str, Any]], Any]] = {
    "int": _Unpacker.integer,
    "float": _Unpacker.number,
    "bytes": _Unpacker.binary,
    "tuple": _Unpacker.tuple_node,
    **dict.fromkeys(_MAPPINGS, _Unpacker.mapping),
    "tensor": _Unpacker.tensor,
    "array": _Unpacker.array,
    "scalar": _Unpacker.scalar,
    "sharded": _Unpacker.shard_reference,
}
