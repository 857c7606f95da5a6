"""Derives evaluation passes from events: passes of a trained model over a loader on which it is not trained."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

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

MAX_CALLS: Final = 64  # calls of one pass that are recorded


@dataclass(slots=True)
class EvaluationPass:
    """One pass over a loader, up to its latest batch."""

    loader: Ref
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


class EvaluationPassTracker:
    """Finds passes in which a trained model is called from a loader's start to its end, without training.

    Later passes show what a pass is for, so all passes between two updates are returned together, when the later
    update starts or the run ends.
    """

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (
        LoaderStarted, ModelCalled, BackwardStarted, StepTaken, LoaderExhausted, TracingGap, WatchEnded
    )  # fmt: skip

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

    def observe(self, event: Any) -> EvaluationPassesEnded | None:
        """Process an event; if an update starts or the run ends, return the passes that have ended before.

        This includes passes that were left before their loader's end, which is known only when the loader is started
        again after an update, or the run ends.
        """
        ended = self._process(event)
        if not ended and not self._left_early:  # the usual case
            return None
        left, self._left_early = self._left_early, []
        return EvaluationPassesEnded(
            passes=ended, left_early=[current for current in left if current.loader not in self._training_loaders]
        )

    def _process(self, event: Any) -> Sequence[EvaluationPass]:
        kind = type(event)
        if kind is ModelCalled:
            self._on_call(event)
        elif kind is StepTaken:
            if event.parameters is not self._latest:
                self._latest = event.parameters
                self._stepped_parameters.update(event.parameters)
            return self._on_training()
        elif kind is BackwardStarted:
            if event.loader is not None:
                self._training_loaders.add(event.loader)
            return self._on_training()
        elif isinstance(event, LoaderStarted):
            self._on_start(event)
        elif isinstance(event, LoaderExhausted):
            self._on_end(event)
        elif isinstance(event, TracingGap):
            self._on_gap()
        elif isinstance(event, WatchEnded):
            self._leave_early(*self._open_passes.values())
            return self._take_ended()
        return ()

    def _on_start(self, event: LoaderStarted) -> None:
        before = self._open_passes.get(event.loader)
        untrained = before is not None and bool(before.calls) and not before.trained
        if before is not None and not untrained:
            self._leave_early(before)
        self._open_passes[event.loader] = EvaluationPass(event.loader, event.update, partly_traced=untrained)
        self._has_new_pass = True

    def _on_call(self, event: ModelCalled) -> None:
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

    def _on_training(self) -> Sequence[EvaluationPass]:
        if self._has_new_pass:
            self._has_new_pass = False
            for current in self._open_passes.values():
                if not current.trained:
                    current.left_early = current.trained = True
        return self._take_ended() if self._ended else ()

    def _on_gap(self) -> None:
        self._ended = []
        for current in self._open_passes.values():
            current.partly_traced = True

    def _leave_early(self, *passes: EvaluationPass) -> None:
        """Record those passes that were certainly left before their loader's end."""
        for current in passes:
            certain = (current.left_early or not current.trained) and not current.partly_traced and not current.repeated
            if certain and len(current.calls) > 1:
                current.batches = len(current.calls)
                self._left_early.append(current)

    def _on_end(self, event: LoaderExhausted) -> None:
        current = self._open_passes.pop(event.loader, None)
        if current is not None and current.calls and not current.trained and event.backwards == 0:
            current.batches = event.batches
            self._ended.append(current)

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


class HeldOutTracker:
    """Finds evaluations of a trained model on another loader."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (BackwardStarted, BackwardEnded, ModelCalled, LoaderExhausted)

    def __init__(self) -> None:
        self._training_loader: Ref | None = None
        self._trained_parameters: Refs = NO_REFS
        self._latest: Refs = NO_REFS
        self._trained_on: weakref.WeakKeyDictionary[Ref, Ref] = weakref.WeakKeyDictionary()

    def observe(self, event: Any) -> HeldOutEvaluated | None:
        """Process an event; return the evaluation that it ends, or None."""
        kind = type(event)
        if kind is BackwardStarted:
            if event.loader is not None and event.loader is not self._training_loader:
                self._training_loader, self._trained_parameters, self._latest = event.loader, NO_REFS, NO_REFS
        elif kind is BackwardEnded:
            if event.reached_parameters is not self._latest:
                self._latest = event.reached_parameters
                self._trained_parameters |= event.reached_parameters
        elif kind is ModelCalled:
            loader, training_loader = event.loader, self._training_loader
            if loader is None or training_loader is None or loader is training_loader:
                return None
            if not self._trained_parameters.isdisjoint(event.parameters):
                self._trained_on[loader] = training_loader
        elif kind is LoaderExhausted:
            training_loader = self._trained_on.pop(event.loader, None)
            if training_loader is not None and not event.backwards:
                return HeldOutEvaluated(loader=event.loader, training_loader=training_loader)
        return None


DERIVED_EVENTS: Final[Mapping[type[Event], type[EvaluationPassTracker | HeldOutTracker]]] = {
    EvaluationPassesEnded: EvaluationPassTracker,
    HeldOutEvaluated: HeldOutTracker,
}
"""Derived events -> the tracker that derives them."""
