"""The arithmetic of size: what a transformer of N parameters takes of a device, of the network, of the disk, of time.

Nothing is measured and nothing guessed: every number is a formula in the sizes given, and a property says which.

The words, with P devices, b sequences of s tokens in a micro-batch, K micro-batches per update, L blocks of width h:

    replicated  every device holds everything, and gradients are averaged by a ring all-reduce (DDP)
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
"""Float32 numbers that each optimizer keeps for a parameter, as `TrainConfig.optim` sets it up (with momentum)."""
PEAK_TFLOPS: Final = {"off": 67.0, "bf16": 989.0, "fp16": 989.0}
"""Of an H100 SXM, dense, from its data sheet: float32 without tensor cores, and 16-bit with them."""
JOURNAL_BYTES: Final = 205
"""Of one update of 100 ms; benchmarks/results/journal.json, 205 MB for 10**6 of them."""
HEAD_WIDTH: Final = 128
"""Also features per block in the shape that is assumed where none is said: h = 128 L, between GPT-3's and Llama's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The sizes of a model and of the machines, and as properties what follows; made by `scale`, which checks them."""

    parameters: int
    """N, all that are trained."""
    layers: int
    """L, blocks."""
    width: int
    """h, features per token."""
    vocabulary: int
    """v, tokens that the last layer tells apart."""
    sequence: int
    """s, tokens."""
    micro_batch: int
    """b, sequences per forward pass and device."""
    accumulate: int
    """K, micro-batches per update."""
    devices: int
    """P."""
    precision: Precision
    """Of the computation; parameters, gradients and moments are float32, as under torch's autocast."""
    optimizer: Optimizer
    tokens: int | None
    """To train on in all; None where it is not asked."""
    bandwidth_gb_s: float
    """10**9 bytes per second that a device sends and receives."""
    storage_gb_s: float
    """10**9 bytes per second that a device writes to the disk."""
    peak_tflops: float
    """10**12 operations per second that a device could do."""
    utilisation: float
    """Share of the peak that is reached."""

    @property
    def compute_bytes(self) -> int:
        """Of one number in the computation."""
        return FLOAT32 if self.precision == "off" else 2

    @property
    def block_parameters(self) -> int:
        """Of one block: 4 h² in attention, 8 h² in the two layers after it."""
        return 12 * self.width**2

    # Memory of one device, in bytes --------------------------------------------------------------------------------

    @property
    def parameter_bytes(self) -> int:
        """Master weights, float32: 4 N."""
        return FLOAT32 * self.parameters

    @property
    def gradient_bytes(self) -> int:
        """Float32: 4 N."""
        return FLOAT32 * self.parameters

    @property
    def moment_bytes(self) -> int:
        """Float32, two for Adam: 8 N."""
        return FLOAT32 * MOMENTS[self.optimizer] * self.parameters

    @property
    def copy_bytes(self) -> int:
        """Low-precision copies of the weights: 2 N, none in float32.

        Autocast makes them once per forward pass, keeps them to its end, and backward keeps those it needs: of whole
        weights also where these are sharded, and also where blocks are recomputed.
        """
        return 0 if self.precision == "off" else self.compute_bytes * self.parameters

    @property
    def sharded_gradient_bytes(self) -> int:
        """4 N / P; with K > 1 they stay whole until the window's end, so that they are reduced once: 4 N."""
        return self.gradient_bytes if self.accumulate > 1 else -(-self.gradient_bytes // self.devices)

    @property
    def gathered_bytes(self) -> int:
        """Float32: parameters of two blocks (at work, on its way), embedding and head; gradients of one block."""
        whole = 2 * self.block_parameters + 2 * self.width * self.vocabulary
        return FLOAT32 * (whole + self.block_parameters)

    @property
    def activation_bytes(self) -> int:
        """Kept for backward: L blocks of s b h (2 r + 14 c), and s b (r h + c h + 4 v) at the head.

        Per token and feature a block keeps the inputs of its two norms (r bytes each: the residual stream, float32 also
        under autocast), of its four linear layers (c, c, c, 4 c), query, key and value (3 c) and GELU's input (4 c);
        with fused attention (`scaled_dot_product_attention`), and without dropout, whose masks add 2 s b h.
        """
        return self.layers * self._block_activations + self._head_activations

    @property
    def recomputed_activation_bytes(self) -> int:
        """With every block recomputed: its input, L s b h r, and all of the one block at work."""
        inputs = self.layers * self._tokens_here * self.width * FLOAT32
        return inputs + self._block_activations + self._head_activations

    @property
    def replicated_bytes(self) -> int:
        """All of it on one device, activations kept."""
        states = self.parameter_bytes + self.gradient_bytes + self.moment_bytes + self.copy_bytes
        return states + self.activation_bytes

    @property
    def sharded_bytes(self) -> int:
        """All of it on one of P devices, activations kept."""
        shards = -(-(self.parameter_bytes + self.moment_bytes) // self.devices)
        held = self.sharded_gradient_bytes + self.gathered_bytes + self.copy_bytes
        return shards + held + self.activation_bytes

    @property
    def replicated_recomputed_bytes(self) -> int:
        """Replicated, with every block recomputed."""
        return self.replicated_bytes - self.activation_bytes + self.recomputed_activation_bytes

    @property
    def sharded_recomputed_bytes(self) -> int:
        """Sharded, with every block recomputed."""
        return self.sharded_bytes - self.activation_bytes + self.recomputed_activation_bytes

    # Traffic of one device per update, in bytes sent ---------------------------------------------------------------

    @property
    def replicated_traffic_bytes(self) -> int:
        """Ring all-reduce of the gradients, once per update: 2 (P-1)/P × 4 N."""
        return 2 * (self.devices - 1) * self.gradient_bytes // self.devices

    @property
    def sharded_traffic_bytes(self) -> int:
        """(P-1)/P × (2 K × 4 N + 4 N): parameters gathered in every forward and backward, gradients reduced once."""
        gathered = 2 * self.accumulate * self.parameter_bytes
        return (self.devices - 1) * (gathered + self.gradient_bytes) // self.devices

    @property
    def replicated_traffic_s(self) -> float:
        """Seconds, where nothing else is done meanwhile."""
        return self.replicated_traffic_bytes / (self.bandwidth_gb_s * 1e9)

    @property
    def sharded_traffic_s(self) -> float:
        """Seconds, where nothing else is done meanwhile."""
        return self.sharded_traffic_bytes / (self.bandwidth_gb_s * 1e9)

    # Time ----------------------------------------------------------------------------------------------------------

    @property
    def tokens_per_update(self) -> int:
        """P K b s."""
        return self.devices * self.accumulate * self._tokens_here

    @property
    def flop_per_update(self) -> int:
        """(6 N + 12 L h s) per token: forward 2, backward 4, and the attention between tokens."""
        return (6 * self.parameters + 12 * self.layers * self.width * self.sequence) * self.tokens_per_update

    @property
    def compute_s(self) -> float:
        """Seconds of an update in which every device computes at the utilisation given."""
        return self.flop_per_update / (self.devices * self.peak_tflops * 1e12 * self.utilisation)

    @property
    def recomputed_compute_s(self) -> float:
        """With every block recomputed: a forward pass more, 4/3 of the operations."""
        return self.compute_s * 4 / 3

    @property
    def updates(self) -> int | None:
        """ceil(tokens / tokens per update)."""
        return None if self.tokens is None else -(-self.tokens // self.tokens_per_update)

    @property
    def replicated_update_s(self) -> float:
        """Seconds at best: all the traffic behind the computation, or the other way round."""
        return max(self.compute_s, self.replicated_traffic_s)

    @property
    def sharded_update_s(self) -> float:
        """Seconds at best: all the traffic behind the computation, or the other way round."""
        return max(self.compute_s, self.sharded_traffic_s)

    @property
    def replicated_run_s(self) -> float | None:
        """Of all updates, at best."""
        return None if self.updates is None else self.updates * self.replicated_update_s

    @property
    def sharded_run_s(self) -> float | None:
        """Of all updates, at best."""
        return None if self.updates is None else self.updates * self.sharded_update_s

    # Disk ----------------------------------------------------------------------------------------------------------

    @property
    def checkpoint_bytes(self) -> int:
        """Parameters and moments, float32; gradients are not kept."""
        return self.parameter_bytes + self.moment_bytes

    @property
    def checkpoint_s(self) -> float:
        """Seconds where one device writes everything."""
        return self.checkpoint_bytes / (self.storage_gb_s * 1e9)

    @property
    def sharded_checkpoint_s(self) -> float:
        """Seconds where each device writes its share, and the storage keeps up with all of them."""
        return self.checkpoint_s / self.devices

    @property
    def order_list_bytes(self) -> int | None:
        """A shuffled list of all sequences, as `torch.randperm` makes it: 8 bytes each. The keyed permutation: none."""
        return None if self.tokens is None else 8 * (-(-self.tokens // self.sequence))

    @property
    def journal_bytes(self) -> int | None:
        """Of the run, at a line for each update."""
        return None if self.updates is None else JOURNAL_BYTES * self.updates

    def as_dict(self) -> dict[str, Any]:
        """Everything above by name, JSON-ready."""
        derived = [name for name, member in vars(type(self)).items() if isinstance(member, property)]
        names = (*(field.name for field in fields(self)), *derived)
        return {name: getattr(self, name) for name in names if not name.startswith("_")}

    @property
    def _tokens_here(self) -> int:
        return self.micro_batch * self.sequence

    @property
    def _block_activations(self) -> int:
        return self._tokens_here * self.width * (2 * FLOAT32 + 14 * self.compute_bytes)

    @property
    def _head_activations(self) -> int:
        """The last norm's input, the head's input, and the log-probabilities of cross-entropy, which are float32."""
        return self._tokens_here * (self.width * (FLOAT32 + self.compute_bytes) + FLOAT32 * self.vocabulary)


def scale(
    parameters: float, *, layers: int | None = None, width: int | None = None, tokens: float | None = None, **sizes: Any
) -> Scale:
    """Work out what a model takes; see `Scale` for the sizes.

    Args:
        parameters: N; 7e9 is a whole number, too.
        layers: blocks; None = those of a model of this size and 128 features per block.
        width: features; None = what makes ``12 layers width²`` the number of parameters, in whole heads of 128.
        tokens: to train on in all.
        **sizes: the other fields of `Scale`; those without a default here are 1, or usual ones.

    Raises:
        InvalidConfig: a size is not a number, or cannot be.
    """
    usual: dict[str, Any] = {
        "vocabulary": 50_257, "sequence": 2048, "micro_batch": 1, "accumulate": 1, "devices": 1, "precision": "bf16",
        "optimizer": "adamw", "bandwidth_gb_s": 50.0, "storage_gb_s": 2.0, "utilisation": 0.4,
    }  # fmt: skip
    given = {**usual, **sizes}
    if given.get("peak_tflops") is None:
        given["peak_tflops"] = PEAK_TFLOPS[given["precision"]]
    whole = _whole("parameters", parameters)
    if layers is None:
        layers = max(1, round((whole / (12 * HEAD_WIDTH**2)) ** (1 / 3)))
    if width is None:
        width = max(1, round(math.sqrt(whole / (12 * _whole("layers", layers))) / HEAD_WIDTH)) * HEAD_WIDTH
    counts = {"layers": layers, "width": width, **{name: given[name] for name in _COUNTS}}
    for name, value in counts.items():
        given[name] = _whole(name, value)
    for name in ("bandwidth_gb_s", "storage_gb_s", "peak_tflops", "utilisation"):
        if not 0 < given[name] < (math.inf if name != "utilisation" else 1.000001):
            raise InvalidConfig(
                f"{name} is {given[name]!r}.",
                fix="It must be above 0."
                if name != "utilisation"
                else "It is a share of the peak, above 0 and up to 1.",
            )
    return Scale(parameters=whole, tokens=None if tokens is None else _whole("tokens", tokens), **given)


_COUNTS = ("vocabulary", "sequence", "micro_batch", "accumulate", "devices")


def _whole(name: str, value: float) -> int:
    if not math.isfinite(value) or value < 1 or value != int(value):
        raise InvalidConfig(f"{name} is {value!r}.", fix="It must be a whole number from 1 on; 7e9 is one.")
    return int(value)
