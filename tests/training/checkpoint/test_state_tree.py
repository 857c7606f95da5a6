from __future__ import annotations

import json
import math
import struct
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from trueloop.core.errors import CheckpointError
from trueloop.training.checkpoint.state_tree import MAX_DEPTH, ShardReference, pack, unpack
from trueloop.training.checkpoint.tensor_file import DTYPES

# torch warns once per process, when the first torch.complex32 tensor is copied.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

FLOAT_BITS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack(">d", struct.pack(">Q", bits))[0])
PACKED = getattr(torch, "float4_e2m1fn_x2", None)  # since torch 2.8
ALL_DTYPES = [*DTYPES.values(), torch.complex128, torch.complex32, *([PACKED] if PACKED else [])]


def is_identical(first: Any, other: Any) -> bool:
    """Return True for trees that are equal bit for bit and in their types."""
    if type(first) is not type(other):
        return False
    if isinstance(first, Tensor):
        return is_identical_tensor(first, other)
    if isinstance(first, np.ndarray | np.generic):
        return first.dtype == other.dtype and first.shape == other.shape and first.tobytes() == other.tobytes()
    if isinstance(first, float):
        return struct.pack(">d", first) == struct.pack(">d", other)
    if isinstance(first, dict):
        pairs = zip(first.items(), other.items(), strict=True)
        return len(first) == len(other) and all(is_identical(k, l) and is_identical(v, w) for (k, v), (l, w) in pairs)
    if isinstance(first, list | tuple):
        return len(first) == len(other) and all(map(is_identical, first, other))
    return first == other


def is_identical_tensor(first: Tensor, other: Tensor) -> bool:
    if (first.dtype, first.shape) != (other.dtype, other.shape):
        return False
    return bytes_of(first) == bytes_of(other)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def round_trip(tree: Any) -> Any:
    """Pack a tree, write it as text, and unpack it."""
    packed, tensors = pack(tree)
    text = json.dumps(packed, allow_nan=False)
    assert all(tensor.is_contiguous() and tensor.dtype in DTYPES.values() for tensor in tensors.values())
    return unpack(json.loads(text), tensors)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(ALL_DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = math.prod(shape) * dtype.itemsize
    memory = torch.frombuffer(bytearray(draw(st.binary(min_size=count, max_size=count)) + b"\0"), dtype=torch.uint8)
    memory = memory[:count].clone()
    tensor = (memory % 2 if dtype is torch.bool else memory).view(dtype).reshape(shape)
    # Neither transposing nor slicing is implemented for packed 4-bit floats.
    if dtype is not PACKED and tensor.ndim > 1:
        tensor = draw(st.sampled_from([tensor, tensor.mT, tensor[..., :1], tensor[None].expand(2, *shape)]))
    return tensor


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    FLOAT_BITS,
    st.text(),
    st.binary(),
    tensors(),
    st.builds(np.float32, st.floats(width=32)),
    st.lists(st.integers(0, 2**32 - 1), max_size=4).map(lambda values: np.array(values, dtype=np.uint32)),
)
keys = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.binary(), st.floats(allow_nan=False))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=12,
)


@given(trees)
@settings(max_examples=300, deadline=None)
def test_any_tree_is_restored_bit_for_bit_with_its_types(tree: Any):
    assert is_identical(round_trip(tree), tree)


@given(trees, st.randoms())
@settings(max_examples=100, deadline=None)
def test_damaged_json_gives_an_error_or_data(tree: Any, random: Any):
    packed, tensors = pack(tree)
    text = list(json.dumps(packed))
    text[random.randrange(len(text))] = random.choice('{}[]",:0aetn')
    try:
        damaged = json.loads("".join(text))
    except ValueError:
        return
    try:
        unpack(damaged, tensors)
    except CheckpointError as error:
        assert "not readable" in str(error)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]):
    count = math.prod(shape) * dtype.itemsize
    memory = torch.arange(count, dtype=torch.uint8)
    memory = memory % 2 if dtype is torch.bool else memory
    tensor = memory.view(dtype).reshape(shape)
    assert is_identical(round_trip({"a": tensor}), {"a": tensor})


@pytest.mark.parametrize("value", [0.0, -0.0, 5e-324, math.pi, 1e308, math.inf, -math.inf, math.nan])
def test_floats_are_restored_bit_for_bit(value: float):
    assert is_identical(round_trip([value]), [value])


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**5000, -(10**5000)], ids=hex)
def test_integers_of_any_size_are_restored(value: int):
    assert is_identical(round_trip((value,)), (value,))


def test_similar_keys_are_not_confused():
    tree = {1: torch.tensor(1), "1": torch.tensor(2), "a.b": torch.tensor(3), "a": {"b": torch.tensor(4)}}
    assert is_identical(round_trip(tree), tree)
    tree = {"__metadata__": torch.tensor(5), "tensor": "x", "dict": {"tuple": []}}
    assert is_identical(round_trip(tree), tree)
    assert "__metadata__" not in pack(tree)[1]


def test_tensors_are_named_by_their_path():
    assert list(pack({"state": {0: {"exp_avg": torch.zeros(1)}}})[1]) == ["state.0.exp_avg"]
    assert list(pack(torch.zeros(1))[1]) == ["tensor"]


def test_the_same_tensor_is_stored_once():
    weight = torch.randn(2, 3)
    tree = {
        "encoder": weight,
        "decoder": weight.detach(),
        "view": weight[0],
        "turned": weight.T,
        "copy": weight.clone(),
    }
    packed, tensors = pack(tree)
    restored = unpack(packed, {name: tensor.clone() for name, tensor in tensors.items()})
    assert is_identical(restored, tree)
    assert restored["encoder"] is restored["decoder"]
    assert len({restored[name].data_ptr() for name in ("encoder", "view", "turned", "copy")}) == 4
    assert sorted(tensors) == ["copy", "encoder", "turned", "view"]


def test_a_conjugate_is_not_taken_for_the_tensor_whose_memory_it_shares():
    value = torch.tensor([1 + 2j, 3 - 4j])
    restored = round_trip([value, value.conj(), value.conj().imag])
    assert torch.equal(restored[1], torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(restored[2], torch.tensor([-2.0, 4.0]))
    assert torch.equal(restored[0], value)


def test_memory_layout_is_restored():
    moments = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    transposed = torch.randn(3, 4).T
    restored = round_trip([moments, transposed])
    assert is_identical(restored, [moments, transposed])
    assert [tensor.stride() for tensor in restored] == [moments.stride(), transposed.stride()]


def test_an_expanded_tensor_is_restored_with_its_own_memory():
    restored = round_trip(torch.arange(3).expand(2, 3))
    restored[0, 0] = 7
    assert restored.tolist() == [[7, 1, 2], [0, 1, 2]]


def test_pack_does_not_copy_contiguous_cpu_tensors():
    weight = torch.randn(3)
    assert pack([weight])[1]["0"].data_ptr() == weight.data_ptr()


def test_a_copy_shares_no_memory_and_has_tied_tensors_once():
    weight = torch.randn(4, 4)
    tree = {
        "a": weight, "tied": weight, "turned": weight.T, "row": weight[1], "bits": torch.tensor([1j]).conj(),
        "array": np.arange(3.0), "none": torch.empty(0),
    }  # fmt: skip
    json, tensors = pack(tree, copy={})
    assert json == pack(tree)[0]
    expected = {name: tensor.clone() for name, tensor in pack(tree)[1].items()}
    assert set(tensors) == set(expected) == {"a", "turned", "row", "bits", "array", "none"}
    addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors.values() if tensor.numel()}
    assert len(addresses) == 5
    assert weight.untyped_storage().data_ptr() not in addresses
    weight.zero_()
    tree["array"][:] = 0
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    restored = unpack(json, tensors)
    assert restored["a"] is restored["tied"]


def test_a_second_copy_reuses_memory_of_equal_shape_and_dtype():
    first = {"same": torch.zeros(3), "shape": torch.zeros(3), "type": torch.zeros(3), "gone": torch.zeros(3)}
    second = {"same": torch.ones(3), "shape": torch.ones(4), "type": torch.ones(3).double(), "new": torch.ones(2, 2).T}
    _, earlier = pack(first, copy={})
    json, later = pack(second, copy=earlier)
    reused = {name for name in later if name in earlier and later[name].data_ptr() == earlier[name].data_ptr()}
    assert reused == {"same"}
    assert all(torch.equal(value, second[name]) for name, value in unpack(json, later).items())


def test_a_state_dict_keeps_its_type_and_module_versions():
    state = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict()
    restored = round_trip(state)
    assert is_identical(restored, state)
    assert is_identical(restored._metadata, state._metadata)
    assert restored._metadata["1"] == {"version": 2}


def test_tied_weights_of_a_module_stay_tied():
    model = nn.ModuleDict({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)})
    model["two"].weight = model["one"].weight
    restored = round_trip(model.state_dict())
    assert restored["one.weight"] is restored["two.weight"]


def test_numpy_states_are_restored():
    generator = np.random.default_rng(3)
    state = {"pcg": generator.bit_generator.state, "legacy": np.random.RandomState(1).get_state(legacy=False)}
    restored = round_trip(state)
    assert is_identical(restored, state)
    restored["legacy"]["state"]["key"][0] = 1  # writable
    other = np.random.default_rng(4)
    other.bit_generator.state = restored["pcg"]
    assert other.integers(0, 2**60, 10).tolist() == generator.integers(0, 2**60, 10).tolist()
    arrays = [np.array(3.5), np.zeros((0, 2), ">i2"), np.arange(6).reshape(2, 3).T, np.bool_(True), np.complex128(1j)]
    assert is_identical(round_trip(arrays), arrays)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True),
    "adamw_tensor_lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "adagrad": torch.optim.Adagrad,
}


def train_updates(build: Any, updates: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    generator = torch.Generator().manual_seed(updates)
    for _ in range(updates):
        inputs = torch.randn(8, 3, 4, 4, generator=generator)

        def closure(inputs: Tensor = inputs) -> Tensor:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_continues_bitwise(name: str):
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        # Channels last: the moments must come back in the parameters' own memory layout.
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2))
        if name != "lbfgs":  # torch's LBFGS does not take that layout
            model = model.to(memory_format=torch.channels_last)
        return model, OPTIMIZERS[name](model.parameters())

    model, optimizer = fresh()
    train_updates(name, 3, model, optimizer)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    packed, tensors = pack(saved)
    stored = json.dumps(packed), {key: tensor.clone() for key, tensor in tensors.items()}
    restored = unpack(json.loads(stored[0]), stored[1])
    assert is_identical(restored, saved)
    expected = train_updates(name, 5, model, optimizer)

    other, resumed = fresh()
    other.load_state_dict(restored["model"])
    resumed.load_state_dict(restored["optimizer"])
    assert is_identical(train_updates(name, 5, other, resumed), expected)


def test_scheduler_states_are_restored():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    schedules = torch.optim.lr_scheduler
    for schedule in (
        schedules.MultiStepLR(optimizer, [2, 4]),
        schedules.OneCycleLR(optimizer, 0.1, total_steps=9),
        schedules.CosineAnnealingLR(optimizer, 5),
        schedules.ReduceLROnPlateau(optimizer),
    ):
        assert is_identical(round_trip(schedule.state_dict()), schedule.state_dict())
    assert is_identical(round_trip(Counter({2: 1, 4: 3})), Counter({2: 1, 4: 3}))


def refused_trees() -> dict[str, tuple[Any, str]]:
    self_containing: list[Any] = []
    self_containing.append(self_containing)
    return {
        "function": ({"state": {0: {"callback": len}}}, "optimizer.state.0.callback is a builtin_function_or_method."),
        "lambda": ({"state": {0: {"callback": lambda: 0}}}, "optimizer.state.0.callback is a function."),
        "set": ([{1, 2}], "optimizer.0 is a set."),
        "object": ((object(),), "optimizer.0 is an object."),
        "parameter": ([nn.Parameter(torch.zeros(1))], "optimizer.0 is a Parameter."),
        "complex": ({"z": 1j}, "optimizer.z is a complex."),
        "subclass of int": ([type("Number", (int,), {})(3)], "optimizer.0 is a Number."),
        "key": ({(1, 2): 3}, "optimizer has a key that is a tuple: (1, 2)."),
        "graph": ([torch.zeros(1, requires_grad=True)], "requires a gradient"),
        "sparse": ([torch.eye(2).to_sparse()], "optimizer.0 is a tensor of torch.float32, torch.sparse_coo, on cpu"),
        "meta": ([torch.empty(2, device="meta")], "on meta, which cannot be saved"),
        "sub-byte": ([torch.zeros(2, dtype=torch.uint8).view(torch.uint4)], "torch.uint4"),
        "objects": ([np.array([None])], "optimizer.0 is a NumPy array of object."),
        "masked": ([np.ma.array([1])], "optimizer.0 is a MaskedArray."),
        "loop": (self_containing, f"optimizer.0.0.0.0.0 is nested deeper than {MAX_DEPTH} levels, or contains itself."),
    }


@pytest.mark.parametrize("name", refused_trees())
def test_other_types_are_refused_with_their_path(name: str):
    tree, message = refused_trees()[name]
    with pytest.raises(CheckpointError) as caught:
        pack(tree, at="optimizer")
    assert message in caught.value.what


def test_an_invalid_root_is_refused():
    with pytest.raises(CheckpointError, match="^The state is a set"):
        pack(set())


@pytest.mark.parametrize(
    "packed",
    [
        {},
        {"unknown": 1},
        {"tensor": "absent"},
        {"tuple": 3},
        {"int": "xyz"},
        {"float": "00"},
        {"bytes": "*"},
        {"dict": [[1, 2, 3]]},
        {"dict": [[[], 1]]},
        {"dict": {}, "metadata": {"dict": {}}},
        {"array": "t", "dtype": "O", "shape": [1]},
        {"array": "t", "dtype": "<f4", "shape": [7]},
        {"array": "t", "dtype": ",", "shape": [4]},
        {"scalar": "00000000", "dtype": "(2,2)u1"},
        {"tensor": "t", "dtype": "load"},
        {"tensor": "t", "stride": [1, 2, 3]},
    ],
)
def test_json_that_pack_did_not_write_is_an_error(packed: Any):
    with pytest.raises(CheckpointError, match="not readable"):
        unpack(packed, {"t": torch.zeros(4, dtype=torch.uint8)})


def test_deep_json_is_an_error_not_a_crash():
    packed: Any = []
    for _ in range(5000):
        packed = [packed]
    with pytest.raises(CheckpointError, match="RecursionError"):
        unpack(packed, {})


def test_shard_references_are_restored():
    reference = ShardReference(name="model.w", shape=(5, 3), dtype=torch.bfloat16)
    packed, tensors = pack({"w": reference, "tied": reference})
    assert tensors == {}
    assert packed["dict"]["w"] == {"sharded": "model.w", "shape": [5, 3], "dtype": "bfloat16"}
    assert unpack(json.loads(json.dumps(packed)), {}) == {"w": reference, "tied": reference}
    for wrong in ({"dtype": "object"}, {"shape": [1.5]}, {"shape": 3}):
        with pytest.raises(CheckpointError, match="not readable"):
            unpack({"sharded": "w", "shape": [1], "dtype": "float32"} | wrong, {})
