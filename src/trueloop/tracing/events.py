"""The events of a training run, as detectors receive them. See also `Detector`.

RARE events are always emitted. The others are emitted during full tracing only: the first windows of the run, a few
updates after every change of structure (new optimizer, loader, mode), and a short burst now and then. A `TracingGap`
marks what was not traced in between. Within a burst nothing is missing.

``update`` counts steps of any optimizer, ``backward_count`` counts outermost calls of backward. Fields marked LIVE hold
the program's own objects, which must not be kept after ``observe``. A number that would need a device synchronisation
is None.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from trueloop.core.findings import CodePosition, SourceLocation


class Ref:
    """A reference to one object of the program for the length of the run; equal only to itself.

    Holding it does not keep the object alive.
    """

    __slots__ = ("__weakref__", "kind", "name")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        """Class name: "AdamW", "Parameter", "Net"."""
        self.name = name
        """Name for messages, refined as more is known: "0.weight", then "encoder.0.weight"."""

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"


Refs = frozenset[Ref]
NO_REFS: Refs = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class Event:
    """The base class of events. Not frozen, which would cost 3 us each, but constant once emitted."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ()
    """The fields that hold the program's own objects during dispatch, and None afterwards."""
    update: int = 0
    """Number of updates before it; set, as the next three fields, when it is emitted."""
    backward_count: int = 0
    """Number of backwards started before it."""
    time_s: float = 0.0
    """Time on the clock of ``time.perf_counter``."""
    overhead_s: float = 0.0
    """Timed tracing overhead until then, in seconds."""
    location: CodePosition | None = None
    """The user's line that caused it; None if no user line is on the stack."""


@dataclass(slots=True, kw_only=True, eq=False)
class TracingGap(Event):
    """RARE. Updates since the previous event were not fully traced; ``update`` and ``backward_count`` have moved on."""

    updates: int


@dataclass(slots=True, kw_only=True, eq=False)
class WatchEnded(Event):
    """RARE. The last event."""


# Data -----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class LoaderStarted(Event):
    """RARE. ``iter`` was called on a DataLoader."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_loader",)
    loader: Ref
    epoch: int
    """Number of earlier starts."""
    sampler: str
    """Class name of the sampler: "RandomSampler", "SequentialSampler", "DistributedSampler", ..."""
    shuffles: bool | None
    """None if the sampler's class is not PyTorch's own."""
    batch_size: int | None
    workers: int
    drop_last: bool
    live_loader: Any
    """LIVE: the DataLoader."""
    dataset: Ref | None = None
    """None if it cannot be weakly referenced, such as a list."""
    made_at: CodePosition | None = None
    """Where the DataLoader was created."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchLoaded(Event):
    """A DataLoader returned a batch. It has no location, since no detector needs it."""

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
    """RARE. A DataLoader has no more batches: another was requested, or the program turned to another loader.

    It is not emitted for a loader that was left by ``break`` before its last batch.
    """

    loader: Ref
    epoch: int
    batches: int
    pending_backwards: int
    """Number of backwards since the latest step of any optimizer."""
    batches_with_backward: int
    """Number of backwards during this epoch of the loader."""
    wait_s: float = 0.0
    """Wait for its batches except the first, which may include the start of workers."""
    seconds: float = 0.0
    """Time from its first batch to its end."""
    workers: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class SampleOrderRecorded(Event):
    """RARE. The order of samples in an epoch of a shuffling loader, as far as needed to compare it with others."""

    loader: Ref
    dataset: Ref | None
    epoch: int
    digest: int
    """Hash of the first ``count`` indices; equal = the same samples in the same order."""
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
    """The sampler's epoch, seed, number of processes, and rank, which determine the order."""
    made_at: CodePosition | None


@dataclass(slots=True, kw_only=True, eq=False)
class SortedLabels(Event):
    """RARE. An integer column was sorted into blocks over a whole epoch: no value returned after its block."""

    loader: Ref
    epoch: int
    column: str
    """Key or index of the column in a batch: "1", "label"."""
    distinct_values: int
    """Number of distinct values."""
    smallest_block: int
    """Number of samples in the smallest block."""
    samples: int
    batch_size: int
    """Number of samples in the first batch."""
    looks_like_time_series: bool
    """The samples look like a time series: they overlap, or some feature is monotonic."""


@dataclass(slots=True, kw_only=True, eq=False)
class LoadersOverlap(Event):
    """RARE. Two loaders can return some of the same samples; emitted at the first start of the later one."""

    one: Ref
    other: Ref
    """The loader that was started now."""
    matched_by: str
    """"index": the same samples of one dataset; "content": equal samples of two."""
    shared: int
    """Number of samples of ``other`` that ``one`` can return too."""
    one_size: int
    other_size: int
    duplicates: int
    """If matched by content: number of duplicate samples within ``one`` and within ``other``."""
    remainder: Ref | None
    """A Subset with exactly the samples that ``one`` has and ``other`` has not."""


@dataclass(slots=True, kw_only=True, eq=False)
class JointlyStandardised(Event):
    """RARE. The joined inputs of several loaders have exactly mean 0 and deviation 1 in every feature."""

    loaders: tuple[Ref, ...]
    mean_offsets: tuple[float, ...]
    """For each loader: root mean square, over the features, of the mean of its own samples."""
    samples: int


@dataclass(slots=True, kw_only=True, eq=False)
class SeedRepeated(Event):
    """RARE. A generator was seeded with the same number again and again while a loader fetched different samples."""

    loader: Ref
    generator: str
    """"torch", "random", "numpy"."""
    seed: int
    times: int
    batches: int


@dataclass(slots=True, kw_only=True, eq=False)
class GeneratorCopied(Event):
    """RARE. A dataset's own random generator, used for each sample, is copied into workers in the same state."""

    loader: Ref
    generator: str
    """Attribute path: "dataset.rng"."""
    kind: str
    used_at: CodePosition
    """The function that uses it."""
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
    """Number of samples in that batch."""
    made_at: CodePosition | None


# Model calls ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class ModelCalled(Event):
    """The forward of an outermost module with parameters returned."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_module", "output")
    model: Ref
    training: bool
    dropout_active: bool
    """It has a dropout layer with p > 0 in train mode, or applied functional dropout because of train mode."""
    batchnorm_active: bool
    """It has a batch normalisation with running statistics in train mode."""
    all_eval: bool
    """All of its modules are in eval mode."""
    grad_mode: bool
    inference_mode: bool
    has_graph: bool
    """Its output depends on a parameter that requires a gradient."""
    autocast: str | None
    """Autocast type: "float16", "bfloat16"; None = off."""
    recomputed: bool
    """The call is a recomputation of activation checkpointing, within a backward."""
    loader: Ref | None
    """The loader of the latest batch; None = no batch since the previous forward of this model."""
    parameters: Refs
    """All of its parameters."""
    seconds: float
    live_module: Any
    """LIVE: the module."""
    output: Any
    """LIVE: the output."""
    autocast_parameter: tuple[Ref, int] | None = None
    """A parameter near the end of its graph that autocast has cast, and the sequence number of the cast; None = no
    autocast, or none found."""
    previous_graph_used: bool = False
    """The graph of this model's previous call, in eval mode, was run backward, possibly by ``torch.autograd.grad``."""


@dataclass(slots=True, kw_only=True, eq=False)
class ForwardBypassed(Event):
    """``model.forward(x)`` was called by the program with gradients enabled, though the model has hooks.

    Emitted once per line between two backwards. Calls by the model's own methods and by libraries are left out.
    """

    model: Ref
    parameters: Refs
    hooks: tuple[str, ...]
    """Kinds of hooks that did not run: "forward pre-hook"."""
    also_called_normally: bool
    """The model was also called normally before, directly or within another model."""


@dataclass(slots=True, kw_only=True, eq=False)
class DropoutWithoutTrainingFlag(Event):
    """Functional dropout was applied within the forward of a module without a ``training`` argument.

    Emitted each time, before the `ModelCalled` of the model; not for conditional calls.
    """

    module: Ref
    training: bool
    """The module is in train mode."""
    function: str
    """"dropout", "dropout1d", "dropout2d", "dropout3d"."""
    probability: float
    values: int
    """Number of values in its input."""
    input_repeated: bool
    """The same tensor went through the same line just before, as in Monte Carlo sampling."""


@dataclass(slots=True, kw_only=True, eq=False)
class UnregisteredModuleCalled(Event):
    """A module in train mode that is not registered in the model ran within its forward, and received gradients.

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
    """A batch normalisation in train mode got a batch of one sample after a larger one; emitted once per module."""

    module: Ref
    model: Ref
    values: int
    """Number of values per channel in the statistics."""
    previous_batch_size: int = 0
    """Number of samples in the larger batch."""


@dataclass(slots=True, kw_only=True, eq=False)
class RecurrentLayerCalled(Event):
    """A recurrent layer with ``batch_first=False`` ran on a loader's batch; emitted once per shape."""

    module: Ref
    time_steps: int
    """Size of the first dimension."""
    sequences: int | None
    """Size of the second dimension; None = the layer got a single sequence."""
    loader: Ref
    """The loader of the latest batch."""
    input_from_loader: bool
    """A tensor of that batch had these first dimensions, and so had the model's and the layer's input."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchNormTrained(Event):
    """RARE. A model with batch normalisations that track statistics was called in training for the first time."""

    model: Ref


@dataclass(slots=True, kw_only=True, eq=False)
class HighBatchNormMomentum(Event):
    """A model with batch normalisations of momentum 0.9 to 1 was called in training for the first time."""

    module: Ref
    """The first such layer."""
    model: Ref
    momentum: float
    layers: int


@dataclass(slots=True, kw_only=True, eq=False)
class DominatingEpsilon(Event):
    """A model with batch normalisations of epsilon 0.1 or more was called in training for the first time."""

    module: Ref
    """The first such layer."""
    model: Ref
    epsilon: float
    layers: int


class FreezeAttribute(NamedTuple):
    """An attribute that was set to freeze or unfreeze parts of a model, and that no code reads."""

    attribute: str
    """Name of the attribute; "requires_grad" only on modules."""
    value: bool
    names: tuple[str, ...]
    """Names of the modules or parameters that have it, "" for the model itself."""
    on_modules: bool
    """It is set on modules, not on parameters."""
    parameters: Refs
    """The parameters it was meant for; all require gradients although it is False, or none although it is True."""


@dataclass(slots=True, kw_only=True, eq=False)
class IneffectiveFreeze(Event):
    """RARE. The ineffective attributes of a model, at its first training call with a new optimizer and at changes."""

    model: Ref
    attributes: tuple[FreezeAttribute, ...]
    """The attributes; empty when earlier ones are gone."""


@dataclass(slots=True, kw_only=True, eq=False)
class ModeSet(Event):
    """RARE. ``train()`` or ``eval()`` was called by the program; not emitted for its children."""

    module: Ref
    training: bool
    changed: bool
    """Some submodule was in the other mode."""
    parameters: Refs


# Losses, backwards and gradients --------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class LossRecord:
    """One PyTorch loss, as found in the graph of a backward."""

    kind: str
    """"cross_entropy", "nll", "bce", "bce_with_logits", "mse", "l1", "smooth_l1", "huber", "kl_div", "ctc"."""
    reduction: str
    """"mean", "sum", "none"."""
    shape: tuple[int, ...] | None
    """Shape of its input."""
    count: float | None
    """Divisor of its mean: number of elements, or of targets not ignored, or sum of their weights; None = unknown."""
    gradient_weight: float | None
    """The scalar gradient it received in this backward: 1/K if the loss was divided by K. None = not read."""
    input_operations: tuple[str, ...]
    """Operations before its input, nearest first, without views: ("softmax", "addmm")."""
    broadcast: tuple[tuple[int, ...], tuple[int, ...]] | None
    """Shapes of input and target before broadcasting; None = they were not broadcast."""
    ignore_index: int | None
    targets: Any
    """LIVE: the target tensor, only when the backward starts; None if the graph does not hold it."""
    unreadable_reason: str = ""
    """The reason why targets, and the number of targets not ignored, cannot be read from the graph; "" = they can."""
    class_weights: bool = False
    """Its targets are weighted by their class."""
    location: CodePosition | None = None
    """The line that computed it; None = unknown."""
    normalised_over: tuple[int, int] | None = None
    """Dimension and size of a log-softmax that is not over the classes; None = over the classes, or unknown."""


@dataclass(slots=True, kw_only=True, eq=False)
class LossArgumentsSwapped(Event):
    """RARE. The target of a binary cross-entropy has a graph, and its input has none."""

    function: str
    """"binary_cross_entropy", "binary_cross_entropy_with_logits"."""
    input_is_binary: bool | None
    """Its input consists of zeros and ones; None = not read, on a device."""
    target_outside_unit_interval: bool | None
    """Its target is outside of [0, 1]."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardStarted(Event):
    """An outermost ``backward()`` starts."""

    leaf: bool
    """The root itself is a leaf: ``requires_grad_(True)`` made it differentiable, and it has no graph."""
    retain_graph: bool
    create_graph: bool
    scaled: bool
    """The root was multiplied by a GradScaler."""
    losses: tuple[LossRecord, ...]
    """The losses, with ``gradient_weight`` None."""
    loader: Ref | None
    """The loader of the latest batch."""
    batch: int
    """Number of batches that all loaders have returned; equal = the same batch."""
    anomaly_mode: bool = False
    """``torch.autograd.detect_anomaly`` is on."""
    anomaly_at: CodePosition | None = None
    """Where anomaly detection was switched on, if that was traced."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardLosses(Event):
    """Follows `BackwardStarted` if its losses were newly read, which equal windows do only a few times."""

    losses: tuple[LossRecord, ...]
    """The losses of that backward."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardEnded(Event):
    """An outermost ``backward()`` returned."""

    root_value: float | None
    """Value of a scalar root without GradScaler's factor; None if it needs a device synchronisation."""
    losses: tuple[LossRecord, ...]
    """The losses, with ``gradient_weight``."""
    reached_parameters: Refs
    """Parameters of all known models and optimizers whose gradient it created or added to."""
    seconds: float
    loader: Ref | None
    """The loader of the latest batch when it started."""
    batch: int
    """The batch number of its `BackwardStarted`."""
    graph_order: int | None = None
    """Sequence number of the root's operation: higher than those of all earlier operations in its thread."""


@dataclass(slots=True, kw_only=True, eq=False)
class IncompleteWindow(Event):
    """RARE. A loader ended within an accumulation window, and no step has used the gradients accumulated so far."""

    loader: Ref
    batches: int
    """Number of batches in the loader's epoch."""
    leftover_backwards: int
    """Number of backwards between the latest step and the loader's end."""
    window_backwards: int
    """Number of backwards in each of the previous windows."""
    cleared: bool
    """The gradients were cleared; otherwise they were added to the next window."""
    next_window_backwards: int
    """Number of backwards in the next window, including the leftover ones; 0 if they were cleared."""


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsCleared(Event):
    """``zero_grad()`` of an optimizer or module discarded gradients that no step has used; other calls emit nothing.

    Gradients that are cleared by hand are detected at the next step only.
    """

    unused: Refs
    """Parameters with a gradient contribution that no step has used."""


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsClipped(Event):
    """``clip_grad_norm_`` or ``clip_grad_value_`` was called."""

    kind: str
    """"norm", "value"."""
    limit: float
    measured: float | None
    parameters: Refs
    """Parameters that had a gradient."""
    already_used: Refs
    """Parameters whose gradient is unchanged since a step used it."""
    scaled: Refs
    """Parameters whose gradient is still multiplied by a GradScaler's factor."""
    only_measured: bool
    """The limit is infinite, to measure the norm only."""
    generator_exhausted: bool = False
    """The parameters were passed as a generator that was already exhausted."""


@dataclass(slots=True, kw_only=True, eq=False)
class LossScaled(Event):
    """``GradScaler.scale(loss)`` was called."""

    scaler: Ref
    enabled: bool
    scale: float | None
    autocast: str | None
    """The autocast type of the newest model call that made a graph."""
    dtype: str


@dataclass(slots=True, kw_only=True, eq=False)
class ScalerCreated(Event):
    """RARE. An enabled GradScaler was created."""

    scaler: Ref


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsUnscaled(Event):
    """``GradScaler.unscale_(optimizer)`` was called by the program."""

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
    """It has state such as momentum or Adam's averages."""
    predecessors: tuple[Ref, ...]
    """Optimizers, existing or not, that have stepped some of the same parameters."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepMissing(Event):
    """RARE. Several backwards reached parameters of one optimizer only; it has not stepped, and they have not changed.

    Emitted at the line of the latest backward, and again if it still holds when the watch ends.
    """

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("read_modules",)
    optimizer: Ref
    backwards: int
    called_by_user: bool
    """The user's code called backward, not a library."""
    watch_ended: bool
    read_modules: Callable[[bool], Mapping[str, ast.Module]]
    """LIVE: parses the running files, and if True also what they import; empty if some code cannot be read, or is still
    to be written. Cost: 10 ms for each long file, once."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepTaken(Event):
    """An optimizer stepped. ``update`` is the count before the step."""

    optimizer: Ref
    learning_rates: tuple[float, ...]
    """Learning rate of each group in this step; empty if one is a tensor on a device."""
    parameters: Refs
    """All parameters of the optimizer."""
    with_gradient: Refs
    """Parameters that had a gradient."""
    reused_gradients: Refs
    """Parameters whose gradient a backward added to after a step had used it (GRD001); exact."""
    reused_at: CodePosition | None
    """The backward that added to it."""
    backwards: int
    """Number of backwards since its previous step that reached its parameters; 0 = it uses old gradients, or none."""
    cleared_between: bool
    """Backwards reached its parameters since its previous step, but no gradient is left: cleared before the step."""
    cleared_at: CodePosition | None
    grad_norm: float | None
    """Joint L2 norm of the gradients at the step."""
    grad_norm_after_backward: float | None
    """Joint norm after the latest backward, without GradScaler's factor; read in windows of several backwards."""
    zero_gradients: Refs
    """Parameters whose gradient is exactly zero; empty if it was not read."""
    nonfinite_gradients: Refs
    frozen_changed: Refs
    """Parameters with requires_grad off that this step changed."""
    frozen: Refs
    """Parameters with requires_grad off in its groups."""
    scaler: Ref | None
    """The GradScaler that called the step."""
    closure: bool
    seconds: float
    norm_parameters: tuple[Ref, ...] = ()
    """Parameters whose norm was read, in order."""
    parameter_norms: tuple[float, ...] = ()
    """L2 norm of each gradient in ``norm_parameters``; empty if it needs a device synchronisation."""
    gradients_replaced: bool = False
    """The gradients are other objects than after the latest backward: the program assigned them."""
    underflowing_eps: float | None = None
    """An ``eps`` of a PyTorch optimizer that rounds to zero in the parameters' float16; None = none."""
    still_scaled: Refs = NO_REFS
    """Parameters whose gradient is unchanged since the backward of a scaled loss, so still multiplied by a GradScaler's
    factor, which the program has not read since."""
    already_used: Refs = NO_REFS
    """Parameters whose gradient is unchanged since a step of any optimizer used it."""
    already_used_at: CodePosition | None = None
    """The step that used them."""
    loader: Ref | None = None
    """The loader of the latest backward's batch."""
    batch: int = 0
    """Number of that batch."""


@dataclass(slots=True, kw_only=True, eq=False)
class SymmetricUnits(Event):
    """RARE. The units of all layers that an optimizer trains were compared, once per optimizer, on the CPU only."""

    optimizer: Ref
    symmetric: tuple[tuple[Ref, int], ...]
    """Trained weights with their number of rows: all rows are equal, and so are their gradients, and the weights and
    gradients of a following layer with as many inputs."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepSkipped(Event):
    """A GradScaler found infinities and skipped the step."""

    optimizer: Ref
    scaler: Ref


@dataclass(slots=True, kw_only=True, eq=False)
class SchedulerStepped(Event):
    """``scheduler.step()`` was called by the program; not emitted for the schedulers inside a SequentialLR."""

    scheduler: Ref
    kind: str
    """Class name: "CosineAnnealingLR"."""
    optimizer: Ref
    rates_before: tuple[float, ...]
    rates_after: tuple[float, ...]
    last_epoch: int
    """``last_epoch`` after the step: the number of steps so far."""
    planned_steps: int | None
    """Number of steps it was created for (T_max, total_steps, ...); None = no end."""
    optimizer_steps: int
    """Number of steps of its optimizer so far."""
    backwards: int
    """Number of backwards so far."""
    steps_per_epoch: int | None = None
    """``steps_per_epoch`` of a OneCycleLR; None = not given."""


@dataclass(slots=True, kw_only=True, eq=False)
class SchedulerNeverStepped(Event):
    """RARE. At the end of the watch a scheduler was never stepped, and no line of the program could step it."""

    scheduler: Ref
    kind: str
    optimizer: Ref
    optimizer_steps: int
    """Number of steps of its optimizer since the scheduler was created."""
    created_backward_count: int
    """Number of backwards before the scheduler was created."""


@dataclass(slots=True, kw_only=True, eq=False)
class IneffectiveOptimizerAttribute(Event):
    """RARE. A PyTorch optimizer got an attribute named like a setting, and steps with another value of it.

    No file of the program reads the attribute, or sets the setting in a parameter group.
    """

    optimizer: Ref
    attribute: str
    attribute_value: str
    """Value of the attribute, as text."""
    group_value: str
    """Value in the first parameter group, as text."""
    assigned_at: SourceLocation
    """The line that sets the attribute."""


# Graphs in memory, state, checkpoints and errors ----------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class GraphsAlive(Event):
    """RARE. Graphs of past updates are still in memory after garbage collection; emitted when their number grew."""

    count: int
    oldest_update: int
    """The update at which the oldest graph was made."""
    holders: tuple[str, ...]
    """Variables that hold the graphs, as far as found: "losses[*] (local of train, train.py)"."""
    stored_at: SourceLocation | None = None
    """The line that stores them there, if found in the source."""
    parameter: str = ""
    """The parameter that is computed from its past values; "" = the graphs are those of outputs."""


@dataclass(slots=True, kw_only=True, eq=False)
class GraphsRetained(Event):
    """RARE. A line retains the graph of every backward, and none of the freed ones was run backward again."""

    count: int
    """Number of graphs that were freed unused."""


@dataclass(slots=True, kw_only=True, eq=False)
class StateDictCreated(Event):
    """RARE. ``state_dict()`` of a model was called by the program."""

    module: Ref
    state: Ref
    """Reference of the dictionary."""
    parameter: Ref | None = None
    """One of the module's parameters in the dictionary."""


@dataclass(slots=True, kw_only=True, eq=False)
class StateDictUsed(Event):
    """RARE. A state dictionary created before was loaded into a module or saved to a file."""

    how: str
    """"loaded", "saved"."""
    state: Ref
    captured_at: CodePosition | None
    captured_update: int
    aliased: bool
    """Its tensors share memory with the module's, so every update since has changed them."""
    target: Ref | None
    module: Ref | None = None
    """The module it was created from; equal to ``target`` if it is loaded back."""
    weights_changed: bool = True
    """The weights have changed since it was created."""


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
    """"" = not a file with a name."""
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
    """A key that only the state dictionary has; "" = none, or some keys matched."""
    missing: str
    """A key that only the model has; "" = none, or some keys matched."""


@dataclass(slots=True, kw_only=True, eq=False)
class StateLoaded(Event):
    """RARE. ``load_state_dict`` of a model, optimizer, scheduler or scaler was called by the program."""

    target: Ref
    what: str
    """"model", "optimizer", "scheduler", "scaler"."""
    file: Ref | None
    """The file it was read from."""
    name_match: StateDictMatch | None = None
    """Key match of a model loaded with ``strict=False``; None if all keys match."""


@dataclass(slots=True, kw_only=True, eq=False)
class ModelExported(Event):
    """RARE. A module was traced or exported by the program, and the result saved to a file or passed to ONNX.

    Its location is the line that traced it.
    """

    model: Ref
    how: str
    """"torch.jit.trace", "torch.export.export", "torch.onnx.export"."""
    dropout: bool
    """It had dropout with p > 0 in train mode when it was recorded."""
    batchnorm: bool
    """It had a batch normalisation with running statistics in train mode when it was recorded."""


@dataclass(slots=True, kw_only=True, eq=False)
class NonFiniteValue(Event):
    """RARE. A loss, gradient or weight became NaN or infinite; emitted the first time and then now and then."""

    what: str
    """"loss", "gradient", "weight"."""
    value: str
    """"nan", "inf", "-inf"."""
    module: str
    """The module of the operation: "tail (Tail)"; "" = not found, or outside of modules."""
    operation: str
    """The first operation with finite inputs and a non-finite result: "log"."""
    operation_location: CodePosition | None
    input_summary: str
    """Its inputs, in words: "min -3.1, max 0.0, 12 zeros"; "" = unknown."""
    parameters: Refs
    output_finite: bool = False
    """The model's output was finite: the operation's result, if any, did not reach it."""
    gradient_only: bool = False
    """The operation's result is finite, and its gradient is not."""


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
    """Number of processes in its group."""


@dataclass(slots=True, kw_only=True, eq=False)
class ReplicaStepped(Event):
    """An optimizer stepped parameters of a DistributedDataParallel model."""

    wrapper: Ref
    parameters: Refs
    """Synchronised parameters that the optimizer holds and that had a gradient."""
    forwards: int
    """Number of calls of the wrapper with gradients enabled since the previous step."""
    collectives: int | None
    """Number of collectives that its group started since the first backward after that step; None = the group does not
    count them, or no backward was traced."""


@dataclass(slots=True, kw_only=True, eq=False)
class RanksCompared(Event):
    """RARE. The parameters of one model on two ranks were compared after the same reduction and step."""

    wrapper: Ref
    compared_update: int
    """The update after which they were compared, in this process's count."""
    ranks: tuple[int, int]
    """Global ranks of this process and the other one."""
    parameters: int
    """Number of compared parameters."""
    differing: tuple[tuple[str, float], ...]
    """Names of parameters that differ by more than rounding, with the relative difference; largest first."""
    last_equal_update: int | None
    """The latest update after which the two ranks were equal."""
    input_digest: tuple[float, ...] | None
    """A few numbers that identify this process's inputs in that round; None = the inputs of one of the ranks are
    unknown."""
    same_inputs_and_gradients: bool
    """Both ranks had equal inputs, and equal gradients before averaging; False if ``input_digest`` is None."""
    loader: Ref | None
    """The loader of this process's latest batch; None = none since the previous comparison."""
