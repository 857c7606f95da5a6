"""The arithmetic of size: against hand calculations, published numbers, and what torch really keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueloop.app.planning.scale import JOURNAL_BYTES, MOMENTS, scale
from trueloop.core.errors import InvalidConfig
from trueloop.training.config import OptimConfig
from trueloop.training.optimizers.parameter_groups import build_optimizer

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"

# Against hand calculations ---------------------------------------------------------------------------------------


def test_seven_billion_parameters_calculated_by_hand():
    model_scale = scale(7e9, layers=32, width=4096, vocabulary=32_000, sequence=4096, micro_batch=2, devices=64)
    assert (model_scale.parameter_bytes, model_scale.gradient_bytes, model_scale.moment_bytes) == (
        28 * 10**9,
        28 * 10**9,
        56 * 10**9,
    )
    assert model_scale.copy_bytes == 14 * 10**9
    tokens = 2 * 4096
    block = tokens * 4096 * 36  # bf16 under autocast: 2 norms in float32, 14 numbers in bf16
    head = tokens * (4096 * 6 + 4 * 32_000)
    assert model_scale.activation_bytes == 32 * block + head
    assert model_scale.recomputed_activation_bytes == 32 * tokens * 4096 * 4 + block + head
    assert model_scale.replicated_bytes == 126 * 10**9 + model_scale.activation_bytes
    gathered = 4 * (2 * 12 * 4096**2 + 2 * 4096 * 32_000) + 4 * 12 * 4096**2
    assert (
        model_scale.sharded_bytes == (28 + 28 + 56) * 10**9 // 64 + 14 * 10**9 + gathered + model_scale.activation_bytes
    )
    assert model_scale.replicated_traffic_bytes == 2 * 63 * 28 * 10**9 // 64
    assert model_scale.sharded_traffic_bytes == 63 * (2 * 28 + 28) * 10**9 // 64
    assert model_scale.checkpoint_bytes == 84 * 10**9
    assert model_scale.tokens_per_update == 64 * tokens
    assert model_scale.flop_per_update == (6 * 7 * 10**9 + 12 * 32 * 4096 * 4096) * 64 * tokens


def test_one_device_sends_and_shards_nothing():
    model_scale = scale(1e6, devices=1, precision="off")
    assert model_scale.replicated_traffic_bytes == model_scale.sharded_traffic_bytes == 0
    assert model_scale.sharded_bytes == model_scale.replicated_bytes + model_scale.gathered_bytes
    assert model_scale.copy_bytes == 0


def test_more_micro_batches_gather_more_often_and_reduce_once():
    once, often = scale(1e9, devices=8), scale(1e9, devices=8, accumulate=4)
    assert often.replicated_traffic_bytes == once.replicated_traffic_bytes
    assert once.sharded_traffic_bytes == 7 * (2 * 4 + 4) * 10**9 // 8
    assert often.sharded_traffic_bytes == 7 * (4 * 2 * 4 + 4) * 10**9 // 8
    assert (once.sharded_gradient_bytes, often.sharded_gradient_bytes) == (4 * 10**9 // 8, 4 * 10**9)


def test_a_run_of_a_trillion_tokens():
    model_scale = scale(70e9, devices=1000, sequence=4096, micro_batch=4, tokens=4096e12)
    assert model_scale.order_list_bytes == 8 * 10**12
    assert model_scale.updates == 10**12 // 4000
    assert model_scale.journal_bytes == JOURNAL_BYTES * model_scale.updates
    assert model_scale.replicated_run_s == model_scale.updates * max(
        model_scale.compute_s, 2 * 999 * 280e9 / 1000 / 50e9
    )
    assert model_scale.sharded_run_s == model_scale.updates * model_scale.sharded_update_s


@pytest.mark.parametrize(("parameters", "layers", "width"), [(1.3e9, 24, 2048), (6.7e9, 32, 4096), (175e9, 96, 12288)])
def test_the_default_shape_is_close_to_gpt_3(parameters: float, layers: int, width: int):
    """Brown et al., arXiv:2005.14165, table 2.1."""
    model_scale = scale(parameters)
    assert model_scale.layers == pytest.approx(layers, rel=0.25)
    assert model_scale.width == pytest.approx(width, rel=0.2)
    assert 12 * model_scale.layers * model_scale.width**2 == pytest.approx(parameters, rel=0.1)


def test_seven_billion_parameters_fit_eight_devices_of_80_gb():
    """docs/scale.md, on copies."""
    fits, does_not = (scale(n, devices=8, sequence=4096).sharded_recomputed_bytes for n in (16e9, 18e9))
    assert fits < 80e9 < does_not


# Against published numbers ---------------------------------------------------------------------------------------


def test_states_equal_those_of_the_zero_paper():
    """Rajbhandari et al., section 3.1: 16 bytes per parameter with Adam; 7.5 B take 120 GB, on 64 devices 1.9."""
    model_scale = scale(7.5e9, devices=64, precision="off")
    states = model_scale.parameter_bytes + model_scale.gradient_bytes + model_scale.moment_bytes
    assert states == 120 * 10**9
    assert states / 64 == pytest.approx(1.9e9, rel=0.02)


def test_traffic_equals_that_of_the_zero_paper():
    """Section 7.2.2: stage 3 sends 1.5 times what data parallelism does."""
    model_scale = scale(7.5e9, devices=64)
    assert model_scale.sharded_traffic_bytes == pytest.approx(1.5 * model_scale.replicated_traffic_bytes)


def test_activations_equal_those_of_korthikanti():
    """Section 4.1: 34 s b h per block in 16 bit, 2 of which are dropout masks, with a residual stream of 16 bit.

    Under autocast the stream is float32, 2 s b h more for each of two norms; we have no dropout, 2 less.
    """
    model_scale = scale(1e9, layers=10, width=1024, sequence=512, micro_batch=4, vocabulary=1)
    head = 512 * 4 * (1024 * 6 + 4)
    assert model_scale.activation_bytes - head == 10 * (34 - 2 + 4) * 512 * 4 * 1024


def test_the_time_equals_that_of_palm():
    """PaLM, section 4.1 and table 9: 540.35 B parameters, 118 blocks of 18432, 2048 tokens in 2048 sequences.

    6144 TPU v4 of 275 TFLOP/s reach 238.3 thousand tokens per second at 46.2 % utilisation.
    """
    model_scale = scale(
        540.35e9, layers=118, width=18_432, sequence=2048, micro_batch=1, peak_tflops=275.0, utilisation=0.462
    )
    assert 6144 / model_scale.compute_s * 2048 == pytest.approx(238.3e3, rel=0.01)


# Against what torch keeps ----------------------------------------------------------------------------------------

SIZES: dict[str, int] = {"layers": 4, "width": 256, "vocabulary": 512, "sequence": 96, "micro_batch": 2}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, h = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, h // 64, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, h))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width, vocabulary = SIZES["width"], SIZES["vocabulary"]
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(SIZES["layers"])))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


def trained(precision: str, optimizer: str = "adamw") -> tuple[Gpt, torch.optim.Optimizer, int]:
    """One update of a real model; also the bytes that its graph kept besides parameters, each storage counted once."""
    torch.manual_seed(0)
    model = Gpt()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, tuple[int, Tensor]] = {}
    copies = {tuple(p.shape) for p in model.parameters() if p.dim() == 2}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        is_copy = tuple(tensor.shape) in copies or tuple(tensor.t().shape if tensor.dim() == 2 else ()) in copies
        if storage.data_ptr() not in own and not is_copy:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    tokens = torch.randint(SIZES["vocabulary"], (SIZES["micro_batch"], SIZES["sequence"] + 1))
    context = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), context:
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    model_scale = build_optimizer(model, OptimConfig(name=optimizer))  # pyright: ignore[reportArgumentType]
    loss.backward()
    model_scale.step()
    return model, model_scale, sum(size for size, _ in saved.values())


def bytes_of(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, Tensor))


@pytest.mark.parametrize("optimizer", sorted(MOMENTS))
def test_the_states_of_a_real_model_are_as_computed(optimizer: str):
    model, model_scale, _ = trained("off", optimizer)
    expected = scale(sum(p.numel() for p in model.parameters()), **SIZES, optimizer=optimizer)
    assert bytes_of(model.parameters()) == expected.parameter_bytes
    assert bytes_of(p.grad for p in model.parameters()) == expected.gradient_bytes
    moments = bytes_of(part for state in model_scale.state.values() for part in state.values())
    # Besides, some keep a count of four bytes for each parameter tensor.
    assert expected.moment_bytes <= moments <= expected.moment_bytes + 4 * len(list(model.parameters()))


@pytest.mark.parametrize(("precision", "tolerance"), [("off", 0.08), ("bf16", 0.12)])
def test_the_activations_of_a_real_model_are_as_computed(precision: str, tolerance: float):
    """Left out of the formula: attention's output before it is rearranged, its normalisers, the norms' statistics."""
    model, _, saved = trained(precision)
    model_scale = scale(sum(p.numel() for p in model.parameters()), **SIZES, precision=precision)
    assert saved == pytest.approx(model_scale.activation_bytes, rel=tolerance)


def test_the_autocast_copies_of_a_real_model_are_as_computed():
    """Of the weights that backward multiplies by: all of linear layers."""
    model = Gpt()
    weights = {tuple(module.weight.shape) for module in model.modules() if isinstance(module, nn.Linear)}
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.bfloat16 and {tuple(tensor.shape), tuple(tensor.shape)[::-1]} & weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens = torch.zeros((2, 96), dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        model(tokens)
    linear = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    assert sum(saved.values()) == 2 * linear
    assert scale(linear).copy_bytes == 2 * linear


def test_the_journal_bytes_equal_the_measured_ones():
    measured = json.loads((RESULTS / "journal.json").read_text())
    assert measured["found"]["100 ms"]["megabytes"] * 1e6 / measured["updates"] == pytest.approx(JOURNAL_BYTES, rel=0.1)


# What cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"parameters": 0}, "parameters is 0"),
        ({"parameters": 1.5}, "parameters is 1.5"),
        ({"parameters": float("nan")}, "parameters is nan"),
        ({"layers": -1}, "layers is -1"),
        ({"layers": 0}, "layers is 0"),
        ({"peak_tflops": 0.0}, "peak_tflops is 0.0"),
        ({"width": 0}, "width is 0"),
        ({"devices": 0}, "devices is 0"),
        ({"tokens": 0.5}, "tokens is 0.5"),
        ({"bandwidth_gb_s": 0.0}, "bandwidth_gb_s is 0.0"),
        ({"utilisation": 40.0}, "utilisation is 40.0"),
    ],
)
def test_an_impossible_size_is_named(sizes: dict[str, Any], word: str):
    with pytest.raises(InvalidConfig, match=word) as error:
        scale(**{"parameters": 1e9, **sizes})
    assert error.value.fix
