"""Every setting of a run as one frozen tree, which recipes return and TOML files and the command line override."""

from dataclasses import dataclass, field
from typing import Literal

Precision = Literal["off", "bf16", "fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """Which optimizer, and how the parameters are grouped."""

    name: Literal["adamw", "adam", "sgd", "rmsprop", "adagrad"] = "adamw"
    """The torch.optim class; fused where PyTorch has a fused kernel."""
    lr: float = 1e-3
    """Peak learning rate, per update."""
    weight_decay: float = 0.01
    """Decay of matrices and filters; biases and normalisation weights get none (see decay_all)."""
    decay_all: bool = False
    """Decay every parameter, as plain PyTorch does."""
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
    """Epochs the schedule is planned for; None = epochs. More than epochs: one part of a longer run, which can be
    continued to its end exactly. Fewer: the rest runs at the final rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    """The metric that decides which checkpoint is best and when to stop."""

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
    """When the full state is written, and which checkpoints are kept."""

    every_epochs: int = 1
    """Save after this many epochs."""
    every_updates: int | None = None
    """Save after this many updates as well."""
    keep_last: int = 2
    """Number of newest checkpoints to keep."""
    keep_best: int = 1
    """Number of best checkpoints to keep, by the monitored metric."""
    final: Literal["best", "last"] = "best"
    """Weights that are tested and saved in RUN/final, and that the model ends with; best needs a run folder and a val
    set."""
    blocking: bool = False
    """Training waits until each checkpoint is on disk, not only until its copy in memory is made."""
    mirror: str | None = None
    """Second location of every complete checkpoint, as an fsspec URL: "s3://bucket/run", "file:///mnt/run"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """What happens after a non-finite gradient, which is never applied."""

    enabled: bool = True
    """Off: apply every gradient, as a bare loop does."""
    max_in_a_row: int = 10
    """Stop with the evidence after this many skipped updates in a row; 1 stops at the first."""
    locate: bool = True
    """Re-run the window to name the first module, operation and batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How several processes share one run; without effect on a single process."""

    engine: Literal["ddp", "fsdp"] = "ddp"
    """Replicate the model on each process (ddp), or shard every block over the processes (fsdp: PyTorch's
    fully_shard)."""
    find_unused_parameters: Literal["auto", "always"] = "auto"
    """Search every window for parameters that this process has not used (ddp): always, or only if the first window
    leaves some unused."""
    sync_batchnorm: bool = False
    """Normalise by the statistics of all processes' micro-batches; on GPUs only."""
    timeout_s: float = 1800.0
    """Seconds that a process waits for the others; must exceed the slowest evaluation or save of one of them."""
    keepalive_timeout_s: float = 60.0
    """Seconds without an answer after which another machine counts as lost, on Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """All settings of a run, except for the model and the data."""

    epochs: int = 10
    """Passes over the training set."""
    effective_batch: int = 64
    """Examples per update, over all micro-batches and processes; defines the training, whatever the hardware."""
    micro_batch: int | None = None
    """Examples per forward pass and process; only splits the effective batch. None = no split."""
    drop_last: bool = False
    """Drop the partial micro-batch at the end of each epoch, as PyTorch does; a short window still makes an update."""
    seed: int = 0
    """Seed of everything random: order, initialisation, dropout, augmentation."""
    seeding: bool = True
    """Seed every generator at the start. False: they are left unchanged; the data order still follows the seed."""
    deterministic: bool = False
    """Use deterministic kernels only; PyTorch raises where there is none."""
    device: str = "auto"
    """"auto", "cpu", "cuda", "cuda:1", "mps"."""
    threads: int | None = None
    """Threads inside one operation on the CPU; None = PyTorch's default, one per core. Small models want 1: more only
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
    """Compile the whole update into one program; where that is impossible, report why and compile only the model."""
    recompute: bool = False
    """Gradient checkpointing of the model's repeated blocks: less memory, more time."""
    channels_last: bool = False
    """Lay out the weights of convolutions channels-last, for faster kernels; the results stay the same."""
    out_of_memory: Literal["halve", "stop"] = "halve"
    """When a window runs out of memory: halve the micro-batch and repeat the window, or end the run."""
    evaluate_every_epochs: int = 1
    """Epochs between two evaluations."""
