"""Held-out sweeps, as seen from events: a trained model goes through a loader it is not trained on."""

from __future__ import annotations

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

MAX_CALLS: Final = 64  # of one sweep that are kept


@dataclass(slots=True)
class EvaluationPass:
    """One pass over a loader, as far as the newest batches."""

    loader: Ref
    update: int
    calls: list[ModelCalled] = field(default_factory=list[ModelCalled])
    """Of trained models, on its batches; at most `MAX_CALLS`."""
    batches: int = 0
    trained: bool = False
    """A backward or a step has happened within it: it is no sweep."""
    repeated: bool = False
    """Its model went through the loader once more before the next update, or through a batch of it: several samples of
    each prediction are wanted. Another model, such as a moving average, may follow."""
    graph_used: bool = False
    """A graph of one of its calls was run backward before the same model was called once more on the same batch."""
    left_early: bool = False
    """What was trained meanwhile came after its newest call: it may have been left before its loader's end."""
    partly_traced: bool = False
    """It was not watched throughout, or its loader had been left before without an update since."""

    @property
    def models(self) -> Sequence[Ref]:
        """The models that were called."""
        return list(dict.fromkeys(call.model for call in self.calls))


@dataclass(slots=True, kw_only=True, eq=False)
class EvaluationPassesEnded(Event):
    """RARE. Sweeps are over, and an update or nothing has followed; found by `EvaluationPassTracker` for all detectors at once."""

    passes: Sequence[EvaluationPass] = ()
    left_early: Sequence[EvaluationPass] = ()
    """Passes that were left before their loader's end: what its other samples are for is not known."""


class EvaluationPassTracker:
    """Finds sweeps: from the start of a loader to its end without a backward or a step, over a trained model.

    What a sweep was for shows in what comes after it, so all those between two updates are returned together, when the
    later one begins or the run ends.
    """

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (
        LoaderStarted, ModelCalled, BackwardStarted, StepTaken, LoaderExhausted, TracingGap, WatchEnded
    )  # fmt: skip

    def __init__(self) -> None:
        self._open: dict[Ref, EvaluationPass] = {}
        self._fresh = False
        """One was opened since the latest backward or step."""
        self._ended: list[EvaluationPass] = []
        self._stepped: Refs = NO_REFS
        self._latest: Refs = NO_REFS
        """Of those, what the latest step was of."""
        self._training: set[Ref] = set()
        """Loaders that some backward's batch came from."""
        self._left: list[EvaluationPass] = []

    def observe(self, event: Any) -> EvaluationPassesEnded | None:
        """Take in an event; return the sweeps that are over, and followed by an update or by nothing.

        Also those that were left before their loader's end, as is certain only later: when the loader is started once
        more, after an update, or the run ends.
        """
        ended = self._ended_by(event)
        if not ended and not self._left:  # the usual case
            return None
        left, self._left = self._left, []
        return EvaluationPassesEnded(
            passes=ended, left_early=[sweep for sweep in left if sweep.loader not in self._training]
        )

    def _ended_by(self, event: Any) -> Sequence[EvaluationPass]:
        kind = type(event)
        if kind is ModelCalled:
            self._call(event)
        elif kind is StepTaken:
            if event.parameters is not self._latest:
                self._latest = event.parameters
                self._stepped |= event.parameters
            return self._train()
        elif kind is BackwardStarted:
            if event.loader is not None:
                self._training.add(event.loader)
            return self._train()
        elif isinstance(event, LoaderStarted):
            self._start(event)
        elif isinstance(event, LoaderExhausted):
            self._end(event)
        elif isinstance(event, TracingGap):
            self._miss()
        elif isinstance(event, WatchEnded):
            self._leave(*self._open.values())
            return self._release()
        return ()

    def _start(self, event: LoaderStarted) -> None:
        before = self._open.get(event.loader)
        untrained = before is not None and bool(before.calls) and not before.trained
        if before is not None and not untrained:
            self._leave(before)
        self._open[event.loader] = EvaluationPass(event.loader, event.update, partly_traced=untrained)
        self._fresh = True

    def _call(self, event: ModelCalled) -> None:
        if event.loader is None:  # once more on the same batch
            for sweep in self._open.values():
                if sweep.calls and sweep.calls[-1].model is event.model:
                    sweep.repeated = True
                    if event.previous_graph_used:
                        sweep.graph_used = True
            return
        sweep = self._open.get(event.loader)
        if sweep is not None:
            sweep.left_early = False
        if sweep is None or sweep.trained or event.recomputed or len(sweep.calls) >= MAX_CALLS:
            return
        if not event.parameters.isdisjoint(self._stepped):
            sweep.calls.append(event)
            for ended in self._ended:
                if ended.loader is event.loader and not ended.calls[0].parameters.isdisjoint(event.parameters):
                    ended.repeated = sweep.repeated = True

    def _train(self) -> Sequence[EvaluationPass]:
        if self._fresh:
            self._fresh = False
            for sweep in self._open.values():
                if not sweep.trained:
                    sweep.left_early = sweep.trained = True
        return self._release() if self._ended else ()

    def _miss(self) -> None:
        self._ended = []
        for sweep in self._open.values():
            sweep.partly_traced = True

    def _leave(self, *sweeps: EvaluationPass) -> None:
        """Take note of passes that surely do not go on."""
        for sweep in sweeps:
            certain = (sweep.left_early or not sweep.trained) and not sweep.partly_traced and not sweep.repeated
            if certain and len(sweep.calls) > 1:
                sweep.batches = len(sweep.calls)
                self._left.append(sweep)

    def _end(self, event: LoaderExhausted) -> None:
        sweep = self._open.pop(event.loader, None)
        if sweep is not None and sweep.calls and not sweep.trained and event.batches_with_backward == 0:
            sweep.batches = event.batches
            self._ended.append(sweep)

    def _release(self) -> Sequence[EvaluationPass]:
        ended, self._ended = self._ended, []
        return [sweep for sweep in ended if sweep.loader not in self._training]


@dataclass(slots=True, kw_only=True, eq=False)
class HeldOutEvaluated(Event):
    """RARE. A model that is trained has gone through another loader without a backward; found by `HeldOutTracker`."""

    loader: Ref
    """It went through this one, to its end."""
    training_loader: Ref
    """It is trained on that one."""


class HeldOutTracker:
    """Which loader a model was trained on that then goes through another one."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (BackwardStarted, BackwardEnded, ModelCalled, LoaderExhausted)

    def __init__(self) -> None:
        self._trainer: Ref | None = None
        self._received: Refs = NO_REFS
        self._latest: Refs = NO_REFS
        self._swept_by: weakref.WeakKeyDictionary[Ref, Ref] = weakref.WeakKeyDictionary()

    def observe(self, event: Any) -> HeldOutEvaluated | None:
        """Take in an event; return what it ends."""
        kind = type(event)
        if kind is BackwardStarted:
            if event.loader is not None and event.loader is not self._trainer:
                self._trainer, self._received, self._latest = event.loader, NO_REFS, NO_REFS
        elif kind is BackwardEnded:
            if event.reached_parameters is not self._latest:
                self._latest = event.reached_parameters
                self._received |= event.reached_parameters
        elif kind is ModelCalled:
            loader, trainer = event.loader, self._trainer
            if loader is None or trainer is None or loader is trainer:
                return None
            if not self._received.isdisjoint(event.parameters):
                self._swept_by[loader] = trainer
        elif kind is LoaderExhausted:
            trainer = self._swept_by.pop(event.loader, None)
            if trainer is not None and not event.batches_with_backward:
                return HeldOutEvaluated(loader=event.loader, training_loader=trainer)
        return None


DERIVED_EVENTS: Final[Mapping[type[Event], type[EvaluationPassTracker | HeldOutTracker]]] = {
    EvaluationPassesEnded: EvaluationPassTracker,
    HeldOutEvaluated: HeldOutTracker,
}
"""Events that are made of other events, and what finds them."""
