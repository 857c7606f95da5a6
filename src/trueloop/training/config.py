"""Every setting of a run, as one frozen tree. A recipe returns it, TOML and the command line override it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Precision = Literal["off", "bf16", "fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """Which optimizer, and how the parameters are grouped."""

    name: Literal["adamw", "adam", "sgd", "rmsprop", "adagrad"] = "adamw"
    """The torch.optim class; fused where torch has a fused kernel."""
    lr: float = 1e-3
    """Peak learning rate, per update."""
    weight_decay: float = 0.01
    """Decay of matrices and filters; biases and normalisation weights get none (see decay_all)."""
    decay_all: bool = False
    """Decay every parameter alike, as bare torch does."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's two moment decays."""
    eps: float = 1e-8
    """Adam's denominator offset."""
    momentum: float = 0.9
    """SGD and RMSprop only."""
    nesterov: bool = False
    """SGD only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """The learning rate as a function of the update; its horizon is the plan's."""

    name: Literal["constant", "step", "cosine", "linear", "onecycle"] = "cosine"
    """Shape after the warm-up."""
    warmup: float = 0.0
    """Share of all updates spent climbing linearly to the peak, in [0, 1)."""
    floor: float = 0.0
    """Final learning rate as a share of the peak (cosine, linear)."""
    step_epochs: int = 10
    """Epochs between two drops (step)."""
    gamma: float = 0.1
    """Factor of each drop (step)."""
    horizon_epochs: int | None = None
    """Epochs the schedule is laid out for; None = epochs. More than epochs: a part of a longer run, which can be
    continued to its end exactly. Fewer: the rest runs at the final rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    """The one number that says which checkpoint is best and when to stop."""

    metric: str = "val/loss"
    """Split and name, as in the journal."""
    mode: Literal["min", "max"] = "min"
    """Whether less or more is better."""
    patience: int | None = None
    """Evaluations without improvement before stopping; none = never stop early."""
    min_delta: float = 0.0
    """Smallest change that counts as an improvement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When the whole state is written, and what is kept."""

    every_epochs: int = 1
    """Save after this many epochs."""
    every_updates: int | None = None
    """Save after this many updates as well."""
    keep_last: int = 2
    """Newest checkpoints kept."""
    keep_best: int = 1
    """Best checkpoints kept, by the monitored metric."""
    final: Literal["best", "last"] = "best"
    """Which weights the model ends with, are tested and lie in RUN/final; best needs a run folder and a val set."""
    blocking: bool = False
    """Training waits until each checkpoint is on the disk, not only for the copy it is written from."""
    mirror: str | None = None
    """Where every whole checkpoint is copied to, as an address for fsspec: "s3://bucket/run", "file:///mnt/run"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """What happens to an update whose gradient is not finite: it is never stepped."""

    enabled: bool = True
    """Off: step whatever comes, as a bare loop does."""
    max_in_a_row: int = 10
    """Stop with the evidence after this many skipped updates in a row; 1 stops at the first."""
    locate: bool = True
    """Re-run the window to name the first module, operation and batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How several processes share one run; nothing of it matters to a single one."""

    engine: Literal["ddp", "fsdp"] = "ddp"
    """Each process holds all of it (ddp), or a part of every block (fsdp: torch's
    fully_shard)."""
    find_unused_parameters: Literal["auto", "always"] = "auto"
    """Look in every window for parameters that this process has not used (ddp): always, or where the first window
    leaves some unused."""
    sync_batchnorm: bool = False
    """Normalise by the statistics of all processes' micro-batches together; on GPUs only."""
    timeout_s: float = 1800.0
    """Seconds that a process waits for the others: longer than the slowest evaluation or save of one of them."""
    keepalive_timeout_s: float = 60.0
    """Seconds without a sign of life after which another machine counts as lost, on Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A whole run, except for the model and the data."""

    epochs: int = 10
    """Passes over the training set."""
    effective_batch: int = 64
    """Examples per update, over all micro-batches and processes: what the run means."""
    micro_batch: int | None = None
    """Examples per forward pass and process; only cuts the effective batch up. None = uncut."""
    drop_last: bool = False
    """Leave out the partial micro-batch at the end of each epoch, as torch does; a short window is still stepped."""
    seed: int = 0
    """Of everything random: order, initialisation, dropout, augmentation."""
    seeding: bool = True
    """Seed every generator at the start. False: they are left as they are; the order of data still follows the seed."""
    deterministic: bool = False
    """Only deterministic kernels; torch raises where there is none."""
    device: str = "auto"
    """"auto", "cpu", "cuda", "cuda:1", "mps"."""
    threads: int | None = None
    """Threads inside one operation on the CPU; None = torch's default, one per core. Small models want 1: more only
    wait for each other, up to 30 times slower on a busy machine."""
    workers: int | None = None
    """Loader processes; None = chosen from the machine and the data."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: Precision = "off"
    """Autocast: off, bf16, or fp16 with a dynamic loss scale."""
    clip: float | None = 1.0
    """Upper bound of the joint gradient norm; none = no clipping (the norm is still reported)."""
    freeze: tuple[str, ...] = ()
    """Shell patterns of parameter names that are not trained: "backbone.*"."""
    ema: float | None = None
    """Decay of the averaged weights used in evaluation; none = no average."""
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    compile: bool = False
    """Compile the whole update into one program; where that cannot be, the reason is noted and the model compiled."""
    recompute: bool = False
    """Gradient checkpointing of the model's repeated blocks: less memory, more time."""
    channels_last: bool = False
    """Lay out the weights of convolutions channels-last, which their fast kernels want; the numbers stay."""
    out_of_memory: Literal["halve", "stop"] = "halve"
    """Where the memory runs out on a window: halve the micro-batch and do the window again, or end the run."""
    evaluate_every_epochs: int = 1
    """Epochs between two evaluations."""
