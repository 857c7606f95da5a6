"""Finds evaluations in train mode on data that no DataLoader returned: slices, lists, generators, other loaders."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import (
    NO_REFS,
    BackwardEnded,
    Event,
    ModelCalled,
    Ref,
    Refs,
    StateLoaded,
    StepTaken,
    TracingGap,
    WatchEnded,
)
from trueloop.tracing.row_digests import row_digests
from trueloop.tracing.tracker import Tracker
from trueloop.tracing.trackers.evaluation_passes import MAX_CALLS, NO_LOADER, EvaluationPass, EvaluationPassesEnded
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_UPDATES: Final = 4  # in a row before an evaluation, without a call that is not trained on
LATER_UPDATES: Final = 8  # after an evaluation, in which its samples are not trained on
MAX_TRAINED_SHARE: Final = 0.1  # of the samples of an evaluation
MAX_REPEATED_SHARE: Final = 0.1
MAX_USES: Final = 2  # numbers of updates at which a model with loaded weights is called; a teacher is at each update
MAX_OPEN_CALLS: Final = 16  # latest calls with a graph that no backward pass has reached
MAX_BATCHES: Final = 512  # latest training batches whose samples are known


class _Call(NamedTuple):
    """A call with a graph, which may be trained on."""

    model: Ref
    rows: Tensor | None


@dataclass(slots=True)
class _Group:
    """Calls of one model without a graph between two updates."""

    calls: list[ModelCalled] = field(default_factory=list[ModelCalled])
    rows: list[Tensor] = field(default_factory=list[Tensor])
    """Samples of these calls, and of calls on the batches of loaders in between."""
    trained_later: list[Tensor] = field(default_factory=list[Tensor])
    updates_later: int = 0


@dataclass(slots=True)
class _Model:
    parameters: Refs = NO_REFS
    stepped: bool = False
    loaded: bool = False
    """Whether a state was loaded into it, and it was called without a graph and in train mode only."""
    feeds_another: bool = False
    """Whether a loss was computed from the output of another model that got this model's output, as a GAN's generator
    or an encoder."""
    updates_without_calls: int = 0
    """Number of its updates in a row before which it was not called without a graph."""
    group: _Group | None = None
    lines: set[CodePosition | None] = field(default_factory=set[CodePosition | None])
    """Lines that called it without a graph before an update."""
    undecided: list[_Group] = field(default_factory=list[_Group])
    trained: deque[Tensor] = field(default_factory=lambda: deque[Tensor](maxlen=MAX_BATCHES))
    """Samples of the latest batches that it was trained on."""


class LoaderlessEvaluationTracker(Tracker):
    """Finds groups of calls with active dropout or BatchNorm, without a graph, on samples that are not trained on.

    Correct programs call a model in train mode without a graph too. They do so before every update (pseudo labels, the
    policy of an agent, the generator in the step of the discriminator), on samples that are trained on (labels for the
    next epoch, statistics of BatchNorm), several times on the same samples (Monte Carlo dropout), or on the inputs of
    a generator. None of these is an evaluation. A model that only got loaded weights is evaluated by all of its calls.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (EvaluationPassesEnded,)

    def __init__(self) -> None:
        self._models = WeakIdDict[Ref, _Model]()
        self._with_graph = deque[_Call](maxlen=MAX_OPEN_CALLS)

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the samples of a call, and the call itself if it cannot be trained on."""
        model = self._models.get(event.model) or self._models.put(event.model, _Model())
        model.parameters = event.parameters
        if event.recomputed:
            return
        model.loaded &= not event.has_graph and event.training
        if not (event.dropout_active or event.batchnorm_active):
            return  # the mode changes nothing, or is right
        if event.has_graph:
            self._with_graph.append(_Call(event.model, row_digests(event)))
        elif model.stepped or model.loaded:
            model.group = model.group or _Group()
            if len(model.group.rows) < MAX_CALLS and (rows := row_digests(event)) is not None:
                model.group.rows.append(rows)
                if event.loader is None or not model.stepped:  # otherwise EvaluationPassTracker finds the pass
                    model.group.calls.append(event)

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Record a model that may be used without training it."""
        if event.what == "model":
            (self._models.get(event.target) or self._models.put(event.target, _Model())).loaded = True

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the samples that were trained on, and which models feed another one."""
        last: Ref | None = None
        calls, self._with_graph = self._with_graph, deque[_Call](maxlen=MAX_OPEN_CALLS)
        for call in reversed(calls):
            model = self._models.get(call.model)
            if model is None or model.parameters.isdisjoint(event.reached_parameters):
                self._with_graph.appendleft(call)
                continue
            last = last or call.model
            model.feeds_another |= last is not call.model
            if call.rows is not None:
                model.trained.append(call.rows)
                for group in model.undecided:
                    group.trained_later.append(call.rows)

    def on_step_taken(self, event: StepTaken) -> EvaluationPassesEnded | None:
        """End the groups of the updated models; return the evaluations that are now certain."""
        found: list[EvaluationPass] = []
        for model in self._models.values():
            if model.parameters.isdisjoint(event.parameters):
                continue
            model.stepped = True
            for group in list(model.undecided):
                group.updates_later += 1
                if group.updates_later >= LATER_UPDATES:
                    model.undecided.remove(group)
                    found += self._decide(model, group, at_end=False)
            if model.group is not None:
                model.lines.update(call.location for call in model.group.calls)
            self._end_group(model)
        return EvaluationPassesEnded(passes=found) if found else None

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard the open groups."""
        self._with_graph.clear()
        for model in self._models.values():
            model.group = None if model.stepped else model.group

    def on_watch_ended(self, event: WatchEnded) -> EvaluationPassesEnded | None:
        """Return the last evaluations."""
        found: list[EvaluationPass] = []
        for model in self._models.values():
            if not model.stepped:
                found += self._decide_loaded(model)
                continue
            earlier, model.undecided = model.undecided, []
            self._end_group(model)
            for group in (*earlier, *model.undecided):
                found += self._decide(model, group, at_end=group not in earlier)
        return EvaluationPassesEnded(passes=found) if found else None

    def _end_group(self, model: _Model) -> None:
        group, model.group = model.group, None
        if group is None:
            model.updates_without_calls += 1
            return
        if group.calls and model.updates_without_calls >= MIN_UPDATES:
            model.undecided.append(group)
        model.updates_without_calls = 0

    def _decide(self, model: _Model, group: _Group, *, at_end: bool) -> Iterable[EvaluationPass]:
        """Return the pass if the calls of a group are an evaluation."""
        rows = torch.cat([each.cpu() for each in group.rows])
        if model.feeds_another or _repeats(rows):
            return []
        trained = [each.cpu() for each in (*model.trained, *group.trained_later)]
        share = torch.isin(rows, torch.cat(trained)).double().mean().item() if trained else 0.0
        is_test = at_end and group.calls[0].location not in model.lines  # what follows the training trains nothing
        dropout = all(call.dropout_active for call in group.calls)
        if share > MAX_TRAINED_SHARE and not (is_test and dropout):
            return []
        return [EvaluationPass(NO_LOADER, group.calls[0].update, calls=group.calls, batches=len(group.calls))]

    def _decide_loaded(self, model: _Model) -> Iterable[EvaluationPass]:
        """Return the calls of a model that is used with loaded weights only, but not as the teacher of another one."""
        group = model.group
        if not model.loaded or group is None or not 0 < len({call.update for call in group.calls}) <= MAX_USES:
            return []
        if _repeats(torch.cat([each.cpu() for each in group.rows])):
            return []
        return [EvaluationPass(NO_LOADER, group.calls[0].update, calls=group.calls, batches=len(group.calls))]


def _repeats(rows: Tensor) -> bool:
    return len(rows.unique()) < (1 - MAX_REPEATED_SHARE) * len(rows)
