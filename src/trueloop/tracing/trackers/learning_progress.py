"""Compares the losses of a run with the loss of the best answer that does not depend on the input."""

import math
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trueloop.core.downsampling import DownsampledSeries
from trueloop.core.findings import CodePosition, LayerGradientNorms, LayerState, Series
from trueloop.core.learning import (
    MIN_UPDATES,
    HeldOutCourse,
    HeldOutLoss,
    LearningSummary,
    LearningVerdict,
    last_values,
    summarise,
)
from trueloop.tracing.events import (
    NO_REFS,
    LossEvaluated,
    LossGraphRead,
    MeasuredLoss,
    ModelCalled,
    Ref,
    Refs,
    StepStarted,
    StepTaken,
    WatchEnded,
)
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.tracker import Tracker
from trueloop.tracing.unit_states import UnitStates

MIN_FAILING: Final = 48  # updates of a run that does not learn, before a cause is named
MAX_OPTIMIZERS: Final = 8  # whose weights are compared
ROUNDING: Final = 1e-9  # of the targets, below which they do not vary
MAIN_SHARE: Final = 0.1  # of the most frequent loss; losses that are computed less often are not compared
MAX_ELEMENTS: Final = 1 << 20  # of one loss that are read
MAX_TARGETS: Final = 4096  # numbers in the targets of one batch that are stored
MAX_COLUMNS: Final = 64  # numbers in the targets of one sample that are stored
WEIGHTS_INTERVAL: Final = 7  # updates; odd, as two optimizers may alternate
MAX_SAMPLE: Final = 256  # numbers of a weight that are read
COUNTED_TOGETHER: Final = 4096  # targets of classification
MAX_PARTS: Final = 32  # batches of targets that are counted together
LATEST_PREDICTIONS: Final = 4  # batches in which one class alone must be predicted
MAJORITY: Final = 0.8  # share of the targets of a class that may be all that is predicted
MAX_BATCHES: Final = 64  # batches whose targets are stored, spread over the run
MAX_EVALUATIONS: Final = 32  # kinds of evaluations that are compared
MIN_TARGETS: Final = 50  # of an evaluation
SAME_SIZE: Final = 0.9  # of the largest evaluation, below which one does not go over the same samples

FUNCTIONS: Final[Mapping[str, Any]] = {
    "nll": F.nll_loss,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "bce": F.binary_cross_entropy,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
}
LINEAR_FROM: Final = {"smooth_l1": "beta", "huber": "delta"}
"""Loss -> name of the argument at which it becomes linear."""


@dataclass(slots=True)
class _ClassCounts:
    """How often each class was the target; the latest targets are counted together, at a tenth of the cost."""

    classes: int
    ignore_index: int
    weight: Tensor | None
    """Weights of the classes; None = all are 1."""
    device: torch.device
    latest: list[Tensor] = field(default_factory=list[Tensor])
    counts: Tensor | None = None
    """Of shape (C,), without the latest targets."""

    def add(self, targets: Tensor) -> None:
        self.latest.append(targets.flatten().clone())
        if len(self.latest) >= MAX_PARTS or len(self.latest) * targets.numel() >= COUNTED_TOGETHER:
            self.total()

    def weights_of(self, targets: Tensor) -> Tensor:
        """Return the weight of each target; 0 for ignored ones."""
        counted = (targets != self.ignore_index).double()
        return counted if self.weight is None else counted * self.weight[targets.clamp(0, self.classes - 1)]

    def total(self) -> Tensor:
        """Return the counts of all targets so far, of shape (C,)."""
        if self.counts is not None and not self.latest:
            return self.counts
        targets, self.latest = torch.cat(self.latest), []
        counted, classes = self.weights_of(targets), targets.clamp(0, self.classes - 1)
        counts = counted.new_zeros(self.classes).index_add_(0, classes.long(), counted)
        self.counts = counts if self.counts is None else self.counts + counts
        return self.counts


@dataclass(slots=True)
class _Loss:
    """What was read of one loss; tensors are on the loss's device."""

    kind: str
    reduction: str
    options: Mapping[str, Any]
    elements: int = 1
    """Number of targets in the latest batch."""
    values: DownsampledSeries[Tensor] = field(default_factory=DownsampledSeries[Tensor])
    """Mean loss of one target, at each backward pass."""
    counts: _ClassCounts | None = None
    """How often each class was the target of an "nll" loss."""
    targets: DownsampledSeries[Tensor] = field(default_factory=lambda: DownsampledSeries[Tensor](MAX_BATCHES))
    """Targets of some batches, each of shape (B, columns)."""
    predicted: deque[Tensor] = field(default_factory=lambda: deque[Tensor](maxlen=LATEST_PREDICTIONS))
    """The smallest and the largest class that was predicted in each of the latest batches that were read."""

    @property
    def factor(self) -> int:
        """What the mean loss is multiplied by to get the program's value."""
        return self.elements if self.reduction == "sum" else 1


class WeightChange(NamedTuple):
    """One update of the weights of an optimizer, read from a sample of each weight of two or more dimensions."""

    update: int
    ratio: float
    """Norm of the update over norm of the weight: the median over the weights."""
    moved: float
    """Norm of the way from the first values over the norm of these values: the largest of all weights."""
    shrunk: float
    """Norm of all weights over their norm at the first read."""
    rate: float | None
    """Largest learning rate; None = on a GPU."""
    first_gradient: float
    """Norm of the gradient of the first weight over that of the last weight; 1 if unknown."""
    decay_share: float
    """Norm of ``weight_decay * weights`` over the norm of the gradients; 0 without weight decay."""


class LossCourse(NamedTuple):
    """One loss over the run, as the program computes it: a sum if its reduction is "sum"."""

    kind: str
    location: CodePosition | None
    """The line of the backward pass."""
    updates: Sequence[int]
    values: Sequence[float]
    """The loss at each of ``updates``."""
    constant: float | None
    """Loss of the best answer that does not depend on the input; None = not defined."""


@dataclass(slots=True)
class _Evaluation:
    """The losses of one model on the same samples; tensors are on the loss's device."""

    loss: _Loss
    """What was read of the loss, in all evaluations together."""
    update: int = -1
    """Number of updates before the latest evaluation."""
    total: Any = 0.0
    """Sum of the losses of that evaluation."""
    right: Any = 0.0
    """Number of targets that it predicts right."""
    counted: Any = 0.0
    """Number of targets that are not ignored."""
    targets: int = 0
    passes: DownsampledSeries[tuple[Any, int]] = field(default_factory=DownsampledSeries[tuple[Any, int]])
    """Mean loss and number of targets of each earlier evaluation."""

    def add(self, loss: MeasuredLoss, update: int) -> None:
        if update != self.update:
            self._end()
            self.update, self.total, self.right, self.counted, self.targets = update, 0.0, 0.0, 0.0, 0
        is_classes = loss.kind == "nll"
        value = _record_classes(self.loss, loss) if is_classes else _record_numbers(self.loss, loss, update)
        if value is not None:
            count = loss.targets.numel()
            self.total, self.targets = self.total + value.double() * count, self.targets + count
            if (predicted := _predicted(loss)) is not None:
                self.right = self.right + (predicted == loss.targets).sum()
                ignored = loss.ignore_index
                self.counted = self.counted + (count if ignored is None else (loss.targets != ignored).sum())

    def course(self) -> HeldOutCourse | None:
        """Return the course of the evaluations, which synchronises a GPU; None if they are too small."""
        self._end()
        largest = max((count for _, count in self.passes.values), default=0)
        if largest < MIN_TARGETS:
            return None
        found = [
            (update, float(mean))
            for update, (mean, count) in zip(*self.passes.with_newest(), strict=True)
            if count >= SAME_SIZE * largest and math.isfinite(mean)
        ]
        right = None if isinstance(self.right, float) else float(self.right) / max(1.0, float(self.counted))
        if not found:
            return None
        updates, means = [update for update, _ in found], [mean for _, mean in found]
        return HeldOutCourse(updates, means, right, max(_class_shares(self.loss)), _best_constant(self.loss))

    def _end(self) -> None:
        if self.targets:
            self.passes.add(self.update, (self.total / self.targets, self.targets))


class _HeldOut:
    """Finds evaluations of the trained model on samples that it is not trained on."""

    def __init__(self) -> None:
        self._evaluations: dict[tuple[Any, ...], _Evaluation] = {}
        self._within: list[tuple[CodePosition | None, MeasuredLoss]] = []
        """Lines and losses of the call that is running, which are dropped when it returns."""
        self._trained: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._latest: Refs = NO_REFS
        """Parameters of the latest step."""
        self._training_loaders: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._inputs: Any = None
        """Weak reference to the input of the latest call with a graph."""
        self._key: tuple[Any, ...] | None = None
        """What identifies the evaluation that the latest call belongs to; None = it is none."""

    def on_step_taken(self, event: StepTaken) -> None:
        if event.parameters is not self._latest:
            self._latest = event.parameters
            self._trained.update(event.parameters)

    def on_model_called(self, event: ModelCalled) -> None:
        self._key, losses, self._within = None, self._within, []
        if event.has_graph:
            if event.loader is not None:
                self._training_loaders.add(event.loader)
            self._inputs = None if event.inputs is None else weakref.ref(event.inputs)
        elif not self._is_trained_on(event) and any(each in self._trained for each in event.parameters):
            shape = None if event.inputs is None else tuple(event.inputs.shape)
            self._key = event.model, event.loader or shape
            for location, loss in losses:
                self._add(location, loss, event.update)

    def _is_trained_on(self, event: ModelCalled) -> bool:
        if event.loader in self._training_loaders:
            return True
        return self._inputs is not None and event.inputs is not None and self._inputs() is event.inputs

    def on_loss_evaluated(self, event: LossEvaluated) -> None:
        if event.within_model:
            self._within.append((event.location, event.live_loss))
        elif self._key is not None:
            self._add(event.location, event.live_loss, event.update)

    def _add(self, location: CodePosition | None, loss: MeasuredLoss, update: int) -> None:
        key = (location, loss.kind, self._key)
        if key in self._evaluations or len(self._evaluations) < MAX_EVALUATIONS:
            self._evaluations.setdefault(key, _Evaluation(_new_loss(loss))).add(loss, update)

    def courses(self, kind: str) -> list[HeldOutCourse]:
        """Return the courses of the evaluations with a kind of loss, which synchronises a GPU."""
        same_kind = [
            e for (_, each, _), e in self._evaluations.items() if each.partition("_")[0] == kind.partition("_")[0]
        ]
        return [course for each in same_kind if (course := each.course()) is not None]


class _Samples(NamedTuple):
    """Some values of the weights of an optimizer, in one tensor, as operations cost more than their numbers."""

    refs: tuple[Ref, ...]
    values: Tensor
    """Of shape (number of weights, MAX_SAMPLE); 0 beyond the last value of a small weight."""

    def of(self, refs: Sequence[Ref]) -> Tensor:
        """Return the values of some of the weights, in another order."""
        if tuple(refs) == self.refs:
            return self.values
        numbers = {ref: number for number, ref in enumerate(self.refs)}
        return self.values[[numbers[ref] for ref in refs]]


@dataclass(slots=True)
class _Weights:
    """The weights of one optimizer."""

    first: _Samples | None = None
    before: _Samples | None = None
    decay: float = 0.0
    changes: DownsampledSeries[WeightChange] = field(default_factory=DownsampledSeries[WeightChange])
    ratios: dict[Ref, float] = field(default_factory=dict[Ref, float])
    """Norm of the latest update over the norm of the weight, for each weight."""


class LearningProgress(Tracker):
    """The losses of a run, with the targets that were seen; all numbers stay on their device until the end.

    Cost: 15 us for each loss, and 1 ns for each of its elements. No synchronisation before the end.
    """

    def __init__(self) -> None:
        self._losses: dict[tuple[str, CodePosition | None, int], _Loss] = {}
        self._weights: dict[Ref, _Weights] = {}
        self._held_out = _HeldOut()
        self.units = UnitStates()
        """The activations of the model."""
        self.summary: LearningSummary | None = None
        """Progress of the most frequent loss, with the verdict of all losses together, at the end of the run."""
        self.held_out = Series(updates=(), values=())
        """The loss of held-out samples in each evaluation, at the end of the run; empty = none was seen."""
        self.cause_reported = False
        """Whether a failure has explained why the run does not learn; one explanation is enough."""

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Record the value and the targets of each loss, and the activations."""
        if event.live_nodes:
            self.units.read(event.live_nodes)
        for loss in event.live_losses:
            key = (loss.kind, event.location, loss.position)
            known = self._losses.get(key) or self._losses.setdefault(key, _new_loss(loss))
            value = _record_classes(known, loss) if loss.kind == "nll" else _record_numbers(known, loss, event.update)
            if value is not None:
                known.values.add(event.update, value)
            if event.live_nodes and (predicted := _predicted(loss)) is not None:
                known.predicted.append(torch.stack([predicted.amin(), predicted.amax()]))

    def on_step_started(self, event: StepStarted) -> None:
        """Sample the weights before some updates."""
        if event.update % WEIGHTS_INTERVAL:
            return
        if event.optimizer not in self._weights and len(self._weights) >= MAX_OPTIMIZERS:
            return
        weights = self._weights.setdefault(event.optimizer, _Weights())
        weights.before = _samples({ref: each for ref, each in event.live_parameters.items() if each.dim() > 1})
        weights.first = weights.first or weights.before
        groups = event.live_optimizer.param_groups
        weights.decay = max((float(group.get("weight_decay") or 0) for group in groups), default=0.0)

    def on_model_called(self, event: ModelCalled) -> None:
        """Record whether the call is part of an evaluation on held-out samples."""
        self._held_out.on_model_called(event)

    def on_loss_evaluated(self, event: LossEvaluated) -> None:
        """Record the loss of held-out samples."""
        self._held_out.on_loss_evaluated(event)

    def on_step_taken(self, event: StepTaken) -> None:
        """Compare the weights with those before the update."""
        self._held_out.on_step_taken(event)
        weights = self._weights.get(event.optimizer)
        if weights is None or weights.before is None or weights.first is None:
            return
        before, weights.before = weights.before, None
        after = _samples({ref: event.live_parameters[ref] for ref in before.refs if ref in event.with_gradient})
        if after is None:
            return
        start = before.of(after.refs)
        norms = dict(zip(after.refs, _row_norms(start), strict=True))
        changes = zip(after.refs, _row_norms(after.values - start), strict=True)
        ratios = {ref: change / norms[ref] for ref, change in changes if norms[ref]}
        if not ratios:
            return
        weights.ratios = ratios
        known = [ref for ref in after.refs if ref in weights.first.refs]
        first = weights.first.of(known)
        first_norms, ways = _row_norms(first), _row_norms(before.of(known) - first)
        gradients = [event.gradient_norms[ref] for ref in after.refs if ref in event.gradient_norms]
        decayed = weights.decay * math.hypot(*norms.values())
        weights.changes.add(
            event.update,
            WeightChange(
                update=event.update,
                ratio=median(ratios.values()),
                moved=max((way / norm for way, norm in zip(ways, first_norms, strict=True) if norm), default=0),
                shrunk=math.hypot(*[norms[r] for r in known]) / (math.hypot(*first_norms) or 1),
                rate=max(event.learning_rates, default=None),
                first_gradient=gradients[0] / gradients[-1] if gradients and gradients[-1] else 1.0,
                decay_share=decayed / (math.hypot(*gradients) or math.inf),
            ),
        )

    def weight_changes(self) -> Mapping[Ref, Sequence[WeightChange]]:
        """Return some updates of each optimizer, oldest first."""
        return {optimizer: weights.changes.values for optimizer, weights in self._weights.items()}

    def layers(self, gradients: LayerGradientNorms | None) -> tuple[LayerState, ...]:
        """Return the layers in the order of the model.

        Args:
            gradients: the norm of the gradient of each layer; None = not known.
        """
        found: dict[str, LayerState] = {}
        if gradients is not None:
            for name, norms in zip(gradients.layers, gradients.norms, strict=True):
                known = [norm for norm in norms if norm is not None]
                latest = median(last_values(known)) if known else None
                found[name.rpartition(": ")[2]] = LayerState(name, gradient=latest)
        for weights in self._weights.values():
            for ref, ratio in weights.ratios.items():
                name = _layer_name(ref)
                before = found.get(name, LayerState(name))
                found[name] = before._replace(update_ratio=max(ratio, before.update_ratio or 0.0))
        for ref, activation, share in self.units.shares():
            name = _layer_name(ref)
            found[name] = found.get(name, LayerState(name))._replace(activation=activation.lower(), idle=share)
        return tuple(found.values())

    def on_watch_ended(self, event: WatchEnded) -> None:
        """Compare the losses with those of the best constant answers, which synchronises a GPU."""
        losses = [loss for loss in self._losses.values() if loss.values.values]
        if losses:
            most = max(len(loss.values.values) for loss in losses)
            found = [(_summary(loss), loss) for loss in losses if len(loss.values.values) >= MAIN_SHARE * most]
            main, main_loss = max(found, key=lambda each: each[0].updates)
            verdicts = {summary.verdict for summary, _ in found}
            order = (LearningVerdict.LEARNING, LearningVerdict.UNKNOWN, *LearningVerdict)
            compared = self._compare_held_out(main, main_loss)
            verdict = next(each for each in order if each in verdicts)
            self.summary = compared if main.verdict is LearningVerdict.LEARNING else main._replace(verdict=verdict)

    def _compare_held_out(self, summary: LearningSummary, loss: _Loss) -> LearningSummary:
        """Return the summary of a run that learns, with another verdict if held-out samples say so."""
        updates, values, factor = loss.values.updates, _values(loss), loss.factor
        constant = _best_constant(loss)
        courses = [each for each in self._held_out.courses(loss.kind) if each.updates[-1] >= updates[-1] / 2]
        for course in sorted(courses, key=lambda each: -len(each.values)):
            self.held_out = Series(updates=tuple(course.updates), values=tuple(v * factor for v in course.values))
            verdict, found = LearningVerdict.MEMORISED, course.memorised(fmean(last_values(values)), constant)
            if found is None:
                verdict, found = LearningVerdict.OVERFITTING, course.rise(updates, values)
            if found is not None:
                found = HeldOutLoss(found.best * factor, found.best_update, found.end * factor)
                return summary._replace(verdict=verdict, held_out=found)
        return summary

    def courses(self) -> list[LossCourse]:
        """Return the course of each loss, which synchronises a GPU."""
        found: list[LossCourse] = []
        for (_, location, _), loss in self._losses.items():
            if loss.values.values:
                values, constant = _values(loss), _best_constant(loss)
                shown = None if constant is None else constant * loss.factor
                found.append(
                    LossCourse(loss.kind, location, loss.values.updates, [v * loss.factor for v in values], shown)
                )
        return found

    def failure(self) -> LearningSummary | None:
        """Return the summary of a run that does not learn; None if it does, or if a cause was already reported."""
        summary = self.summary
        is_failing = summary is not None and summary.is_failing and summary.updates >= MIN_FAILING
        return summary if is_failing and not self.cause_reported else None

    def unknown(self) -> str:
        """Return the reason why a cause cannot be judged; "" if it can."""
        if self.cause_reported:
            return "another cause was found"
        if self.summary is not None and self.summary.verdict is not LearningVerdict.UNKNOWN:
            return ""
        return f"fewer than {MIN_UPDATES} updates, or no loss with a best constant answer that is known"


def _layer_name(parameter: Ref) -> str:
    return parameter.name.rpartition(".")[0] or parameter.name


def _samples(weights: Mapping[Ref, Tensor]) -> _Samples | None:
    """Copy some values of each weight on the CPU; None if there is none."""
    found: dict[Ref, Tensor] = {}
    for ref, weight in weights.items():
        if weight.is_cpu and has_storage(weight) and weight.is_floating_point() and weight.numel():
            values = weight.detach().reshape(-1)[:: -(-weight.numel() // MAX_SAMPLE)].float()
            found[ref] = F.pad(values, (0, MAX_SAMPLE - len(values))) if len(values) < MAX_SAMPLE else values
    return _Samples(tuple(found), torch.stack(list(found.values()))) if found else None


def _row_norms(values: Tensor) -> list[float]:
    return torch.linalg.vector_norm(values, dim=1).tolist()


def _function(kind: str) -> Any:
    """Return the function of a loss without what is traced in place of it."""
    return getattr(FUNCTIONS[kind], "__wrapped__", FUNCTIONS[kind])


def _record_classes(known: _Loss, loss: MeasuredLoss) -> Tensor:
    """Count the classes; return the mean loss of those targets that are not ignored."""
    answers, targets, ignored = loss.answers, loss.targets, -100 if loss.ignore_index is None else loss.ignore_index
    known.elements = targets.numel()
    if answers.dim() < 2:
        answers, targets = answers[None], targets[None]
    if known.elements > MAX_ELEMENTS:
        rows = max(1, MAX_ELEMENTS * len(targets) // known.elements)
        answers, targets = answers[:rows], targets[:rows]
    counts, kind = known.counts, (answers.shape[1], ignored, targets.device)
    if counts is None or (counts.classes, counts.ignore_index, counts.device) != kind:
        counts = known.counts = _ClassCounts(answers.shape[1], ignored, loss.weight, targets.device)
    counts.add(targets)
    mean_loss = partial(_function("nll"), answers, targets, loss.weight, ignore_index=ignored)
    if answers.is_cpu and answers.element_size() >= 4:  # not on a GPU, where a mean may not be deterministic
        return mean_loss()
    return mean_loss(reduction="none").double().sum() / counts.weights_of(targets).sum()


def _record_numbers(known: _Loss, loss: MeasuredLoss, update: int) -> Tensor | None:
    """Store some of the targets; return the mean loss."""
    answers, targets = loss.answers, loss.targets
    if answers.shape != targets.shape or loss.weight is not None or loss.is_weighted or answers.is_complex():
        return None
    if not answers.dim():
        answers, targets = answers[None], targets[None]
    width = targets[0].numel() or 1
    rows = max(1, MAX_ELEMENTS // width)
    answers, targets = answers[:rows].float(), targets[:rows].float()
    if known.targets.stores_next:
        columns = targets.reshape(len(targets), -1)[:, :: -(-width // MAX_COLUMNS)]
        every = -(-columns.numel() // MAX_TARGETS)
        known.targets.add(update, columns[::every].clone())
    known.elements = loss.targets.numel()
    return _function(known.kind)(answers, targets, **known.options)


def _values(loss: _Loss) -> list[float]:
    return torch.stack([value.double() for value in loss.values.values]).tolist()


def _new_loss(loss: MeasuredLoss) -> _Loss:
    options = {LINEAR_FROM[loss.kind]: loss.delta} if loss.kind in LINEAR_FROM else {}
    return _Loss(loss.kind, loss.reduction, options)


def _summary(loss: _Loss) -> LearningSummary:
    found, factor = summarise(loss.kind, loss.values.updates, _values(loss), _best_constant(loss)), loss.factor
    shown = None if found.constant is None else found.constant * factor
    summary = found._replace(start=found.start * factor, end=found.end * factor, constant=shown)
    return summary._replace(**_majority(loss)) if summary.verdict is not LearningVerdict.UNKNOWN else summary


def _predicted(loss: MeasuredLoss) -> Tensor | None:
    """Return the predicted classes; None for a loss of numbers."""
    answers = loss.answers.detach()
    if not answers.numel() or answers.is_complex():
        return None
    if loss.kind == "nll":
        return answers.argmax(1 if answers.dim() > 1 else 0)
    return (answers > (0 if loss.kind == "bce_with_logits" else 0.5)).long() if loss.kind.startswith("bce") else None


def _majority(loss: _Loss) -> dict[str, Any]:
    """Return the frequent class that alone was predicted in the latest batches, with its share of the targets."""
    if len(loss.predicted) < LATEST_PREDICTIONS:
        return {}
    classes = torch.stack(list(loss.predicted)).flatten().unique().tolist()
    if len(classes) > 1:
        return {}
    shares = _class_shares(loss)
    share = shares[int(classes[0])]
    return {"only_class": int(classes[0]), "share": share} if MAJORITY <= share < 1 else {}


def _class_shares(loss: _Loss) -> list[float]:
    """Return the share of each class in the targets of a classification; in those of a loss of numbers, of ones."""
    if loss.kind == "nll":
        counts = loss.counts.total() if loss.counts is not None else torch.zeros(1)
        return (counts / counts.sum().clamp(min=ROUNDING)).tolist()
    batches = [batch.cpu() for batch in loss.targets.values]
    ones = torch.cat([batch.flatten() for batch in batches]).mean().item() if batches else 0.5
    return [1 - ones, ones]


def _best_constant(loss: _Loss) -> float | None:
    """Return the mean loss of the best answer that is the same for every input; None if it is 0, or not defined.

    It is the entropy of the labels for "nll", "bce" and "bce_with_logits", the variance of each column of the targets
    for "mse", and the deviation from each column's median for "l1".
    """
    if loss.kind == "nll":
        counts = loss.counts.total() if loss.counts is not None else torch.zeros(1)
        shares = counts / counts.sum()
        constant, smallest = -torch.xlogy(shares, shares).sum().item(), ROUNDING
    else:
        batches = [batch.cpu() for batch in loss.targets.values]
        if not batches:
            return None
        same = len({batch.shape[1] for batch in batches}) == 1
        targets = torch.cat(batches if same else [batch.reshape(-1, 1) for batch in batches]).double()
        if loss.kind.startswith("bce"):
            share = targets.mean(0).clamp(0, 1)
            constant = -(torch.xlogy(share, share) + torch.xlogy(1 - share, 1 - share)).mean().item()
        else:
            answers = (targets.mean(0), targets.median(0).values)
            constant = min(
                _function(loss.kind)(each.expand_as(targets), targets, **loss.options).item() for each in answers
            )
        smallest = ROUNDING * min(1.0, targets.square().mean().item())
    return constant if constant > smallest and math.isfinite(constant) else None
