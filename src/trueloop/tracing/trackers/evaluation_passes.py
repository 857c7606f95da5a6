"""Derives evaluation passes from events: passes of a trained model over a loader on which it is not trained."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from trueloop.tracing.events import (
    NO_REFS,
    BackwardEnded,
    BackwardStarted,
    Event,
    LoaderExhausted,
    LoaderStarted,
    ModelCalled,
    Ref,
    Refs,
    StepTaken,
    TracingGap,
    WatchEnded,
)
from trueloop.tracing.tracker import Tracker

MAX_CALLS: Final = 64  # calls of one pass that are recorded
NO_LOADER: Final = Ref("", "")  # the loader of evaluations on data that no DataLoader returned


@dataclass(slots=True)
class EvaluationPass:
    """One pass over a loader, up to its latest batch."""

    loader: Ref
    """The loader, or `NO_LOADER`."""
    update: int
    calls: list[ModelCalled] = field(default_factory=list[ModelCalled])
    """Calls of trained models on batches of the pass; at most `MAX_CALLS`."""
    batches: int = 0
    trained: bool = False
    """Whether a backward pass or a step was run during this pass, so that it is a training pass."""
    repeated: bool = False
    """Whether the model was called on the loader, or on a batch of it, again before the next update, as in Monte Carlo
    sampling. Calls of another model, such as a moving average, do not count."""
    graph_used: bool = False
    """Whether the graph of a call was run backward before the model was called again on the same batch."""
    left_early: bool = False
    """Whether training followed the latest call, so that the pass may have been left before the loader's end."""
    partly_traced: bool = False
    """Whether the pass was not fully traced, or no update separates it from an earlier pass over its loader."""

    @property
    def models(self) -> Sequence[Ref]:
        """Models that were called, each once."""
        return list(dict.fromkeys(call.model for call in self.calls))


@dataclass(slots=True, kw_only=True, eq=False)
class EvaluationPassesEnded(Event):
    """RARE. Evaluation passes have ended, and so has the watch, or an update follows; from `EvaluationPassTracker`."""

    passes: Sequence[EvaluationPass] = ()
    left_early: Sequence[EvaluationPass] = ()
    """Passes that were left before their loader's end; how its other samples are used is unknown."""


class EvaluationPassTracker(Tracker):
    """Finds passes in which a trained model is called from a loader's start to its end, without training.

    Later passes show what a pass is for, so all passes between two updates are returned together, when the later
    update starts or the run ends. This includes passes that were left before their loader's end, which is known only
    when the loader is started again after an update, or the run ends.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (EvaluationPassesEnded,)

    def __init__(self) -> None:
        self._open_passes: dict[Ref, EvaluationPass] = {}
        self._has_new_pass = False
        """Whether a pass was started since the latest backward pass or step."""
        self._ended: list[EvaluationPass] = []
        self._stepped_parameters: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._latest: Refs = NO_REFS
        """Parameters of the latest step."""
        self._training_loaders: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Loaders of batches that were trained on."""
        self._left_early: list[EvaluationPass] = []

    def on_step_taken(self, event: StepTaken) -> EvaluationPassesEnded | None:
        """Record the trained parameters; return the passes that ended before the update."""
        if event.parameters is not self._latest:
            self._latest = event.parameters
            self._stepped_parameters.update(event.parameters)
        return self._on_training()

    def on_backward_started(self, event: BackwardStarted) -> EvaluationPassesEnded | None:
        """Record the loader as one that is trained on; return the passes that ended before the backward pass."""
        if event.loader is not None:
            self._training_loaders.add(event.loader)
        return self._on_training()

    def on_loader_started(self, event: LoaderStarted) -> EvaluationPassesEnded | None:
        """Open a pass; return the earlier pass over the loader if it was left early."""
        before = self._open_passes.get(event.loader)
        untrained = before is not None and bool(before.calls) and not before.trained
        if before is not None and not untrained:
            self._leave_early(before)
        self._open_passes[event.loader] = EvaluationPass(event.loader, event.update, partly_traced=untrained)
        self._has_new_pass = True
        return self._passes_ended(())

    def on_loader_exhausted(self, event: LoaderExhausted) -> None:
        """End a pass, if it was an evaluation."""
        current = self._open_passes.pop(event.loader, None)
        if current is not None and current.calls and not current.trained and event.backwards == 0:
            current.batches = event.batches
            self._ended.append(current)

    def on_watch_ended(self, event: WatchEnded) -> EvaluationPassesEnded | None:
        """Return the last passes."""
        self._leave_early(*self._open_passes.values())
        return self._passes_ended(self._take_ended())

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard passes that were not fully traced."""
        self._ended = []
        for current in self._open_passes.values():
            current.partly_traced = True

    def on_model_called(self, event: ModelCalled) -> None:
        """Record a call of a trained model in the pass over its loader."""
        if event.loader is None:  # again on the same batch
            for current in self._open_passes.values():
                if current.calls and current.calls[-1].model is event.model:
                    current.repeated = True
                    if event.previous_graph_used:
                        current.graph_used = True
            return
        current = self._open_passes.get(event.loader)
        if current is not None:
            current.left_early = False
        if current is None or current.trained or event.recomputed or len(current.calls) >= MAX_CALLS:
            return
        if any(parameter in self._stepped_parameters for parameter in event.parameters):
            current.calls.append(event)
            for ended in self._ended:
                if ended.loader is event.loader and not ended.calls[0].parameters.isdisjoint(event.parameters):
                    ended.repeated = current.repeated = True

    def _on_training(self) -> EvaluationPassesEnded | None:
        if self._has_new_pass:
            self._has_new_pass = False
            for current in self._open_passes.values():
                if not current.trained:
                    current.left_early = current.trained = True
        return self._passes_ended(self._take_ended() if self._ended else ())

    def _passes_ended(self, ended: Sequence[EvaluationPass]) -> EvaluationPassesEnded | None:
        if not ended and not self._left_early:  # the usual case
            return None
        left, self._left_early = self._left_early, []
        return EvaluationPassesEnded(
            passes=ended, left_early=[current for current in left if current.loader not in self._training_loaders]
        )

    def _leave_early(self, *passes: EvaluationPass) -> None:
        """Record those passes that were certainly left before their loader's end."""
        for current in passes:
            certain = (current.left_early or not current.trained) and not current.partly_traced and not current.repeated
            if certain and len(current.calls) > 1:
                current.batches = len(current.calls)
                self._left_early.append(current)

    def _take_ended(self) -> Sequence[EvaluationPass]:
        ended, self._ended = self._ended, []
        return [current for current in ended if current.loader not in self._training_loaders]


@dataclass(slots=True, kw_only=True, eq=False)
class HeldOutEvaluated(Event):
    """RARE. A trained model went through another loader without a backward pass; from `HeldOutTracker`."""

    loader: Ref
    """The loader of the evaluation, which has ended."""
    training_loader: Ref
    """The loader that the model is trained on."""


class HeldOutTracker(Tracker):
    """Finds evaluations of a trained model on another loader."""

    emits: ClassVar[tuple[type[Event], ...]] = (HeldOutEvaluated,)

    def __init__(self) -> None:
        self._training_loader: Ref | None = None
        self._trained_parameters: Refs = NO_REFS
        self._latest: Refs = NO_REFS
        self._trained_on: weakref.WeakKeyDictionary[Ref, Ref] = weakref.WeakKeyDictionary()

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Record the loader that is trained on."""
        if event.loader is not None and event.loader is not self._training_loader:
            self._training_loader, self._trained_parameters, self._latest = event.loader, NO_REFS, NO_REFS

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the parameters that are trained on the loader."""
        if event.reached_parameters is not self._latest:
            self._latest = event.reached_parameters
            self._trained_parameters |= event.reached_parameters

    def on_model_called(self, event: ModelCalled) -> None:
        """Record a call of the trained model on another loader."""
        loader, training_loader = event.loader, self._training_loader
        if loader is None or training_loader is None or loader is training_loader:
            return
        if not self._trained_parameters.isdisjoint(event.parameters):
            self._trained_on[loader] = training_loader

    def on_loader_exhausted(self, event: LoaderExhausted) -> HeldOutEvaluated | None:
        """Return the evaluation that has ended, or None."""
        training_loader = self._trained_on.pop(event.loader, None)
        if training_loader is None or event.backwards:
            return None
        return HeldOutEvaluated(loader=event.loader, training_loader=training_loader)
