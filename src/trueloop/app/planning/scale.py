"""Compute the memory, network traffic, time and disk space that training a transformer of N parameters takes.

No number is measured or guessed: each property documents the formula that computes it from the sizes.

Symbols: P devices, b sequences of s tokens in a micro-batch, K micro-batches per update, L blocks of width h,
v tokens in the vocabulary, r = 4 bytes per float32 number, c bytes per number in the computation. Two cases:

    replicated  every device holds the whole model, and a ring all-reduce averages the gradients (DDP)
    sharded     every device holds 1/P of parameters, gradients and moments; a block's parameters are gathered when they
                are needed (FSDP2's `fully_shard`, stage 3 of ZeRO)

Sources: Rajbhandari et al., ZeRO, arXiv:1910.02054 (memory of states, traffic of the stages); Korthikanti et al.,
arXiv:2205.05198 (activations); Chowdhery et al., PaLM, arXiv:2204.02311, appendix B (operations per token).
"""

import math
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from trueloop.core.errors import InvalidConfig

Precision = Literal["off", "bf16", "fp16"]
Optimizer = Literal["adamw", "adam", "sgd", "rmsprop", "adagrad"]

FLOAT32: Final = 4
MOMENTS: Final = {"adamw": 2, "adam": 2, "sgd": 1, "rmsprop": 2, "adagrad": 1}
"""Number of float32 values per parameter in each optimizer's state, as `TrainConfig.optim` configures the optimizer."""
PEAK_TFLOPS: Final = {"off": 67.0, "bf16": 989.0, "fp16": 989.0}
"""Dense peak of an H100 SXM from its data sheet: float32 without tensor cores, 16-bit formats with tensor cores."""
JOURNAL_BYTES: Final = 205
"""Bytes in the journal per update, if an update takes 100 ms; measured in benchmarks/results/journal.json."""
HEAD_WIDTH: Final = 128
"""Width of an attention head. If no shape is given, h = 128 L is assumed, which lies between GPT-3 and Llama."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of a model and of the machines, with the derived numbers as properties; created and checked by `scale`."""

    parameters: int
    """N, the number of trained parameters."""
    layers: int
    """L, the number of blocks."""
    width: int
    """h, the number of features per token."""
    vocabulary: int
    """v, the number of tokens in the vocabulary."""
    sequence: int
    """s, the number of tokens in a sequence."""
    micro_batch: int
    """b, the number of sequences per forward pass and device."""
    accumulate: int
    """K, the number of micro-batches per update."""
    devices: int
    """P, the number of devices."""
    precision: Precision
    """Precision of the computation; parameters, gradients and moments are float32, as under torch's autocast."""
    optimizer: Optimizer
    tokens: int | None
    """Total number of tokens to train on; None = not given."""
    bandwidth_gb_s: float
    """Bandwidth of a device in each direction, in 10**9 bytes per second."""
    storage_gb_s: float
    """Speed at which a device writes to the disk, in 10**9 bytes per second."""
    peak_tflops: float
    """Peak speed of a device, in 10**12 operations per second."""
    utilisation: float
    """Share of the peak speed that training reaches."""

    @property
    def compute_bytes(self) -> int:
        """Number of bytes per number in the computation: c."""
        return FLOAT32 if self.precision == "off" else 2

    @property
    def block_parameters(self) -> int:
        """Number of parameters of one block: 4 h² in attention, 8 h² in the two layers of the MLP."""
        return 12 * self.width**2

    @property
    def parameter_bytes(self) -> int:
        """Float32 master weights: 4 N."""
        return FLOAT32 * self.parameters

    @property
    def gradient_bytes(self) -> int:
        """Float32 gradients: 4 N."""
        return FLOAT32 * self.parameters

    @property
    def moment_bytes(self) -> int:
        """Float32 optimizer state: 8 N for Adam, which has two moments."""
        return FLOAT32 * MOMENTS[self.optimizer] * self.parameters

    @property
    def copy_bytes(self) -> int:
        """Low-precision copies of the weights: 2 N; 0 if the computation is in float32.

        Autocast creates the copies once per forward pass and keeps them until its end; the graph keeps the copies that
        backward needs. The copies are of full weights even if the weights are sharded, or the blocks recomputed.
        """
        return 0 if self.precision == "off" else self.compute_bytes * self.parameters

    @property
    def sharded_gradient_bytes(self) -> int:
        """Gradients of a sharded model: 4 N / P; but 4 N if K > 1, because they are reduced only after the window."""
        return self.gradient_bytes if self.accumulate > 1 else -(-self.gradient_bytes // self.devices)

    @property
    def gathered_bytes(self) -> int:
        """Float32 parameters of the current and the next block, embedding and head, and gradients of one block."""
        parameters = 2 * self.block_parameters + 2 * self.width * self.vocabulary
        return FLOAT32 * (parameters + self.block_parameters)

    @property
    def activation_bytes(self) -> int:
        """Activations for backward: s b h (2 r + 14 c) in each of L blocks, and s b (r h + c h + 4 v) in the head.

        Per token and feature, a block keeps the inputs of its two norms (r bytes each: the residual stream is float32
        even under autocast), the inputs of its four linear layers (c, c, c, 4 c), query, key and value (3 c), and the
        input of GELU (4 c). Attention is fused (`scaled_dot_product_attention`). There is no dropout; its masks would
        add 2 s b h.
        """
        return self.layers * self._block_activations + self._head_activations

    @property
    def recomputed_activation_bytes(self) -> int:
        """Activations if every block is recomputed: the inputs of all blocks, L s b h r, and all of one block."""
        inputs = self.layers * self._micro_batch_tokens * self.width * FLOAT32
        return inputs + self._block_activations + self._head_activations

    @property
    def replicated_bytes(self) -> int:
        """Memory of a device with a replicated model, with all activations."""
        states = self.parameter_bytes + self.gradient_bytes + self.moment_bytes + self.copy_bytes
        return states + self.activation_bytes

    @property
    def sharded_bytes(self) -> int:
        """Memory of a device with a sharded model, with all activations."""
        shards = -(-(self.parameter_bytes + self.moment_bytes) // self.devices)
        others = self.sharded_gradient_bytes + self.gathered_bytes + self.copy_bytes
        return shards + others + self.activation_bytes

    @property
    def replicated_recomputed_bytes(self) -> int:
        """Memory of a device with a replicated model, if every block is recomputed."""
        return self.replicated_bytes - self.activation_bytes + self.recomputed_activation_bytes

    @property
    def sharded_recomputed_bytes(self) -> int:
        """Memory of a device with a sharded model, if every block is recomputed."""
        return self.sharded_bytes - self.activation_bytes + self.recomputed_activation_bytes

    @property
    def replicated_traffic_bytes(self) -> int:
        """Bytes sent for the ring all-reduce of the gradients, once per update: 2 (P-1)/P × 4 N."""
        return 2 * (self.devices - 1) * self.gradient_bytes // self.devices

    @property
    def sharded_traffic_bytes(self) -> int:
        """Bytes sent to gather parameters in every forward and backward pass, and to reduce gradients once per update.

        (P-1)/P × (2 K × 4 N + 4 N).
        """
        gathered = 2 * self.accumulate * self.parameter_bytes
        return (self.devices - 1) * (gathered + self.gradient_bytes) // self.devices

    @property
    def replicated_traffic_s(self) -> float:
        """Seconds that the traffic of a replicated model takes per update."""
        return self.replicated_traffic_bytes / (self.bandwidth_gb_s * 1e9)

    @property
    def sharded_traffic_s(self) -> float:
        """Seconds that the traffic of a sharded model takes per update."""
        return self.sharded_traffic_bytes / (self.bandwidth_gb_s * 1e9)

    @property
    def tokens_per_update(self) -> int:
        """Number of tokens per update: P K b s."""
        return self.devices * self.accumulate * self._micro_batch_tokens

    @property
    def flop_per_update(self) -> int:
        """Operations per update: 6 N per token (2 N in forward, 4 N in backward), and 12 L h s in attention."""
        return (6 * self.parameters + 12 * self.layers * self.width * self.sequence) * self.tokens_per_update

    @property
    def compute_s(self) -> float:
        """Seconds that the computation of an update takes at the given utilisation."""
        return self.flop_per_update / (self.devices * self.peak_tflops * 1e12 * self.utilisation)

    @property
    def recomputed_compute_s(self) -> float:
        """Seconds that the computation takes if every block is recomputed: one more forward pass, so 4/3 as long."""
        return self.compute_s * 4 / 3

    @property
    def updates(self) -> int | None:
        """Number of updates: ceil(tokens / tokens per update); None without ``tokens``."""
        return None if self.tokens is None else -(-self.tokens // self.tokens_per_update)

    @property
    def replicated_update_s(self) -> float:
        """Minimum seconds for an update of a replicated model, with traffic and computation completely overlapped."""
        return max(self.compute_s, self.replicated_traffic_s)

    @property
    def sharded_update_s(self) -> float:
        """Minimum seconds for an update of a sharded model, with traffic and computation completely overlapped."""
        return max(self.compute_s, self.sharded_traffic_s)

    @property
    def replicated_run_s(self) -> float | None:
        """Minimum seconds for all updates of a replicated model; None without ``tokens``."""
        return None if self.updates is None else self.updates * self.replicated_update_s

    @property
    def sharded_run_s(self) -> float | None:
        """Minimum seconds for all updates of a sharded model; None without ``tokens``."""
        return None if self.updates is None else self.updates * self.sharded_update_s

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint: float32 parameters and moments, without gradients."""
        return self.parameter_bytes + self.moment_bytes

    @property
    def checkpoint_s(self) -> float:
        """Seconds to save a checkpoint if one device writes it."""
        return self.checkpoint_bytes / (self.storage_gb_s * 1e9)

    @property
    def sharded_checkpoint_s(self) -> float:
        """Seconds to save a checkpoint if each device writes its share, and the storage is not the bottleneck."""
        return self.checkpoint_s / self.devices

    @property
    def order_list_bytes(self) -> int | None:
        """Bytes of a shuffled list of all sequences as in `torch.randperm`, 8 per sequence; trueloop needs no list."""
        return None if self.tokens is None else 8 * (-(-self.tokens // self.sequence))

    @property
    def journal_bytes(self) -> int | None:
        """Bytes of the run's journal with one line per update; None without ``tokens``."""
        return None if self.updates is None else JOURNAL_BYTES * self.updates

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and derived numbers by name, JSON-ready."""
        derived = [name for name, member in vars(type(self)).items() if isinstance(member, property)]
        names = (*(field.name for field in fields(self)), *derived)
        return {name: getattr(self, name) for name in names if not name.startswith("_")}

    @property
    def _micro_batch_tokens(self) -> int:
        return self.micro_batch * self.sequence

    @property
    def _block_activations(self) -> int:
        return self._micro_batch_tokens * self.width * (2 * FLOAT32 + 14 * self.compute_bytes)

    @property
    def _head_activations(self) -> int:
        """Inputs of the last norm and of the head, and the log-probabilities of cross-entropy, which are float32."""
        return self._micro_batch_tokens * (self.width * (FLOAT32 + self.compute_bytes) + FLOAT32 * self.vocabulary)


def scale(
    parameters: float, *, layers: int | None = None, width: int | None = None, tokens: float | None = None, **sizes: Any
) -> Scale:
    """Check the sizes of a model and of the machines, and compute the derived numbers.

    Args:
        parameters: number of parameters, which may be a float such as 7e9.
        layers: number of blocks; None = computed from ``parameters`` for a width of 128 times the number of blocks.
        width: features per token; None = the multiple of 128 with ``12 layers width²`` nearest to ``parameters``.
        tokens: total number of tokens to train on.
        **sizes: the other fields of `Scale`; their defaults are 1 or usual values.

    Raises:
        InvalidConfig: a size is not a number, or out of range.
    """
    defaults: dict[str, Any] = {
        "vocabulary": 50_257, "sequence": 2048, "micro_batch": 1, "accumulate": 1, "devices": 1, "precision": "bf16",
        "optimizer": "adamw", "bandwidth_gb_s": 50.0, "storage_gb_s": 2.0, "utilisation": 0.4,
    }  # fmt: skip
    values = {**defaults, **sizes}
    if values.get("peak_tflops") is None:
        values["peak_tflops"] = PEAK_TFLOPS[values["precision"]]
    count = _require_count("parameters", parameters)
    if layers is None:
        layers = max(1, round((count / (12 * HEAD_WIDTH**2)) ** (1 / 3)))
    if width is None:
        width = max(1, round(math.sqrt(count / (12 * _require_count("layers", layers))) / HEAD_WIDTH)) * HEAD_WIDTH
    counts = {"layers": layers, "width": width, **{name: values[name] for name in _COUNTS}}
    for name, value in counts.items():
        values[name] = _require_count(name, value)
    for name in ("bandwidth_gb_s", "storage_gb_s", "peak_tflops"):
        if not 0 < values[name] < math.inf:
            raise InvalidConfig(f"{name} is {values[name]!r}.", fix="It must be above 0.")
    if not 0 < values["utilisation"] <= 1:
        fix = "It is a share of the peak, above 0 and at most 1."
        raise InvalidConfig(f"utilisation is {values['utilisation']!r}.", fix=fix)
    return Scale(parameters=count, tokens=None if tokens is None else _require_count("tokens", tokens), **values)


_COUNTS = ("vocabulary", "sequence", "micro_batch", "accumulate", "devices")


def _require_count(name: str, value: float) -> int:
    if not math.isfinite(value) or value < 1 or value != int(value):
        raise InvalidConfig(f"{name} is {value!r}.", fix="It must be a whole number of at least 1, such as 12 or 7e9.")
    return int(value)
