"""Recomputing changes only the memory in use; all results are bitwise the same."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from trueloop.core.errors import InvalidModel
from trueloop.training.memory import recompute
from trueloop.training.memory.recompute import enable_recompute

DIM = 16


class Block(nn.Module):
    """A transformer-like block with dropout, BatchNorm and keyword inputs."""

    def __init__(self, normalise=None, spectral=False):
        super().__init__()
        self.norm = normalise(DIM) if normalise else nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = spectral_norm(nn.Linear(4 * DIM, DIM)) if spectral else nn.Linear(4 * DIM, DIM)
        self.drop = nn.Dropout(0.3)

    def forward(self, x, *, scale=None):
        change = self.drop(self.down(torch.relu(self.up(self.norm(x)))))
        return x + (change if scale is None else change * scale)


class Model(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.first = nn.Linear(DIM, DIM)
        self.blocks = nn.ModuleList(Block(**settings) for _ in range(3))
        self.last = nn.Linear(DIM, 1)

    def forward(self, x, scale=None):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, scale=scale)
        return self.last(x)


def twins(make=Model, **settings):
    torch.manual_seed(0)
    plain = make(**settings)
    return plain, copy.deepcopy(plain)


def gradients(model, forward=None, backwards=1, **inputs):
    """Gradients of two micro-batches with dropout, and the random state afterwards."""
    torch.manual_seed(1)
    for _ in range(2):
        loss = (model if forward is None else forward)(torch.randn(8, DIM), **inputs).square().mean()
        for left in reversed(range(backwards)):
            loss.backward(retain_graph=left > 0)
    return [parameter.grad for parameter in model.parameters()], torch.get_rng_state()


def same(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def saved_bytes(model):
    """Return the bytes that the graph stores between forward and backward; each storage counts once."""
    sizes = {}

    def pack(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        saved.append(tensor)  # so that no address is used twice
        return tensor

    saved = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.randn(256, DIM)).sum()
    return sum(sizes.values()) - sum(parameter.untyped_storage().nbytes() for parameter in model.parameters())


@pytest.mark.parametrize("settings", [{}, {"normalise": nn.BatchNorm1d}, {"spectral": True}])
@pytest.mark.parametrize("backwards", [1, 2])
def test_gradients_buffers_and_random_state_are_bitwise_the_same(settings, backwards):
    plain, recomputed = twins(**settings)
    assert enable_recompute(recomputed) == ["blocks.0", "blocks.1", "blocks.2"]
    (expected, random), (results, random_recomputed) = (
        gradients(plain, None, backwards),
        gradients(recomputed, None, backwards),
    )
    assert same(expected, results)
    assert torch.equal(random, random_recomputed)
    assert same(list(plain.buffers()), list(recomputed.buffers()))


def test_only_the_listed_blocks():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(3)))
    assert enable_recompute(model, only=["1"]) == ["1"]
    assert ["forward" in vars(block) for block in model] == [False, True, False]
    with pytest.raises(InvalidModel, match="'3' is not a repeated block"):
        enable_recompute(model, only=["0", "3"])


def test_batchnorm_would_count_a_batch_twice_without_the_copies():
    block = Block(normalise=nn.BatchNorm1d)
    torch.utils.checkpoint.checkpoint(block, torch.randn(8, DIM), use_reentrant=False).sum().backward()
    assert block.norm.num_batches_tracked == 2


def test_keyword_inputs_get_their_gradient():
    results = []
    for model in twins():
        scale = torch.full((DIM,), 0.5, requires_grad=True)
        if results:
            enable_recompute(model)
        results.append([*gradients(model, scale=scale)[0], scale.grad])
    assert same(*results)


def test_under_autocast_gradients_are_bitwise_the_same():
    results = []
    for model in twins():
        if results:
            enable_recompute(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.manual_seed(1)
            loss = model(torch.randn(8, DIM)).float().square().mean()
        loss.backward()
        results.append([parameter.grad for parameter in model.parameters()])
    assert same(*results)


def test_less_memory_is_used_between_forward_and_backward():
    plain, recomputed = twins()
    enable_recompute(recomputed)
    assert saved_bytes(recomputed) < 0.5 * saved_bytes(plain)


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
def test_without_a_gradient_or_in_eval_mode_the_block_runs_directly(mode, monkeypatch):
    plain, recomputed = twins(normalise=nn.BatchNorm1d)
    enable_recompute(recomputed)
    monkeypatch.setattr("trueloop.training.memory.recompute.checkpoint", None)  # calling it would fail
    outputs = []
    for model in (plain, recomputed):
        torch.manual_seed(2)
        model.train(mode != "eval")
        with torch.set_grad_enabled(mode == "eval"):
            outputs.append(model(torch.ones(4, DIM)))
    assert torch.equal(*outputs)
    assert same(list(plain.buffers()), list(recomputed.buffers()))


def test_state_dict_keys_classes_hooks_and_copies_do_not_change():
    plain, recomputed = twins()
    enable_recompute(recomputed)
    assert list(recomputed.state_dict()) == list(plain.state_dict())
    assert [type(module) for module in recomputed.modules()] == [type(module) for module in plain.modules()]
    calls = []
    recomputed.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    expected = gradients(plain)[0]
    assert same(expected, gradients(recomputed)[0])
    assert len(calls) == 2  # one per micro-batch, not two


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_recomputes_its_own_weights(way):
    plain, recomputed = twins()
    enable_recompute(recomputed)
    twin = way(recomputed)
    with torch.no_grad():
        for parameter in recomputed.parameters():
            parameter.zero_()
    assert saved_bytes(twin) < 0.5 * saved_bytes(plain)
    assert same(gradients(plain)[0], gradients(twin)[0])


def test_weights_are_loaded_with_and_without_recomputing():
    plain, recomputed = twins()
    enable_recompute(recomputed)
    file = io.BytesIO()
    torch.save(recomputed.state_dict(), file)
    file.seek(0)
    assert str(plain.load_state_dict(torch.load(file, weights_only=True))) == "<All keys matched successfully>"


def test_enabling_it_twice_changes_nothing():
    plain, recomputed = twins()
    assert enable_recompute(recomputed) == enable_recompute(recomputed)
    assert same(gradients(plain)[0], gradients(recomputed)[0])


def residual_stages():
    return nn.Sequential(nn.Linear(DIM, DIM), nn.Sequential(Block(), Block()), nn.Sequential(Block(), Block()))


def stacked_sequentials():
    def stage():
        return nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))

    return nn.Sequential(stage(), stage(), nn.Linear(DIM, 2))


def shared_block():
    block = Block()
    return nn.Sequential(block, block)


def blocks_within_blocks():
    outer = nn.ModuleList(Block() for _ in range(2))
    for block in outer:
        block.inner = nn.ModuleList(Block() for _ in range(2))
    return outer


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (residual_stages, ["1.0", "1.1", "2.0", "2.1"]),
        (stacked_sequentials, ["0", "1"]),
        (shared_block, ["0"]),
        (blocks_within_blocks, ["0", "1"]),
        (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2), ["layers.0", "layers.1"]),
    ],
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_repeated_blocks_of_several_models(make, names):
    assert enable_recompute(make()) == names


@pytest.mark.parametrize("make", [residual_stages, stacked_sequentials, shared_block])
def test_gradients_are_the_same_for_every_layout(make):
    plain, recomputed = twins(make)
    enable_recompute(recomputed)
    assert same(gradients(plain)[0], gradients(recomputed)[0])


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(2, 2),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)),
        nn.Sequential(Block(), nn.Linear(DIM, 2)),
        nn.ModuleList([nn.ReLU(), nn.ReLU()]),
    ],
)
def test_a_model_without_repeated_blocks_is_refused(model):
    with pytest.raises(InvalidModel, match=f"{type(model).__name__} has no repeated blocks"):
        enable_recompute(model)


def test_a_block_with_its_own_forward_is_refused_without_changes():
    model = Model()
    model.blocks[1].forward = lambda x, scale=None: x
    with pytest.raises(InvalidModel, match=r"block blocks\.1 has a forward"):
        enable_recompute(model)
    assert "forward" not in vars(model.blocks[0])


@pytest.mark.slow(reason="torch.compile")
@pytest.mark.parametrize("normalise", [None, nn.BatchNorm1d])
def test_gradients_of_a_compiled_model(normalise):
    plain, recomputed = twins(normalise=normalise)
    enable_recompute(recomputed)
    for model in (plain, recomputed):
        for block in model.blocks:
            block.drop.p = 0.0  # compiled kernels draw other numbers
    compiled = torch.compile(recomputed, backend="aot_eager")
    torch.testing.assert_close(gradients(plain)[0], gradients(recomputed, compiled)[0])
    torch.testing.assert_close(list(plain.buffers()), list(recomputed.buffers()))


@pytest.mark.slow(reason="torch.compile")
def test_compiled_blocks_with_buffers_before_torch_2_9(
    monkeypatch: pytest.MonkeyPatch,
):
    def checkpoint(*_: object, **__: object) -> None:
        raise AssertionError("it is recomputed")

    monkeypatch.setattr(recompute, "WRITES_TWICE", True)
    monkeypatch.setattr(recompute, "checkpoint", checkpoint)
    plain, recomputed = twins(normalise=nn.BatchNorm1d)
    enable_recompute(recomputed)
    for model in (plain, recomputed):
        for block in model.blocks:
            block.drop.p = 0.0  # compiled kernels draw other numbers
    compiled = torch.compile(recomputed, backend="aot_eager")
    torch.testing.assert_close(gradients(plain)[0], gradients(recomputed, compiled)[0])
    torch.testing.assert_close(list(plain.buffers()), list(recomputed.buffers()))
