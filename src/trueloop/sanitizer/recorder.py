"""Records the numbers of a run in constant memory: losses, gradient norms, learning rates and times of updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from trueloop.core.downsampling import DownsampledSeries, max_points
from trueloop.core.findings import LayerGradientNorms, Series, UpdateTiming
from trueloop.sanitizer.layer_norms import LayerNormRecorder
from trueloop.tracing.events import (
    BackwardEnded,
    BatchLoaded,
    Event,
    GraphsAlive,
    LoaderStarted,
    LossesRead,
    ModelCalled,
    ModeSet,
    NumbersSampled,
    StepTaken,
    TracingGap,
)

SERIES: Final = ("loss", "loss_read", "grad_norm", "lr", "live_graphs")
MIN_STRETCH: Final = 5  # updates that are timed together, as the end of the interval may be off by one update


class Recorder:
    """Records the series of a run, from all backward passes and optimizers.

    Args:
        on_value: called with every new value: name of the series, update, value.
    """

    def __init__(self, on_value: Callable[[str, int, float], None] = lambda series, update, value: None) -> None:
        self._overhead_before_s = 0.0
        self._on_value = on_value
        self.layer_norms = LayerNormRecorder()
        """Recorder of the gradient norm of each layer."""
        self._series = {name: DownsampledSeries[float](max_points(name)) for name in SERIES}
        self._sampled = DownsampledSeries[float]()
        self._uninterrupted, self._other_updates = _UpdateTimes(), _UpdateTimes()
        self._time = _TimeSplit()
        self._last_s: float | None = None
        self._updates_done: int | None = None
        """Number of updates until ``_last_s`` if that is the time of a step; None if a gap in tracing ended then."""
        self._interrupted = False
        """Whether something other than training has started since ``_last_s``, such as a validation pass."""
        self.handlers: Mapping[type[Event], Callable[[Any], None]] = {
            BatchLoaded: self._batch,
            ModelCalled: self._forward,
            BackwardEnded: self._backward,
            LossesRead: self._losses_read,
            NumbersSampled: self._numbers,
            StepTaken: self._step,
            GraphsAlive: self._graphs,
            TracingGap: self._gap,
            LoaderStarted: self._interrupt,
            ModeSet: self._mode,
        }
        """Event type -> its handler; other events are ignored."""

    def series(self) -> dict[str, Series]:
        """Return every series that has a value."""
        return {
            name: Series(updates=tuple(updates), values=tuple(values))
            for name, points in self._series.items()
            for updates, values in [points.with_newest()]
            if values
        }

    def layer_gradient_norms(self) -> LayerGradientNorms | None:
        """Return the gradient norm of each layer; None if none was read."""
        return self.layer_norms.norms()

    def timing(self) -> UpdateTiming | None:
        """Return the time of an update and its parts; None before the second update.

        If possible, the time is measured between bursts of full tracing, which slow the program down, and without
        updates that were interrupted by other work, such as a validation pass.
        """
        timed = self._uninterrupted if self._uninterrupted.seconds.values else self._other_updates
        times = self._sampled.values or timed.seconds.values
        if not times:
            return None
        data, forward, backward, optimizer = timed.shares()
        return UpdateTiming(
            update_s=median(times),
            data_share=data,
            forward_share=forward,
            backward_share=backward,
            optimizer_share=optimizer,
        )

    def _batch(self, event: BatchLoaded) -> None:
        self._time.data += event.wait_s

    def _forward(self, event: ModelCalled) -> None:
        if not event.recomputed:  # a recomputed call is part of a backward pass
            self._time.forward += event.seconds

    def _backward(self, event: BackwardEnded) -> None:
        self._time.backward += event.seconds
        if event.root_value is not None:
            self._add("loss", event.update, event.root_value)

    def _step(self, event: StepTaken) -> None:
        update = event.update
        self._time.step(event.seconds, closure=event.closure)
        if self._last_s is not None:
            seconds = self._seconds_since(event, self._last_s)
            uninterrupted = self._updates_done is not None and not self._interrupted
            (self._uninterrupted if uninterrupted else self._other_updates).add(update, seconds, self._time)
        self._begin(event, update + 1)
        if event.grad_norm is not None:
            self._add("grad_norm", update, event.grad_norm)
        if event.learning_rates:
            self._add("lr", update, event.learning_rates[0])
        if event.gradient_norms:
            self.layer_norms.add(update, event.optimizer.name, event.gradient_norms)

    def _losses_read(self, event: LossesRead) -> None:
        for update, value in event.losses:
            self._add("loss_read", update, value)

    def _numbers(self, event: NumbersSampled) -> None:
        if event.loss is not None:
            self._add("loss", event.step, event.loss)
        if event.gradient_norms:
            self._add("grad_norm", event.step, math.hypot(*event.gradient_norms.values()))
            self.layer_norms.add(event.step, event.optimizer.name, event.gradient_norms)
        if event.learning_rates:
            self._add("lr", event.step, event.learning_rates[0])

    def _graphs(self, event: GraphsAlive) -> None:
        self._add("live_graphs", event.update, float(event.count))

    def _add(self, series: str, update: int, value: float) -> None:
        self._series[series].add(update, value)
        self._on_value(series, update, value)

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
        """Record the time of the updates that were not fully traced, up to the first interruption."""
        if self._interrupted or self._last_s is None or self._updates_done is None:
            return
        updates = event.update - self._updates_done
        if updates >= MIN_STRETCH:
            self._sampled.add(event.update, self._seconds_since(event, self._last_s) / updates)

    def _seconds_since(self, event: Event, last_s: float) -> float:
        """Return the seconds from ``last_s`` until an event, without tracing overhead."""
        return event.time_s - last_s - (event.overhead_s - self._overhead_before_s)

    def _begin(self, event: Event, done: int | None) -> None:
        self._time.begin()
        self._last_s, self._updates_done, self._interrupted = event.time_s, done, False
        self._overhead_before_s = event.overhead_s


class _TimeSplit:
    """Seconds spent in each part of an update: of the current update, or the sum of many."""

    __slots__ = ("backward", "data", "forward", "optimizer")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start the next update."""
        self.data = self.forward = self.backward = self.optimizer = 0.0

    def step(self, seconds: float, *, closure: bool) -> None:
        """Add an optimizer step, without its closure, which is counted under forward and backward."""
        self.optimizer += max(0.0, seconds - self.forward - self.backward) if closure else seconds

    def add(self, other: _TimeSplit) -> None:
        """Add the seconds of another update."""
        self.data += other.data
        self.forward += other.forward
        self.backward += other.backward
        self.optimizer += other.optimizer

    def total(self) -> float:
        """Return the sum of all parts."""
        return self.data + self.forward + self.backward + self.optimizer


class _UpdateTimes:
    """The time of each update, from step to step, and the seconds spent in each part of all updates."""

    __slots__ = ("_parts", "_total_s", "seconds")

    def __init__(self) -> None:
        self.seconds = DownsampledSeries[float]()
        self._parts = _TimeSplit()
        self._total_s = 0.0

    def add(self, update: int, total_s: float, split: _TimeSplit) -> None:
        """Add one update."""
        self.seconds.add(update, total_s)
        self._parts.add(split)
        self._total_s += max(total_s, split.total())  # a step within a backward pass counts in two parts

    def shares(self) -> Sequence[float]:
        """Return the shares of data, forward, backward and optimizer; their sum is at most 1."""
        parts = self._parts
        each = (parts.data, parts.forward, parts.backward, parts.optimizer)
        return [part / self._total_s if self._total_s else 0.0 for part in each]
