"""Every setting of a run, in one frozen dataclass that recipes return and TOML files and the command line override."""

from dataclasses import dataclass, field
from typing import Literal

Precision = Literal["off", "bf16", "fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """The optimizer, and how its parameters are grouped."""

    name: Literal["adamw", "adam", "sgd", "rmsprop", "adagrad"] = "adamw"
    """The torch.optim class; PyTorch's fused kernel is used if there is one."""
    lr: float = 1e-3
    """Peak learning rate, per update."""
    weight_decay: float = 0.01
    """Weight decay of matrices and filters; biases and normalisation weights get none (see decay_all)."""
    decay_all: bool = False
    """Apply weight decay to every parameter, as PyTorch's optimizers do."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of Adam's two moments."""
    eps: float = 1e-8
    """Number added to Adam's denominator."""
    momentum: float = 0.9
    """Momentum of SGD and RMSprop."""
    nesterov: bool = False
    """Use Nesterov momentum (SGD)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """The learning rate as a function of the update."""

    name: Literal["constant", "step", "cosine", "linear", "onecycle"] = "cosine"
    """Shape after the warm-up."""
    warmup: float = 0.0
    """Share of all updates in which the rate rises linearly to the peak, in [0, 1)."""
    floor: float = 0.0
    """Final learning rate as a share of the peak (cosine, linear)."""
    step_epochs: int = 10
    """Number of epochs between two drops of the rate (step)."""
    gamma: float = 0.1
    """Factor by which the rate is multiplied at each drop (step)."""
    horizon_epochs: int | None = None
    """Number of epochs for which the schedule is planned; None = epochs. If it is larger, this is the first part of a
    longer run, which can be continued exactly. If it is smaller, the other epochs train at the final rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    """The metric that decides which checkpoint is best and when to stop."""

    metric: str = "val/loss"
    """Split and name of the metric, as in the journal."""
    mode: Literal["min", "max"] = "min"
    """Whether lower or higher values are better."""
    patience: int | None = None
    """Number of evaluations without improvement after which to stop; none = never stop early."""
    min_delta: float = 0.0
    """Smallest change that counts as an improvement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When the full state is saved, and which checkpoints are kept."""

    every_epochs: int = 1
    """Number of epochs between two saves."""
    every_updates: int | None = None
    """Number of updates between two additional saves; none = save only after epochs."""
    keep_last: int = 2
    """Number of newest checkpoints to keep."""
    keep_best: int = 1
    """Number of best checkpoints to keep, by the monitored metric."""
    final: Literal["best", "last"] = "best"
    """Weights to test, to save in RUN/final and to leave in the model; best needs a run folder and a val set."""
    blocking: bool = False
    """Training waits until each checkpoint is on disk, not only until it is copied in memory."""
    mirror: str | None = None
    """Second location of every complete checkpoint, as an fsspec URL: "s3://bucket/run", "file:///mnt/run"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """What happens after a non-finite gradient, which is never applied."""

    enabled: bool = True
    """Skip updates with non-finite gradients; false = apply every gradient, as a plain loop does."""
    max_in_a_row: int = 10
    """Number of skipped updates in a row after which the run stops; 1 = stop at the first."""
    locate: bool = True
    """Run the window again to find the first non-finite value: its batch, module and operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How several processes share one run; it has no effect on a single process."""

    engine: Literal["ddp", "fsdp"] = "ddp"
    """Replicate the model on each process (ddp), or shard every block over the processes (fsdp: PyTorch's
    fully_shard)."""
    find_unused_parameters: Literal["auto", "always"] = "auto"
    """Search every window for parameters that this process has not used (ddp): always, or only if the first window
    leaves some unused."""
    sync_batchnorm: bool = False
    """Normalise by the statistics of all processes' micro-batches; on GPUs only."""
    timeout_s: float = 1800.0
    """Number of seconds that a process waits for the others; set more than the slowest evaluation or save takes."""
    keepalive_timeout_s: float = 60.0
    """Number of seconds without an answer after which another machine counts as lost, on Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """All settings of a run, except for the model and the data."""

    epochs: int = 10
    """Number of passes over the training set."""
    effective_batch: int = 64
    """Number of examples per update, over all micro-batches and processes; defines the training on any hardware."""
    micro_batch: int | None = None
    """Number of examples per forward pass and process; only splits the effective batch. None = no split."""
    drop_last: bool = False
    """Drop the partial micro-batch at the end of each epoch, as PyTorch does; a short window is still an update."""
    seed: int = 0
    """Seed of all random numbers: order, initialisation, dropout, augmentation."""
    seeding: bool = True
    """Seed every generator at the start. False = do not; only the data order then depends on the seed."""
    deterministic: bool = False
    """Use deterministic kernels only; PyTorch raises an error if there is none."""
    device: str = "auto"
    """Device to train on: "auto", "cpu", "cuda", "cuda:1", "mps"."""
    threads: int | None = None
    """Number of threads in one operation on the CPU; None = PyTorch's default, one per core. Small models train fastest
    with 1: more threads wait for each other, which takes up to 30 times longer on a busy machine."""
    workers: int | None = None
    """Number of loader processes; None = choose for the machine and the data."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: Precision = "off"
    """Autocast: off, bf16, or fp16 with a dynamic loss scale."""
    clip: float | None = 1.0
    """Upper bound of the gradient norm over all parameters; none = no clipping (the norm is still reported)."""
    freeze: tuple[str, ...] = ()
    """Shell patterns of parameter names that are not trained: "backbone.*"."""
    ema: float | None = None
    """Decay of the averaged weights used in evaluation; none = no average."""
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    compile: bool = False
    """Compile the whole update into one program; if that is impossible, report why and compile only the model."""
    recompute: bool = False
    """Gradient checkpointing of the model's repeated blocks: less memory, more time."""
    channels_last: bool = False
    """Store the weights of convolutions channels-last, for faster kernels; results only differ by rounding."""
    out_of_memory: Literal["halve", "stop"] = "halve"
    """When a window runs out of memory: halve the micro-batch and repeat the window, or end the run."""
    evaluate_every_epochs: int = 1
    """Number of epochs between two evaluations."""
