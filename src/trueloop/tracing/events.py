"""The events of a training run, as detectors receive them. See also `Detector`.

RARE events are always emitted. The others are emitted during full tracing only: the first windows of the run, a few
updates after every change of structure (new optimizer, loader, mode), and short bursts later. A `TracingGap`
stands for the updates that were not traced. Within a burst no event is missing.

``update`` counts the steps of all optimizers, ``backward_count`` the outermost calls of ``backward``. LIVE fields hold
the program's own objects, which must not be stored after ``observe``. A number that would need a GPU synchronisation
is None.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from trueloop.core.findings import CodePosition, SourceLocation


class Ref:
    """Identifies one object of the program throughout the run; a reference is equal only to itself.

    A reference does not keep its object in memory.
    """

    __slots__ = ("__weakref__", "kind", "name")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        """Class name of the object: "AdamW", "Parameter", "Net"."""
        self.name = name
        """Name of the object in messages, refined as more is known: "0.weight", then "encoder.0.weight"."""

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"


Refs = frozenset[Ref]
NO_REFS: Refs = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class Event:
    """The base class of events. Events are not frozen, which would cost 3 us each, but never change once emitted."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ()
    """Fields that contain the program's own objects while the event is dispatched, and None afterwards."""
    update: int = 0
    """Number of updates before the event. `EventStream.emit` sets this field and the next three."""
    backward_count: int = 0
    """Number of backward passes that started before the event."""
    time_s: float = 0.0
    """Time of the event, on the clock of ``time.perf_counter``."""
    overhead_s: float = 0.0
    """Tracing overhead measured before the event, in seconds."""
    location: CodePosition | None = None
    """The user's line that caused the event; None if no user line is on the stack."""


@dataclass(slots=True, kw_only=True, eq=False)
class TracingGap(Event):
    """RARE. Updates since the previous event were not fully traced; ``update`` and ``backward_count`` include them."""

    updates: int
    """Number of updates that were not fully traced."""


@dataclass(slots=True, kw_only=True, eq=False)
class WatchEnded(Event):
    """RARE. The watch ends; no event follows."""


# Data -----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class LoaderStarted(Event):
    """RARE. ``iter`` was called on a DataLoader."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_loader",)
    loader: Ref
    epoch: int
    """Number of earlier starts of the loader."""
    sampler: str
    """Class name of the sampler: "RandomSampler", "SequentialSampler", "DistributedSampler", ..."""
    shuffles: bool | None
    """Whether the sampler shuffles; None if its class is not PyTorch's own."""
    batch_size: int | None
    workers: int
    drop_last: bool
    live_loader: Any
    """LIVE: the DataLoader."""
    dataset: Ref | None = None
    """The dataset; None if it cannot be weakly referenced, such as a list."""
    made_at: CodePosition | None = None
    """Where the DataLoader was created."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchLoaded(Event):
    """A DataLoader returned a batch. The event has no location, since no detector needs one."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("batch",)
    loader: Ref
    epoch: int
    index: int
    """Index of the batch within its epoch."""
    wait_s: float
    batch: Any
    """LIVE: the batch."""


@dataclass(slots=True, kw_only=True, eq=False)
class LoaderExhausted(Event):
    """RARE. A DataLoader has no more batches; emitted when the program requests another, or uses another loader.

    Not emitted for a loader that was left by ``break`` before its last batch.
    """

    loader: Ref
    epoch: int
    batches: int
    pending_backwards: int
    """Number of backward passes since the latest step of any optimizer."""
    backwards: int
    """Number of backward passes during this epoch of the loader."""
    wait_s: float = 0.0
    """Time spent waiting for all batches except the first, which may include the start of workers."""
    seconds: float = 0.0
    """Time from the first batch to the end of the epoch."""
    workers: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class SampleOrderRecorded(Event):
    """RARE. The start of the sample order in one epoch of a shuffling loader, to be compared with other epochs."""

    loader: Ref
    dataset: Ref | None
    epoch: int
    digest: int
    """Hash of the first ``count`` indices; equal hashes mean the same samples in the same order."""
    count: int
    distinct: int
    batches: int
    shuffles: bool | None
    sampler: str
    made_at: CodePosition | None
    seeded_at: CodePosition | None
    """The latest ``torch.manual_seed`` since the previous start of a shuffling loader."""


@dataclass(slots=True, kw_only=True, eq=False)
class DistributedEpochStarted(Event):
    """RARE. A loader returned the first batch of an epoch that a DistributedSampler shuffles."""

    loader: Ref
    dataset: Ref | None
    order: tuple[int, int, int, int]
    """The sampler's epoch, seed, number of processes, and rank, which determine the order of samples."""
    made_at: CodePosition | None


@dataclass(slots=True, kw_only=True, eq=False)
class SortedLabels(Event):
    """RARE. Through a whole epoch an integer column was sorted: all samples with the same value followed each other."""

    loader: Ref
    epoch: int
    column: str
    """Key or index of the column in a batch: "1", "label"."""
    distinct_values: int
    """Number of distinct values in the column."""
    smallest_block: int
    """Number of samples in the smallest block."""
    samples: int
    batch_size: int
    """Number of samples in the first batch."""
    looks_like_time_series: bool
    """Whether the samples look like a time series: they overlap, or some feature is monotonic."""


@dataclass(slots=True, kw_only=True, eq=False)
class LoadersOverlap(Event):
    """RARE. Two loaders can return some of the same samples; emitted when the later one starts for the first time."""

    earlier: Ref
    later: Ref
    matched_by: str
    """"index": the same samples of one dataset; "content": equal samples in two datasets."""
    shared: int
    """Number of samples of the later loader that the earlier one can return too."""
    earlier_size: int
    later_size: int
    duplicates: int
    """Number of samples that repeat another of the same loader, in both loaders; 0 if matched by index."""
    remainder: Ref | None
    """A Subset of exactly the samples that only the earlier loader has."""


@dataclass(slots=True, kw_only=True, eq=False)
class JointlyStandardised(Event):
    """RARE. In the joined inputs of several loaders, every feature has exactly mean 0 and standard deviation 1."""

    loaders: tuple[Ref, ...]
    mean_offsets: tuple[float, ...]
    """Root mean square, over the features, of the mean of each loader's own samples."""
    samples: int


@dataclass(slots=True, kw_only=True, eq=False)
class SeedRepeated(Event):
    """RARE. A generator was repeatedly seeded with the same number while a loader fetched different samples."""

    loader: Ref
    generator: str
    """Library of the generator: "torch", "random", "numpy"."""
    seed: int
    times: int
    batches: int


@dataclass(slots=True, kw_only=True, eq=False)
class GeneratorCopied(Event):
    """RARE. A dataset's own random generator is copied into all workers in the same state, and used for each sample."""

    loader: Ref
    generator: str
    """Attribute path of the generator: "dataset.rng"."""
    kind: str
    used_at: CodePosition
    """The function that uses the generator."""
    workers: int
    persistent: bool
    made_at: CodePosition | None


@dataclass(slots=True, kw_only=True, eq=False)
class WorkersRepeatFirstBatch(Event):
    """RARE. All workers of a loader over an iterable dataset returned the same first batch."""

    loader: Ref
    dataset: Ref | None
    workers: int
    samples: int
    """Number of samples in the first batch."""
    made_at: CodePosition | None


# Model calls ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class ModelCalled(Event):
    """The forward of a module with parameters returned; calls inside another module's forward are left out."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_module", "output")
    model: Ref
    training: bool
    dropout_active: bool
    """Whether a dropout layer with p > 0 was in train mode, or functional dropout was applied because of train mode."""
    batchnorm_active: bool
    """Whether a BatchNorm layer with running statistics was in train mode."""
    all_eval: bool
    """Whether all modules of the model were in eval mode."""
    grad_mode: bool
    inference_mode: bool
    has_graph: bool
    """Whether the output has a graph."""
    autocast: str | None
    """Autocast type: "float16", "bfloat16"; None = autocast is off."""
    recomputed: bool
    """Whether activation checkpointing made this call again during a backward pass."""
    loader: Ref | None
    """The loader of the latest batch; None = no batch was loaded since the model's previous call."""
    parameters: Refs
    """All parameters of the model."""
    seconds: float
    live_module: Any
    """LIVE: the module."""
    output: Any
    """LIVE: the output."""
    autocast_parameter: tuple[Ref, int] | None = None
    """A parameter that autocast converted near the output, and the sequence number of the conversion in the graph; None
    = autocast is off, or no conversion was found."""
    previous_graph_used: bool = False
    """Whether the graph of the model's previous call in eval mode was run backward (or by ``torch.autograd.grad``)."""


@dataclass(slots=True, kw_only=True, eq=False)
class ForwardBypassed(Event):
    """The program called ``model.forward(x)`` with gradients enabled, which skips the model's hooks.

    Emitted once per line between two backward passes. Calls by the model's own methods and by libraries are left out.
    """

    model: Ref
    parameters: Refs
    hooks: tuple[str, ...]
    """Kinds of hooks that did not run: "forward pre-hook"."""
    also_called_normally: bool
    """Whether the model was also called normally before, directly or within another model."""


@dataclass(slots=True, kw_only=True, eq=False)
class DropoutWithoutTrainingFlag(Event):
    """The forward of a module called functional dropout without a ``training`` argument.

    Emitted at each such call, before the `ModelCalled` of the model. Calls under a condition are left out.
    """

    module: Ref
    training: bool
    """Whether the module is in train mode."""
    function: str
    """Name of the function: "dropout", "dropout1d", "dropout2d", "dropout3d"."""
    probability: float
    input_elements: int
    """Number of elements in the input of the dropout."""
    input_repeated: bool
    """Whether the same line got the same tensor in its previous call, as in Monte Carlo sampling."""


@dataclass(slots=True, kw_only=True, eq=False)
class UnregisteredModuleCalled(Event):
    """A module in train mode ran within a model's forward and received gradients, but is not registered in the model.

    Emitted once, for the outermost of nested modules.
    """

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_module",)
    module: Ref
    model: Ref
    parameters: Refs
    trainable: bool
    live_module: Any
    """LIVE: the module."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchNormSingleSample(Event):
    """A BatchNorm layer in train mode got a batch of one sample after a larger one; emitted once per layer."""

    module: Ref
    model: Ref
    values_per_channel: int
    """Number of values per channel from which the statistics are computed."""
    previous_batch_size: int = 0
    """Number of samples in the larger batch."""


@dataclass(slots=True, kw_only=True, eq=False)
class RecurrentLayerCalled(Event):
    """A recurrent layer with ``batch_first=False`` ran on a loader's batch; emitted once per shape."""

    module: Ref
    time_steps: int
    """Size of the first dimension of the layer's input."""
    sequences: int | None
    """Size of the second dimension of the layer's input; None = the layer got a single sequence."""
    loader: Ref
    """The loader of the latest batch."""
    input_from_loader: bool
    """Whether a tensor of the batch, the model's input and the layer's input all have the same first two dimensions."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchNormTrained(Event):
    """RARE. A model with BatchNorm layers that track statistics was called in training for the first time."""

    model: Ref


@dataclass(slots=True, kw_only=True, eq=False)
class HighBatchNormMomentum(Event):
    """A model with BatchNorm layers of momentum 0.9 to 1 was called in training for the first time."""

    module: Ref
    """The first of these layers."""
    model: Ref
    momentum: float
    layers: int
    """Number of these layers."""


@dataclass(slots=True, kw_only=True, eq=False)
class DominatingEpsilon(Event):
    """A model with BatchNorm layers of epsilon 0.1 or more was called in training for the first time."""

    module: Ref
    """The first of these layers."""
    model: Ref
    epsilon: float
    layers: int
    """Number of these layers."""


class FreezeAttribute(NamedTuple):
    """An attribute that was set to freeze or unfreeze parts of a model, and that no code reads."""

    attribute: str
    """Name of the attribute, such as "frozen"; "requires_grad" if it was set on a module, where it has no effect."""
    value: bool
    names: tuple[str, ...]
    """Names of the modules or parameters with the attribute; "" is the model itself."""
    on_modules: bool
    """Whether the attribute was set on modules, not on parameters."""
    parameters: Refs
    """Parameters that were meant: all require gradients though they should be frozen, or none though they should."""


@dataclass(slots=True, kw_only=True, eq=False)
class IneffectiveFreeze(Event):
    """RARE. Attributes that were meant to freeze parts of a model have no effect; emitted when this list changes."""

    model: Ref
    attributes: tuple[FreezeAttribute, ...]
    """The ineffective attributes; empty when those of an earlier event were removed."""


@dataclass(slots=True, kw_only=True, eq=False)
class ModeSet(Event):
    """RARE. The program called ``train()`` or ``eval()``; not emitted for the submodules of the module."""

    module: Ref
    training: bool
    changed: bool
    """Whether some submodule was in the other mode before."""
    parameters: Refs


# Losses, backward passes and gradients --------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class LossRecord:
    """One PyTorch loss, as found in the graph of a backward pass."""

    kind: str
    """Loss: "cross_entropy", "nll", "bce", "bce_with_logits", "mse", "l1", "smooth_l1", "huber", "kl_div", "ctc"."""
    reduction: str
    """Reduction of the loss: "mean", "sum", "none"."""
    shape: tuple[int, ...] | None
    """Shape of the loss's input."""
    divisor: float | None
    """Divisor of the mean: number of elements or of targets that count, or sum of their weights; None = unknown."""
    gradient_weight: float | None
    """The scalar gradient that the loss received: 1/K if the program divided it by K; None = not read."""
    input_operations: tuple[str, ...]
    """Operations that computed the loss's input, last one first, without views: ("softmax", "addmm")."""
    broadcast: tuple[tuple[int, ...], tuple[int, ...]] | None
    """Shapes of input and target before broadcasting; None = they were not broadcast."""
    ignore_index: int | None
    targets: Any
    """LIVE: the target tensor in `BackwardStarted`; None in other events, or if the graph has no reference to it."""
    unreadable_reason: str = ""
    """The reason why the targets cannot be read from the graph, and so not counted; "" = they can."""
    class_weights: bool = False
    """Whether the targets are weighted by their class."""
    location: CodePosition | None = None
    """The line that computed the loss; None = unknown."""
    normalised_over: tuple[int, int] | None = None
    """Dimension and size over which a log-softmax normalised wrongly; None = over the classes, or unknown."""


@dataclass(slots=True, kw_only=True, eq=False)
class LossArgumentsSwapped(Event):
    """RARE. A binary cross-entropy was called with a target that has a graph and an input that has none."""

    function: str
    """Name of the function: "binary_cross_entropy", "binary_cross_entropy_with_logits"."""
    input_is_binary: bool | None
    """Whether the input consists of zeros and ones; None = not read, since the tensor is on a GPU."""
    target_outside_unit_interval: bool | None
    """Whether some value of the target is outside of [0, 1]; None = not read."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardStarted(Event):
    """An outermost ``backward()`` starts."""

    leaf: bool
    """Whether the root itself is a leaf: ``requires_grad_(True)`` made it differentiable, and it has no graph."""
    retain_graph: bool
    create_graph: bool
    scaled: bool
    """Whether a GradScaler has multiplied the root."""
    losses: tuple[LossRecord, ...]
    """The losses in the graph; their ``gradient_weight`` is None."""
    loader: Ref | None
    """The loader of the latest batch."""
    batch: int
    """Number of batches that all loaders have returned; events with equal numbers belong to the same batch."""
    anomaly_mode: bool = False
    """Whether ``torch.autograd.detect_anomaly`` is on."""
    anomaly_at: CodePosition | None = None
    """Where anomaly detection was switched on, if that was traced."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardLosses(Event):
    """Follows a `BackwardStarted` whose losses were read from its graph; in equal windows only the first few are."""

    losses: tuple[LossRecord, ...]
    """The losses of that backward pass."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardEnded(Event):
    """An outermost ``backward()`` returned."""

    root_value: float | None
    """Value of a scalar root, divided by GradScaler's factor; None if reading it needs a GPU synchronisation."""
    losses: tuple[LossRecord, ...]
    """The losses in the graph, with their ``gradient_weight``."""
    reached_parameters: Refs
    """Parameters of known models and optimizers to whose gradient this backward pass contributed."""
    seconds: float
    loader: Ref | None
    """The loader of the latest batch when the backward pass started."""
    batch: int
    """Same as ``batch`` of the matching `BackwardStarted`."""
    graph_order: int | None = None
    """Sequence number of the root's operation: higher than those of all earlier operations in its thread."""


@dataclass(slots=True, kw_only=True, eq=False)
class IncompleteWindow(Event):
    """RARE. A loader ended within an accumulation window, before a step used the gradients accumulated in it."""

    loader: Ref
    batches: int
    """Number of batches in the loader's epoch."""
    leftover_backwards: int
    """Number of backward passes between the latest step and the loader's end."""
    window_backwards: int
    """Number of backward passes in each of the previous windows."""
    cleared: bool
    """Whether the gradients were cleared; otherwise they were added to those of the next window."""
    next_window_backwards: int
    """Number of backward passes in the next window, including the leftover ones; 0 if they were cleared."""


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsCleared(Event):
    """``zero_grad()`` of an optimizer or module discarded gradients that no step has used.

    Gradients that the program clears itself are detected at the next step.
    """

    unused: Refs
    """Parameters with a gradient contribution that no step has used."""


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsClipped(Event):
    """``clip_grad_norm_`` or ``clip_grad_value_`` was called."""

    kind: str
    """What was clipped: "norm", "value"."""
    limit: float
    measured: float | None
    """The norm, or the largest absolute value, before clipping; None if unknown."""
    parameters: Refs
    """Parameters that had a gradient."""
    already_used: Refs
    """Parameters whose gradient is unchanged since a step used it."""
    scaled: Refs
    """Parameters whose gradient is still multiplied by a GradScaler's factor."""
    only_measured: bool
    """Whether the limit is infinite, so that the norm is only measured."""
    generator_exhausted: bool = False
    """Whether the parameters were passed as a generator that was already exhausted."""


@dataclass(slots=True, kw_only=True, eq=False)
class LossScaled(Event):
    """``GradScaler.scale(loss)`` was called."""

    scaler: Ref
    enabled: bool
    scale: float | None
    autocast: str | None
    """Autocast type of the latest model call with gradients enabled; None = autocast was off."""
    dtype: str


@dataclass(slots=True, kw_only=True, eq=False)
class ScalerCreated(Event):
    """RARE. An enabled GradScaler was created."""

    scaler: Ref


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsUnscaled(Event):
    """The program called ``GradScaler.unscale_(optimizer)``."""

    scaler: Ref
    optimizer: Ref


# Optimizers and schedulers --------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class OptimizerCreated(Event):
    """RARE. An optimizer was created, or found for the first time."""

    optimizer: Ref
    kind: str
    parameters: Refs
    trainable: Refs
    stateful: bool
    """Whether the optimizer has state such as momentum or Adam's averages."""
    predecessors: tuple[Ref, ...]
    """Optimizers that have stepped some of the same parameters, whether or not they are still in memory."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepMissing(Event):
    """RARE. Several backward passes reached parameters that only one optimizer has, but it did not step them.

    The parameters have not changed. Emitted at the line of the latest backward pass, and again at the end of the watch.
    """

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("read_modules",)
    optimizer: Ref
    backwards: int
    called_by_user: bool
    """Whether the user's code called ``backward``, not a library."""
    watch_ended: bool
    read_modules: Callable[[bool], Mapping[str, ast.Module]]
    """LIVE: returns the syntax trees of the running files, and if True also of the files they import; empty if some
    code cannot be read, as in an interactive session. Cost: 10 ms for each long file, once."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepTaken(Event):
    """An optimizer stepped. ``update`` is the number of updates before this step."""

    optimizer: Ref
    learning_rates: tuple[float, ...]
    """Learning rate of each parameter group in this step; empty if one is a tensor on a GPU."""
    parameters: Refs
    """All parameters of the optimizer."""
    with_gradient: Refs
    """Parameters that had a gradient."""
    reused_gradients: Refs
    """Parameters to whose gradient a backward pass added after a step had used it (GRD001); exact."""
    reused_at: CodePosition | None
    """The line of the backward pass that added to the gradients in ``reused_gradients``."""
    backwards: int
    """Number of backward passes that reached its parameters since its previous step; 0 = it has no new gradients."""
    cleared_between: bool
    """Whether gradients were computed since its previous step, but all were cleared before this step."""
    cleared_at: CodePosition | None
    grad_norm: float | None
    """Joint L2 norm of the gradients at the step."""
    grad_norm_after_backward: float | None
    """Joint norm after the latest backward pass, without GradScaler's factor; read in windows of several of them."""
    zero_gradients: Refs
    """Parameters whose gradient is exactly zero; empty if gradients were not read."""
    nonfinite_gradients: Refs
    frozen_changed: Refs
    """Parameters with requires_grad off that this step changed."""
    frozen: Refs
    """Parameters of the optimizer with requires_grad off."""
    scaler: Ref | None
    """The GradScaler that called the step."""
    closure: bool
    seconds: float
    norm_parameters: tuple[Ref, ...] = ()
    """Parameters whose norm was read, in order."""
    parameter_norms: tuple[float, ...] = ()
    """L2 norm of the gradient of each of ``norm_parameters``; empty if reading it needs a GPU synchronisation."""
    gradients_replaced: bool = False
    """Whether the program has assigned other gradients since the latest backward pass."""
    underflowing_eps: float | None = None
    """An ``eps`` of a PyTorch optimizer that rounds to zero in the float16 of its parameters; None = there is none."""
    still_scaled: Refs = NO_REFS
    """Parameters whose gradient is unchanged since the backward pass of a scaled loss, and so multiplied by a scaler's
    factor, which the program has not read since."""
    already_used: Refs = NO_REFS
    """Parameters whose gradient is unchanged since a step of any optimizer used it."""
    already_used_at: CodePosition | None = None
    """The line of the step that used the gradients in ``already_used``."""
    loader: Ref | None = None
    """The loader of the batch in the latest backward pass."""
    batch: int = 0
    """Same as ``batch`` of the latest `BackwardStarted`."""


@dataclass(slots=True, kw_only=True, eq=False)
class SymmetricUnits(Event):
    """RARE. The units within each layer of an optimizer were compared; done once per optimizer, on the CPU only."""

    optimizer: Ref
    symmetric: tuple[tuple[Ref, int], ...]
    """Weights whose rows are all equal, and have equal gradients, with their number of rows. The following layer's
    weights and gradients are also equal for all of these units."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepSkipped(Event):
    """A GradScaler found infinities and skipped the step."""

    optimizer: Ref
    scaler: Ref


@dataclass(slots=True, kw_only=True, eq=False)
class SchedulerStepped(Event):
    """The program called ``scheduler.step()``; not emitted for the schedulers inside a SequentialLR."""

    scheduler: Ref
    kind: str
    """Class name of the scheduler: "CosineAnnealingLR"."""
    optimizer: Ref
    rates_before: tuple[float, ...]
    rates_after: tuple[float, ...]
    last_epoch: int
    """``last_epoch`` after the step: the number of steps so far."""
    planned_steps: int | None
    """Number of steps that the schedule is made for (T_max, total_steps, ...); None = it has no end."""
    optimizer_steps: int
    """Number of steps of the optimizer so far."""
    backwards: int
    """Number of backward passes so far."""
    steps_per_epoch: int | None = None
    """Argument ``steps_per_epoch`` of a OneCycleLR; None = not passed."""


@dataclass(slots=True, kw_only=True, eq=False)
class SchedulerNeverStepped(Event):
    """RARE. The watch ended, a scheduler was never stepped, and no line of the program could step it."""

    scheduler: Ref
    kind: str
    optimizer: Ref
    optimizer_steps: int
    """Number of steps of the optimizer since the scheduler was created."""
    created_backward_count: int
    """Number of backward passes before the scheduler was created."""


@dataclass(slots=True, kw_only=True, eq=False)
class IneffectiveOptimizerAttribute(Event):
    """RARE. The program set an attribute named like a setting on a PyTorch optimizer, which steps with another value.

    No file of the program reads the attribute, or sets the value in a parameter group.
    """

    optimizer: Ref
    attribute: str
    attribute_value: str
    """Value of the attribute, as text."""
    group_value: str
    """Value of the setting in the first parameter group, as text."""
    assigned_at: SourceLocation
    """The line that sets the attribute."""


# Graphs in memory, state, checkpoints and errors ----------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class GraphsAlive(Event):
    """RARE. Graphs of past updates are still in memory after garbage collection; emitted when their number grows."""

    count: int
    oldest_update: int
    """The update at which the oldest graph was made."""
    holders: tuple[str, ...]
    """Variables that hold the graphs, as far as found: "losses[*] (local of train, train.py)"."""
    stored_at: SourceLocation | None = None
    """The line that stores the graphs in these variables, if found in the source code."""
    parameter: str = ""
    """Name of a parameter whose current value has a graph back to its past values; "" = the graphs are of outputs."""


@dataclass(slots=True, kw_only=True, eq=False)
class GraphsRetained(Event):
    """RARE. A line always calls ``backward(retain_graph=True)``, but no graph was run backward a second time."""

    count: int
    """Number of graphs that were freed without a second backward pass."""


@dataclass(slots=True, kw_only=True, eq=False)
class StateDictCreated(Event):
    """RARE. The program called ``state_dict()`` of a model."""

    module: Ref
    state: Ref
    """Reference of the dictionary."""
    parameter: Ref | None = None
    """One of the module's parameters in the dictionary."""


@dataclass(slots=True, kw_only=True, eq=False)
class StateDictUsed(Event):
    """RARE. A state dictionary was loaded into a module, or saved to a file."""

    how: str
    """What was done with the dictionary: "loaded", "saved"."""
    state: Ref
    created_at: CodePosition | None
    """The line that created the dictionary."""
    created_update: int
    """Number of updates before the dictionary was created."""
    aliased: bool
    """Whether its tensors share memory with the module's, so that every later update has changed them."""
    target: Ref | None
    """The module that it was loaded into; None if it was saved."""
    module: Ref | None = None
    """The module that the dictionary was created from."""
    weights_changed: bool = True
    """Whether the module's weights have changed since the dictionary was created."""


@dataclass(slots=True, kw_only=True, eq=False)
class CheckpointRead(Event):
    """RARE. ``torch.load`` returned."""

    path: str
    file: Ref
    weights_only: bool | None
    holds_model: bool
    holds_optimizer: bool


@dataclass(slots=True, kw_only=True, eq=False)
class CheckpointWritten(Event):
    """RARE. ``torch.save`` was called."""

    path: str
    """Path of the file; "" = the file has no name."""
    holds_model: bool
    holds_optimizer: bool


class StateDictMatch(NamedTuple):
    """How the keys of a state dictionary match those of a model."""

    state_count: int
    """Number of keys in the state dictionary."""
    model_count: int
    """Number of keys of the model."""
    matched: int
    """Number of keys in both, which were loaded."""
    unexpected: str
    """A key that only the state dictionary has; "" if there is none, or if some keys matched."""
    missing: str
    """A key that only the model has; "" if there is none, or if some keys matched."""


@dataclass(slots=True, kw_only=True, eq=False)
class StateLoaded(Event):
    """RARE. The program called ``load_state_dict`` of a model, optimizer, scheduler or scaler."""

    target: Ref
    what: str
    """Kind of ``target``: "model", "optimizer", "scheduler", "scaler"."""
    file: Ref | None
    """The file that the state was read from, if any."""
    name_match: StateDictMatch | None = None
    """How the keys of a model loaded with ``strict=False`` match; None if all do."""


@dataclass(slots=True, kw_only=True, eq=False)
class ModelExported(Event):
    """RARE. The program traced or exported a module, and the result was saved to a file or passed to ONNX.

    The event's location is the line that traced or exported the module.
    """

    model: Ref
    how: str
    """Name of the function: "torch.jit.trace", "torch.export.export", "torch.onnx.export"."""
    dropout: bool
    """Whether a dropout layer with p > 0 was in train mode when the model was exported."""
    batchnorm: bool
    """Whether a BatchNorm layer with running statistics was in train mode when the model was exported."""


@dataclass(slots=True, kw_only=True, eq=False)
class NonFiniteValue(Event):
    """RARE. A loss, gradient or weight is NaN or infinite; emitted the first time, and occasionally later."""

    what: str
    """What is not finite: "loss", "gradient", "weight"."""
    value: str
    """The value: "nan", "inf", "-inf"."""
    module: str
    """The module that ran the operation: "tail (Tail)"; "" = not found, or outside of modules."""
    operation: str
    """The first operation with finite inputs and a non-finite result: "log"."""
    operation_location: CodePosition | None
    input_summary: str
    """The operation's inputs, in words: "min -3.1, max 0.0, 12 zeros"; "" = unknown."""
    parameters: Refs
    output_finite: bool = False
    """Whether the model's output was finite; if so, the operation's result did not reach it."""
    gradient_only: bool = False
    """Whether the operation's result is finite but its gradient is not."""


@dataclass(slots=True, kw_only=True, eq=False)
class ErrorRaised(Event):
    """RARE. An exception left the program, or a traced call."""

    error: BaseException = field(repr=False)


# Distributed training -------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class ModelReplicated(Event):
    """RARE. A model was wrapped in DistributedDataParallel, or an existing wrapper was called for the first time."""

    wrapper: Ref
    module: Ref
    """The wrapped model."""
    parameters: Refs
    """Parameters that the wrapper synchronises."""
    group_size: int
    """Number of processes in the wrapper's process group."""


@dataclass(slots=True, kw_only=True, eq=False)
class ReplicaStepped(Event):
    """An optimizer stepped parameters of a DistributedDataParallel model."""

    wrapper: Ref
    parameters: Refs
    """Synchronised parameters of the optimizer that had a gradient."""
    forwards: int
    """Number of calls of the wrapper with gradients enabled since the previous step."""
    collectives: int | None
    """Number of collectives that the group started since the first backward pass after that step; None = it does not
    count them, or no backward pass was traced."""


@dataclass(slots=True, kw_only=True, eq=False)
class RanksCompared(Event):
    """RARE. The parameters of one model on two ranks were compared after the same reduction and step."""

    wrapper: Ref
    compared_update: int
    """The update after which they were compared, in this process's count."""
    ranks: tuple[int, int]
    """Global ranks of this process and of the other one."""
    parameters: int
    """Number of compared parameters."""
    differing: tuple[tuple[str, float], ...]
    """Names of parameters that differ by more than rounding, with the relative difference; largest first."""
    last_equal_update: int | None
    """The latest update after which the two ranks were equal."""
    input_digest: tuple[float, ...] | None
    """A few numbers that identify this process's inputs before the compared update; None = those of one of the two
    ranks are unknown."""
    same_inputs_and_gradients: bool
    """Whether both ranks had equal inputs, and equal gradients before averaging; False if ``input_digest`` is None."""
    loader: Ref | None
    """The loader of this process's latest batch; None = no batch since the previous comparison."""
