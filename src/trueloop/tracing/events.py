"""The events of a training run, as detectors receive them. See also `Detector`.

RARE events are always emitted. The others are emitted during full tracing only: the first windows of the run, a few
updates after every change of structure (new optimizer, loader, mode), and short bursts later. A `TracingGap`
stands for the updates that were not traced. Within a burst no event is missing.

``update`` counts the steps of all optimizers, ``backward_count`` the outermost calls of ``backward``. LIVE fields hold
the program's own objects, which must not be stored after ``observe``. A number that would need a GPU synchronisation
is None.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple

from trueloop.core.findings import CodePosition, SourceLocation


class Ref:
    """Identifies one object of the program throughout the run; a reference is equal only to itself.

    A reference does not keep its object in memory.
    """

    __slots__ = ("__weakref__", "kind", "name", "registered_at")

    def __init__(self, kind: str, name: str, registered_at: tuple[CodePosition, ...] = ()) -> None:
        self.kind = kind
        """Class name of the object: "AdamW", "Parameter", "Net"."""
        self.name = name
        """Name of the object in messages, refined as more is known: "0.weight", then "encoder.0.weight"."""
        self.registered_at = registered_at
        """For a parameter: the user's lines on the stack when its module got it, innermost first; () = not traced."""

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"


Refs = frozenset[Ref]
NO_REFS: Refs = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class Event:
    """The base class of events. Events are not frozen, which would cost 3 us each, but never change once emitted."""

    HANDLER: ClassVar[str] = ""
    """Name of the method by which detectors and trackers receive the event: "on_step_taken" for `StepTaken`."""
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

    def __init_subclass__(cls) -> None:
        cls.HANDLER = "on" + re.sub("[A-Z]", lambda capital: "_" + capital[0].lower(), cls.__name__)
        _BY_HANDLER[cls.HANDLER] = cls


_BY_HANDLER: Final[dict[str, type[Event]]] = {}


@cache
def handlers(receiver: type) -> Mapping[type[Event], str]:
    """Return the event types that a detector or tracker receives, with the names of their methods.

    Raises:
        TypeError: a method ``on_...`` is not named after an event.
    """
    names = [name for name in dir(receiver) if name.startswith("on_")]
    if unknown := [name for name in names if name not in _BY_HANDLER]:
        raise TypeError(f"{receiver.__qualname__}.{unknown[0]} is not named after an event of trueloop")
    return {_BY_HANDLER[name]: name for name in names}


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
    needs_batches: set[object]
    """Detectors that need all batches of this epoch, also in sampled tracing; each adds itself, and removes itself."""
    dataset: Ref | None = None
    """The dataset; None if it cannot be weakly referenced, such as a list."""
    made_at: CodePosition | None = None
    """Where the DataLoader was created."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchLoaded(Event):
    """A DataLoader returned a batch; RARE as long as some detector needs all batches. The event has no location."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("batch",)
    loader: Ref
    epoch: int
    index: int
    """Index of the batch within its epoch."""
    wait_s: float
    batch: Any
    """LIVE: the batch."""
    needs_batches: set[object]
    """Same as ``needs_batches`` of the matching `LoaderStarted`."""


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
class SeedSet(Event):
    """RARE. A global random generator was seeded: PyTorch's outside of loaders, or any while a batch is loaded.

    While batches of a loader are loaded, only the 1st, 2nd, 4th, 8th ... seed is emitted, as long as all are equal.
    """

    generator: str
    """Library of the generator: "torch", "random", "numpy"."""
    seed: Any
    loader: Ref | None
    """The loader whose batch is being loaded; None = no batch is being loaded."""
    times: int = 1
    """Number of times that this seed was set while batches of the loader were loaded."""
    batches: int = 0
    """Number of batches of the loader during which it was set."""


# Model calls ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class ModelCalled(Event):
    """The forward of a module with parameters returned; calls inside another module's forward are left out."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_module", "output", "inputs")
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
    previous_graph_used: bool = False
    """Whether the graph of the model's previous call in eval mode was run backward (or by ``torch.autograd.grad``)."""
    root_only_eval: bool = False
    """Whether only the model itself is in eval mode, but all of its layers are in train mode."""
    eval_graphs_alive: int = 0
    """Number of earlier calls of the model in eval mode whose graphs are still in memory."""
    eval_graphs_used: Callable[[], bool] = bool
    """Returns, also later, whether the graph of any call of the model in eval mode was run backward."""
    inputs: Any = None
    """LIVE: the first tensor among the arguments; None if there is none."""
    input_digests: Any = None
    """Used by `row_digests`."""
    input_values: tuple[float, ...] | None = None
    """Used by `first_inputs`."""


@dataclass(slots=True, kw_only=True, eq=False)
class LayerCalled(Event):
    """A BatchNorm layer in train mode or a recurrent layer is about to run within a model.

    Emitted if the shape of its input or the loader of the latest batch is not that of its previous call.
    """

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("model_arguments",)
    layer: Ref
    model: Ref
    shape: tuple[int, ...]
    """Shape of the layer's input."""
    batch_first: bool | None
    """Setting of a recurrent layer; None = the layer is not recurrent."""
    loader: Ref | None
    """The loader of the latest batch."""
    model_arguments: Any
    """LIVE: the positional arguments of the model."""


@dataclass(slots=True, kw_only=True, eq=False)
class ModeSet(Event):
    """RARE. The program called ``train()`` or ``eval()``; not emitted for the submodules of the module."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_module",)
    module: Ref
    training: bool
    changed: bool
    """Whether some submodule was in the other mode before."""
    parameters: Refs
    live_module: Any
    """LIVE: the module."""


class TargetSeen(NamedTuple):
    """A model whose output at a position depends on the target of that position, which is in its input."""

    location: CodePosition | None
    """The operation that lets later positions through; None = not found."""
    operation: str
    change: float
    """Mean change of the output at ``position`` when the input after it changes, relative to the output's spread."""
    future: float
    """Share of the positions up to ``position`` whose output changes."""
    position: int
    steps: int
    """Number of positions of a sequence."""
    shifted: bool = True
    """Whether the targets are the input shifted by one; otherwise they are the input itself, and the model is causal.
    """


RECURRENT: Final = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions that recurrent layers call."""


class SamplesMixed(NamedTuple):
    """A model whose output for a sample depends on the other samples of the batch."""

    location: CodePosition | None
    """The operation that mixes samples; None = not found."""
    operation: str
    """Name of its function: "lstm", "softmax"; "" = not found."""
    layer: str
    """Name and class of the module that calls it: "2 (Softmax)"; "" = the model itself."""
    shape: tuple[int, ...]
    """Shape of its input."""
    rows: int
    """Number of samples in the batch."""
    kept: int
    """Number of samples that kept their values."""
    affected: int
    """Number of these whose output changes when the other samples change."""

    @property
    def is_recurrent(self) -> bool:
        """Whether a recurrent layer mixes them."""
        return self.operation in RECURRENT

    def __str__(self) -> str:
        return (
            f"When {self.rows - self.kept} of {self.rows} samples get other values, the outputs of {self.affected} of "
            f"the {self.kept} other samples change too."
        )


class PaddingReached(NamedTuple):
    """A model whose output for a sample depends on the padding behind it."""

    location: CodePosition | None
    """The operation that reads the padding; None = not found."""
    operation: str
    padding: float
    """The value with which short samples are padded."""
    rows: int
    """Number of short samples that were compared."""
    affected: float
    """Share of them whose output changes when padding is removed."""
    change: float
    """Median change of their outputs, relative to the spread; that of the samples left without padding if larger."""
    flipped: int
    """Number of them with another predicted class."""
    broken: int
    """Number of them whose output is not finite without padding, since attention reads nothing but padding."""
    lengths: tuple[int, int]
    """Length of the shortest of them, and of the batch."""
    per_position: bool
    """Whether the model has an output for each position."""
    is_declared: bool
    """Whether the model is given the lengths or a mask of the padding."""
    length_varies: bool
    """Whether batches of other lengths were seen."""


class ExchangedDimensions(NamedTuple):
    """A ``view`` or ``reshape`` to the shape of a transposed tensor, which leaves the numbers in their order."""

    location: CodePosition | None
    operation: str
    """Name of the function; "" = unknown."""
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: int
    """Size of the dimension that seems to move to another place."""


@dataclass(slots=True, kw_only=True, eq=False)
class InformationFlowProbed(Event):
    """RARE. A model call was repeated with other values, to see on which inputs its output depends."""

    model: Ref
    called_at: CodePosition | None
    """The call of the model."""
    causal: bool
    """Whether it was judged if a position sees its target."""
    target_seen: TargetSeen | None
    batch: bool
    """Whether it was judged if samples are mixed."""
    mixed: SamplesMixed | None
    padded: bool
    """Whether it was judged if padding is read."""
    padding: PaddingReached | None
    exchanged: tuple[ExchangedDimensions, ...] = ()
    """Calls within the model and before the loss; empty where samples are mixed."""
    input_ignored: bool = False
    """Whether no output changed at all when half of the samples got the values of others."""
    obstacle: str = ""
    """Why the call could not be repeated; "" = it was."""


# Losses, backward passes and gradients --------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class LossRecord:
    """One PyTorch loss, as found in the graph of a backward pass."""

    kind: str
    """Loss: "cross_entropy", "nll", "bce", "bce_with_logits", "mse", "l1", "smooth_l1", "huber", "kl_div", "ctc";
    "pairs" = a part of a hand-written loss that compares each prediction with all targets."""
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
    flattened: tuple[int, ...] | None = None
    """Shape (N, C, positions) of logits that a view cut into rows of C; None = the classes were the last dimension."""
    unflattened: tuple[int, int] | None = None
    """First two sizes (A, B) of the input, which was flattened to A * B rows; None = it was not."""
    first_position: int = 0
    """Number of positions of the second dimension that a slice left out before the first one of the input."""
    bootstraps: bool = False
    """Whether the target is a constant plus a discounted value of the same parameters, with a graph."""
    input_range: tuple[float, float] | None = None
    """Smallest and largest value of the input of an "nll" or "bce_with_logits"; None = not read."""
    normalised_share: float | None = None
    """Share of the frames of a "ctc" whose probabilities add up to 1; None = not read."""
    mask_as_index: tuple[int, int] | None = None
    """Number of 0 and 1 in an integer index that chose rows of the input, as long as a mask of them; None = no such."""


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

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_parameters",)
    leaf: bool
    """Whether the root itself is a leaf: ``requires_grad_(True)`` made it differentiable, and it has no graph."""
    retain_graph: bool
    create_graph: bool
    losses: tuple[LossRecord, ...]
    """The losses in the graph; their ``gradient_weight`` is None."""
    loader: Ref | None
    """The loader of the latest batch."""
    batch: int
    """Number of batches that all loaders have returned; events with equal numbers belong to the same batch."""
    live_parameters: Mapping[Ref, Any]
    """LIVE: the parameters of called models and of optimizers that have stepped, all in the training thread."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardLosses(Event):
    """Follows a `BackwardStarted` whose losses were read from its graph; in equal windows only the first few are."""

    losses: tuple[LossRecord, ...]
    """The losses of that backward pass."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardEnded(Event):
    """An outermost ``backward()`` returned."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_parameters",)
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
    live_parameters: Mapping[Ref, Any]
    """LIVE: same as in the matching `BackwardStarted`."""
    scale: float | None = None
    """GradScaler's factor in the root, 0 if it was not read; None = no GradScaler has multiplied the root."""
    graph_order: int | None = None
    """Sequence number of the root's operation: higher than those of all earlier operations in its thread."""


class MeasuredLoss(NamedTuple):
    """A loss of a backward pass with the tensors that it compares, which live as long as the event."""

    kind: str
    """Same as ``kind`` of `LossRecord`; "nll" also for a cross-entropy."""
    reduction: str
    position: int
    """Number of the loss among those of one root."""
    answers: Any
    """The loss's input: log-probabilities for "nll"."""
    targets: Any
    weight: Any
    """Weights of the classes or elements; None = all are 1."""
    is_weighted: bool
    """Whether positive targets have a weight of their own."""
    ignore_index: int | None
    delta: float
    """Where a Huber or smooth L1 loss becomes linear."""
    last_operation: tuple[str, int]
    """The operation that made the answers ("Softmax"), and the number of values that a softmax normalises."""
    positive_weight: Any = None
    """Weights of positive targets; None = all are 1."""


@dataclass(slots=True, kw_only=True, eq=False)
class LossEvaluated(Event):
    """A loss of PyTorch was computed without a graph, as in an evaluation."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_loss",)
    live_loss: MeasuredLoss
    """LIVE: the loss; its ``last_operation`` is not read."""
    within_model: bool
    """Whether a model computes it within its own forward, which has not returned yet."""


@dataclass(slots=True, kw_only=True, eq=False)
class DivergenceRead(Event):
    """A backward pass starts from the sum of a KL divergence of normal distributions and a reconstruction loss.

    The location is that of the reconstruction loss, if it is known.
    """

    weight: float
    """Factor of the divergence, without that of its reduction; negative = it is maximised."""
    reduction: str
    """"sum", "mean", "rows" for the sum of each sample, averaged over the batch; "" = another one."""
    loss_weight: float
    """Same as ``weight``, for the reconstruction loss."""
    loss_reduction: str
    """Same as ``reduction``, for the reconstruction loss."""
    rows: int
    """Number of samples."""
    codes: int
    """Number of values of the code of a sample."""
    values: int
    """Number of values of a sample."""
    samples_with_variance: bool
    """Whether the noise in the code is multiplied with what the divergence takes as the variance."""


class GraphNode(NamedTuple):
    """One operation in the graph of a loss."""

    operation: str
    """Name of the operation: "Addmm", "Relu"; "leaf" = a parameter."""
    parents: tuple[int | None, ...]
    """Number of the node that made each input; None = data."""
    values: Any
    """LIVE: the input of a linear layer or convolution, or the result of an activation, on the CPU; otherwise None."""
    parameter: Ref | None = None
    """The parameter that a leaf is."""


@dataclass(slots=True, kw_only=True, eq=False)
class LossGraphRead(Event):
    """A backward pass is about to start from losses whose answers and targets are in memory."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_losses", "live_nodes")
    live_losses: Sequence[MeasuredLoss]
    """LIVE: the losses."""
    live_nodes: Sequence[GraphNode]
    """LIVE: the operations that computed the answers, last one first; empty in most updates and for large graphs."""


class GraphCut(NamedTuple):
    """An operation whose result has no graph although its input depends on trainable parameters."""

    location: CodePosition | None
    """The operation, or the ``with`` statement or function that switches gradients off."""
    operation: str
    """Source code of the operation: "features.detach()"."""
    parameters: Refs
    """Trainable parameters of optimizers that the graph of the operation's input reaches."""
    untrained: tuple[str, ...]
    """The program's expressions for those of ``parameters`` that never had a gradient: "model.encoder"."""


class DetachedTerm(NamedTuple):
    """A number that was added to a loss, and that depends on trainable parameters only through a cut."""

    location: CodePosition | None
    """The addition."""
    cut: GraphCut


@dataclass(slots=True, kw_only=True, eq=False)
class LossTraced(Event):
    """RARE. A backward pass starts from a loss whose operations were recorded since the latest update.

    Operations are recorded in a few updates only: while an optimizer has a parameter that never had a gradient, while a
    loss has a term without a graph, or if the program samples from distributions.
    """

    cuts: tuple[GraphCut, ...]
    """The cuts through which values of trainable parameters reach the loss."""
    detached_terms: tuple[DetachedTerm, ...]
    samples: tuple[GraphCut, ...] = ()
    """Calls of ``sample()`` between two trained networks, where ``rsample()`` would keep the graph. The loss reaches
    their parameters by another term."""


@dataclass(slots=True, kw_only=True, eq=False)
class LossTracingEnded(Event):
    """RARE. The last operations were recorded: the watch ends, or the program has made 2048 updates."""

    unchanged: Refs
    """Parameters behind a cut that never had a gradient, and that nothing else has changed. Copies of trained
    parameters, as in a target network, and numbers, such as a temperature, are left out."""


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsCleared(Event):
    """``zero_grad()`` of an optimizer or module is called.

    Gradients that the program clears itself are detected at the next backward pass or step.
    """

    parameters: Refs
    """Parameters that have a gradient, which will be cleared."""


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsClipped(Event):
    """``clip_grad_norm_`` or ``clip_grad_value_`` was called."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_gradients",)
    kind: str
    """What was clipped: "norm", "value"."""
    limit: float
    measured: float | None
    """The norm, or the largest absolute value, before clipping; None if unknown."""
    parameters: Refs
    """Parameters that had a gradient."""
    live_gradients: Mapping[Ref, tuple[Any, Any]]
    """LIVE: the gradient of each of these parameters, and its version before clipping."""
    given: Refs = NO_REFS
    """All parameters that were passed."""
    generator_exhausted: bool = False
    """Whether the parameters were passed as a generator that was already exhausted."""

    @property
    def only_measured(self) -> bool:
        """Whether the limit is infinite, so that the norm is only measured."""
        return self.limit == math.inf


@dataclass(slots=True, kw_only=True, eq=False)
class LossScaled(Event):
    """``scale(loss)`` of an enabled GradScaler was called."""

    scaler: Ref
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

    parameters: Refs
    """All parameters of the optimizer."""


@dataclass(slots=True, kw_only=True, eq=False)
class ScaleRead(Event):
    """The program called ``GradScaler.get_scale()``, perhaps to divide gradients by the factor."""


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
    learning_rates: tuple[float, ...] = ()
    """Learning rate of each parameter group; empty if one is a tensor on a GPU."""
    groups: tuple[Refs, ...] = ()
    """The parameters of each parameter group."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepStarted(Event):
    """The step of an optimizer starts; `StepTaken`, `PartlyTracedStep` or an exception follows.

    For an update without ``torch.optim``, which may follow, it is emitted after each backward pass.
    """

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_optimizer", "live_parameters")
    optimizer: Ref
    parameters: Refs
    """All parameters of the optimizer."""
    frozen: Refs
    """Parameters of the optimizer with requires_grad off."""
    live_optimizer: Any
    """LIVE: the optimizer."""
    live_parameters: Mapping[Ref, Any]
    """LIVE: all parameters of the optimizer."""


@dataclass(slots=True, kw_only=True, eq=False)
class PartlyTracedStep(Event):
    """An optimizer stepped for the first time since a gap in tracing; no `StepTaken` is emitted."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_parameters",)
    optimizer: Ref
    parameters: Refs
    """All parameters of the optimizer."""
    live_parameters: Mapping[Ref, Any]
    """LIVE: all parameters of the optimizer."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepTaken(Event):
    """An optimizer stepped, or the program updated parameters itself. ``update`` counts the updates before this one.

    For an update without ``torch.optim``, the gradients are described as the latest backward pass left them.
    """

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_parameters",)
    optimizer: Ref
    """The optimizer; for an update without ``torch.optim``, the parameters that are always updated together."""
    parameters: Refs
    """All parameters of the optimizer."""
    with_gradient: Refs
    """Parameters that had a gradient."""
    live_parameters: Mapping[Ref, Any]
    """LIVE: all parameters of the optimizer."""
    learning_rates: tuple[float, ...] = ()
    """Learning rate of each parameter group in this step; empty if one is a tensor on a GPU."""
    grad_norm: float | None = None
    """Joint L2 norm of the gradients at the step; None if reading it needs a GPU synchronisation."""
    gradient_norms: Mapping[Ref, float] = field(default_factory=dict[Ref, float])
    """L2 norm of each gradient, in order; empty if reading it needs a GPU synchronisation."""
    frozen: Refs = NO_REFS
    """Parameters of the optimizer with requires_grad off."""
    scaler: Ref | None = None
    """The GradScaler that called the step."""
    closure: bool = False
    seconds: float = 0.0
    hand_written: bool = False
    """Whether the program updated the parameters itself, such as by ``p -= lr * p.grad``."""
    climbs: bool = False
    """Whether such an update moves the parameters along the gradient."""

    @property
    def optimizer_name(self) -> str:
        """The optimizer's name at the start of a sentence."""
        return "The hand-written update" if self.hand_written else self.optimizer.name

    @property
    def call(self) -> str:
        """The call that made the update, at the start of a sentence."""
        return self.optimizer_name if self.hand_written else f"`{self.optimizer.name}.step()`"

    def zero_gradients(self) -> Refs:
        """Return the parameters whose gradient is exactly zero; empty if gradients were not read."""
        return frozenset(ref for ref, norm in self.gradient_norms.items() if norm == 0)


@dataclass(slots=True, kw_only=True, eq=False)
class LossesRead(Event):
    """RARE. The program has read losses, by ``item()`` or ``float()``; for curves, as the clock decides when."""

    losses: tuple[tuple[int, float], ...]
    """For each loss, the number of updates before its backward pass, and its value."""


@dataclass(slots=True, kw_only=True, eq=False)
class NumbersSampled(Event):
    """RARE. The numbers of an update in sampled tracing; for curves, as the choice depends on the clock."""

    step: int
    """Number of updates before this one."""
    optimizer: Ref
    loss: float | None
    """Value of the root of the latest backward pass; None if it is no longer alive, scaled, or on a GPU."""
    learning_rates: tuple[float, ...]
    gradient_norms: Mapping[Ref, float]
    """L2 norm of each gradient that still exists."""


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
    base_rate: float
    """Highest learning rate of the optimizer's groups when the scheduler was built; 0 = unknown."""
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
    numbers: tuple[int, ...] = ()
    """Integers that the function of a LambdaLR, or a scheduler of the program, may use as its length; ascending."""
    earlier_calls: int | None = None
    """At the scheduler's first step, the number of steps of the optimizer's previous scheduler; None at later steps."""
    steps_per_epoch: int | None = None
    """Argument ``steps_per_epoch`` of a OneCycleLR; None = not passed."""
    metric: float | None = None
    """Value that a ReduceLROnPlateau was given; None = another scheduler, or the value is on a GPU."""
    metric_names: tuple[str, ...] = ()
    """Variables and items of dictionaries that hold this value: "logs['val_r2']"."""
    built_at: CodePosition | None = None
    """The line that created the scheduler; None = not traced."""
    mode: str = ""
    """Mode of a ReduceLROnPlateau: "min", "max"."""
    patience: int | None = None
    """Patience of a ReduceLROnPlateau; None for another scheduler."""


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
class CheckpointRead(Event):
    """RARE. ``torch.load`` returned."""

    path: str
    file: Ref
    weights_only: bool | None
    holds_model: bool
    holds_optimizer: bool
    scheduler_steps: int = 0
    """Number of steps of the scheduler whose state is in the file; 0 = there is none, or it has not stepped."""


@dataclass(slots=True, kw_only=True, eq=False)
class CheckpointWritten(Event):
    """RARE. ``torch.save`` was called."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_content",)
    path: str
    """Path of the file; "" = the file has no name."""
    holds_model: bool
    holds_optimizer: bool
    live_content: Any
    """LIVE: the saved object."""
    unstepped: Refs = NO_REFS
    """Optimizers that have not stepped, and whose state is the saved one."""


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
    file: str = ""
    """Name of the file that the state was read from, but of which nothing was left when it was loaded."""


@dataclass(slots=True, kw_only=True, eq=False)
class StateLoaded(Event):
    """RARE. The program called ``load_state_dict`` of a model, optimizer, scheduler or scaler."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_parameters",)
    target: Ref
    what: str
    """Kind of ``target``: "model", "optimizer", "scheduler", "scaler"."""
    file: Ref | None
    """The file that the state was read from, if any."""
    name_match: StateDictMatch | None = None
    """How the keys of a model loaded with ``strict=False`` match; None if all do.

    Also if a filter left nothing of a state that was read from a file: the keys in the file do not match then.
    """
    live_parameters: Mapping[Ref, Any] = field(default_factory=dict[Ref, Any])
    """The parameters of a model, after the load."""
    rates: tuple[float, float] | None = None
    """Of an optimizer that had a scheduler when it was saved: its highest initial learning rate, and the loaded one."""


@dataclass(slots=True, kw_only=True, eq=False)
class AverageKept(Event):
    """RARE. The program keeps an average of the trained weights, and something became of it."""

    name: str
    """The variable or attribute: "ema.module"."""
    what: str
    """"found", "unrelated" if it began from other weights, "not restored" after an evaluation with it, and at the end
    of the program "unused", or "used" if only evaluations call it."""
    share: float = 0.0
    """Share of the trained weights in each new average, if it is constant; 0 = it is not."""
    times: int = 0
    module: Ref | None = None
    """The averaged model; None for a dictionary of tensors, or an object that holds it."""


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
