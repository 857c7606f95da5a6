"""Keeps the numbers of a run for its report, in constant memory: loss, gradient norm, rates, where the time went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from trueloop.core.downsampling import DownsampledSeries
from trueloop.core.findings import LayerGradientNorms, Series, UpdateTiming
from trueloop.sanitizer.layer_norms import LayerNormRecorder
from trueloop.tracing.events import (
    BackwardEnded,
    BatchLoaded,
    Event,
    GraphsAlive,
    LoaderStarted,
    ModelCalled,
    ModeSet,
    StepTaken,
    TracingGap,
)

STRETCH: Final = 5  # updates; where a stretch ends within one, its pace is off by a fifth at most


class Recorder:
    """Hears the events of a run. Loss, norm and rates are of whichever backward or optimizer came.

    Args:
        on_value: called with every value as it comes: series, update, value.
    """

    def __init__(self, on_value: Callable[[str, int, float], None] = lambda series, update, value: None) -> None:
        self._busy_before_s = 0.0
        self._told = on_value
        self.by_layer = LayerNormRecorder()
        """The gradient's norm of each layer."""
        self._series = {name: DownsampledSeries[float]() for name in ("loss", "grad_norm", "lr", "live_graphs")}
        self._between, self._whole, self._broken = DownsampledSeries[float](), _Timed(), _Timed()
        self._time = _TimeSplit()
        self._last_s: float | None = None
        self._done: int | None = None
        """Updates up to then, where that was a step; None where it was a gap's end."""
        self._interrupted = False
        """Something else than training began since then, such as a validation sweep."""
        self.take: Mapping[type[Event], Callable[[Any], None]] = {
            BatchLoaded: self._batch,
            ModelCalled: self._forward,
            BackwardEnded: self._backward,
            StepTaken: self._step,
            GraphsAlive: self._graphs,
            TracingGap: self._gap,
            LoaderStarted: self._interrupt,
            ModeSet: self._mode,
        }
        """What takes in an event of each kind; of others nothing is kept. An event goes past many, and fast."""

    def series(self) -> dict[str, Series]:
        """Return every series that has a value."""
        return {
            name: Series(updates=tuple(thinned.updates), values=tuple(thinned.values))
            for name, thinned in self._series.items()
            if thinned.values
        }

    def layer_gradient_norms(self) -> LayerGradientNorms | None:
        """Return the gradient's norm by layer; None where none was read."""
        return self.by_layer.norms()

    def timing(self) -> UpdateTiming | None:
        """Return where the time of an update went; None before the second update.

        The pace is that of the stretches between two full views, which nothing of ours slows down, where there were
        any. What else a program does between two updates, such as a validation sweep, is left out of it as long as
        there are updates without.
        """
        timed = self._whole if self._whole.seconds.values else self._broken
        times = self._between.values or timed.seconds.values
        if not times:
            return None
        data, forward, backward, optimizer = timed.shares()
        return UpdateTiming(update_s=median(times), data_share=data, forward_share=forward, backward_share=backward, optimizer_share=optimizer)

    def _batch(self, event: BatchLoaded) -> None:
        self._time.data += event.wait_s

    def _forward(self, event: ModelCalled) -> None:
        if not event.recomputed:  # that is a part of its backward
            self._time.forward += event.seconds

    def _backward(self, event: BackwardEnded) -> None:
        self._time.backward += event.seconds
        if event.root_value is not None:
            self._add("loss", event.update, event.root_value)

    def _step(self, event: StepTaken) -> None:
        update = event.update
        self._time.step(event.seconds, closure=event.closure)
        if self._last_s is not None:
            seconds = self._since(event, self._last_s)
            whole = self._done is not None and not self._interrupted
            (self._whole if whole else self._broken).add(update, seconds, self._time)
        self._begin(event, update + 1)
        if event.grad_norm is not None:
            self._add("grad_norm", update, event.grad_norm)
        if event.learning_rates:
            self._add("lr", update, event.learning_rates[0])
        if event.parameter_norms:
            self.by_layer.add(event)

    def _graphs(self, event: GraphsAlive) -> None:
        self._add("live_graphs", event.update, float(event.count))

    def _add(self, series: str, update: int, value: float) -> None:
        self._series[series].add(update, value)
        self._told(series, update, value)

    def _gap(self, event: TracingGap) -> None:
        self._end_stretch(event)
        self._begin(event, None)

    def _mode(self, event: ModeSet) -> None:
        if event.changed and not event.training:
            self._interrupt(event)

    def _interrupt(self, event: Event) -> None:
        self._end_stretch(event)
        self._interrupted = True

    def _end_stretch(self, event: Event) -> None:
        """Note the pace of the updates that were not watched in full, up to the first interruption."""
        if self._interrupted or self._last_s is None or self._done is None:
            return
        updates = event.update - self._done
        if updates >= STRETCH:
            self._between.add(event.update, self._since(event, self._last_s) / updates)

    def _since(self, event: Event, last_s: float) -> float:
        """Return the program's own seconds until an event."""
        return event.time_s - last_s - (event.overhead_s - self._busy_before_s)

    def _begin(self, event: Event, done: int | None) -> None:
        self._time.begin()
        self._last_s, self._done, self._interrupted = event.time_s, done, False
        self._busy_before_s = event.overhead_s


class _TimeSplit:
    """Seconds by what they were spent on, of the update that is on its way or of many."""

    __slots__ = ("backward", "data", "forward", "optimizer")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start the next update."""
        self.data = self.forward = self.backward = self.optimizer = 0.0

    def step(self, seconds: float, *, closure: bool) -> None:
        """Note an optimizer's step; what its closure did is counted under forward and backward already."""
        self.optimizer += max(0.0, seconds - self.forward - self.backward) if closure else seconds

    def add(self, other: _TimeSplit) -> None:
        """Take in those of another update."""
        self.data += other.data
        self.forward += other.forward
        self.backward += other.backward
        self.optimizer += other.optimizer

    def total(self) -> float:
        """Return all of them together."""
        return self.data + self.forward + self.backward + self.optimizer


class _Timed:
    """Updates from step to step: how long each took, and on what all of them together."""

    __slots__ = ("_parts", "_total_s", "seconds")

    def __init__(self) -> None:
        self.seconds = DownsampledSeries[float]()
        self._parts = _TimeSplit()
        self._total_s = 0.0

    def add(self, update: int, total_s: float, split: _TimeSplit) -> None:
        """Take in one update."""
        self.seconds.add(update, total_s)
        self._parts.add(split)
        self._total_s += max(total_s, split.total())  # steps inside a backward are in two of the parts

    def shares(self) -> Sequence[float]:
        """Return the shares of data, forward, backward, optimizer: at most 1 together."""
        parts = self._parts
        each = (parts.data, parts.forward, parts.backward, parts.optimizer)
        return [part / self._total_s if self._total_s else 0.0 for part in each]
