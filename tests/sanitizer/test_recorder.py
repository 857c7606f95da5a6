from __future__ import annotations

import dataclasses
import gc
import math
import sys
from typing import Any

import pytest

from trueloop.core.downsampling import MAX_POINTS
from trueloop.failures.load import catalogue
from trueloop.sanitizer.dispatch import DetectorDispatcher, WatchedFailure
from trueloop.sanitizer.recorder import Recorder
from trueloop.tracing.events import (
    NO_REFS,
    BackwardEnded,
    BackwardStarted,
    BatchLoaded,
    GraphsAlive,
    LoaderExhausted,
    LoaderStarted,
    ModelCalled,
    ModeSet,
    Ref,
    Refs,
    StepTaken,
    TracingGap,
)

NET, ADAM, LOADER = Ref("Net", "Net"), Ref("AdamW", "AdamW"), Ref("DataLoader", "DataLoader")


def make_event(event_type: type[Any], update: int, time_s: float, **fields: Any) -> Any:
    """Create an event; fields without a value are None, zero or empty."""
    neutral = {Refs: NO_REFS, bool: False, int: 0, float: 0.0, str: ""}
    for field in dataclasses.fields(event_type):
        empty = () if str(field.type).startswith("tuple[") else None
        if field.default is dataclasses.MISSING:
            fields.setdefault(field.name, neutral.get(field.type, empty))
    return event_type(**fields | {"update": update, "backward_count": update, "time_s": time_s})


def observe(recorder: Recorder, event: Any) -> None:
    handler = recorder.handlers.get(type(event))
    if handler is not None:
        handler(event)


def batch(update: int, time_s: float, wait_s: float = 0.0) -> BatchLoaded:
    return make_event(
        BatchLoaded, update, time_s, loader=LOADER, epoch=update // 1000, index=update % 1000, wait_s=wait_s
    )


def call(update: int, time_s: float, seconds: float = 0.0, *, recomputed: bool = False) -> ModelCalled:
    return make_event(
        ModelCalled, update, time_s, model=NET, training=True, grad_mode=True, has_graph=True, loader=LOADER,
        seconds=seconds, recomputed=recomputed,
    )  # fmt: skip


def start(update: int, time_s: float) -> BackwardStarted:
    return make_event(BackwardStarted, update, time_s, loader=LOADER, batch=update)


def backward(update: int, time_s: float, seconds: float = 0.0, value: float | None = 1.0) -> BackwardEnded:
    return make_event(BackwardEnded, update, time_s, root_value=value, seconds=seconds)


def step(update: int, time_s: float, seconds: float = 0.0, **fields: Any) -> StepTaken:
    defaults: dict[str, Any] = {"optimizer": ADAM, "learning_rates": (0.1,), "grad_norm": 2.0}
    return make_event(StepTaken, update, time_s, seconds=seconds, **(defaults | fields))


def gap(update: int, time_s: float, updates: int) -> TracingGap:
    return make_event(TracingGap, update, time_s, updates=updates)


def test_the_time_of_an_update_is_split():
    recorder = Recorder()
    for update in range(5):
        now = update * 1.0
        observe(recorder, batch(update, now + 0.1, wait_s=0.1))
        observe(recorder, call(update, now + 0.3, seconds=0.2))
        observe(recorder, call(update, now + 0.5, seconds=0.1, recomputed=True))
        observe(recorder, backward(update, now + 0.6, seconds=0.3))
        observe(recorder, step(update, now + 0.9, seconds=0.2))
    rate = recorder.timing()
    assert rate is not None
    assert [
        rate.update_s,
        rate.data_share,
        rate.forward_share,
        rate.backward_share,
        rate.optimizer_share,
    ] == pytest.approx([1.0, 0.1, 0.2, 0.3, 0.2])


def test_a_closures_time_is_counted_once():
    recorder = Recorder()
    for update in range(3):
        observe(recorder, call(update, update + 0.3, seconds=0.3))
        observe(recorder, backward(update, update + 0.7, seconds=0.4))
        observe(recorder, step(update, update + 0.8, seconds=0.8, closure=True))
    rate = recorder.timing()
    assert rate is not None
    assert [rate.forward_share, rate.backward_share, rate.optimizer_share] == pytest.approx([0.3, 0.4, 0.1])


def test_shares_add_up_to_no_more_than_everything():
    recorder = Recorder()
    for update in range(3):  # an optimizer within the backward: its steps are in both
        observe(recorder, step(update, update * 0.5, seconds=0.4))
        observe(recorder, backward(update, update * 0.5, seconds=0.45))
    rate = recorder.timing()
    assert rate is not None
    assert rate.data_share + rate.forward_share + rate.backward_share + rate.optimizer_share <= 1 + 1e-9


def test_update_time_is_measured_between_bursts():
    recorder = Recorder()
    for update in range(4):
        observe(recorder, step(update, update * 1.0))
    observe(recorder, gap(104, 3.0 + 50.0, updates=100))
    observe(recorder, step(104, 54.0))
    rate = recorder.timing()
    assert rate is not None
    assert rate.update_s == 0.5


def sweep(recorder: Recorder, update: int, begun_s: float) -> None:
    """A validation of 9 s, of which the model takes 8."""
    observe(recorder, make_event(ModeSet, update, begun_s, module=NET, training=False, changed=True))
    observe(recorder, _started(update, begun_s, 0))
    observe(recorder, call(update, begun_s + 8.5, seconds=8.0))


def test_a_validation_pass_is_not_part_of_an_update():
    recorder = Recorder()
    for update in range(4):  # in full: one update a second, a sweep behind the second one
        now = update + (9.0 if update > 1 else 0.0)
        observe(recorder, call(update, now - 0.5, seconds=0.25))
        observe(recorder, step(update, now))
        if update == 1:
            sweep(recorder, 2, now)
    rate = recorder.timing()
    assert rate is not None
    assert (rate.update_s, rate.forward_share) == (1.0, 0.25)


def test_a_stretch_ends_at_an_evaluation_pass():
    recorder = Recorder()
    observe(recorder, step(0, 0.0))
    observe(recorder, step(1, 1.0))
    sweep(recorder, 22, 1.0 + 20 * 0.5)  # 20 updates nobody looked at closely, then the sweep and a few more
    observe(recorder, gap(30, 1.0 + 28 * 0.5 + 9.0, updates=28))
    observe(recorder, step(30, 24.25))  # the rest of an update
    observe(recorder, step(31, 25.25))
    rate = recorder.timing()
    assert rate is not None
    assert rate.update_s == 0.5


def test_a_few_updates_between_two_bursts_are_not_timed():
    recorder = Recorder()
    observe(recorder, step(0, 0.0))
    observe(recorder, step(1, 1.0))
    observe(recorder, gap(3, 9.0, updates=1))
    observe(recorder, step(3, 9.1))
    rate = recorder.timing()
    assert rate is not None
    assert rate.update_s == 1.0


def test_an_evaluation_in_every_update_is_part_of_it():
    recorder = Recorder()
    for update in range(3):
        observe(recorder, step(update, 10.0 * update))
        sweep(recorder, update + 1, 10.0 * update)
    rate = recorder.timing()
    assert rate is not None
    assert (rate.update_s, rate.forward_share) == (10.0, 0.8)


def test_mode_changes_within_an_update_are_no_evaluation():
    recorder = Recorder()
    for update in range(3):
        observe(recorder, make_event(ModeSet, update, update - 0.5, module=NET, training=True, changed=True))
        observe(recorder, make_event(ModeSet, update, update - 0.4, module=NET, training=False, changed=False))
        observe(recorder, step(update, update * 1.0))
    observe(recorder, gap(53, 27.0, updates=50))
    rate = recorder.timing()
    assert rate is not None
    assert rate.update_s == 0.5


def test_tracing_overhead_is_not_part_of_an_update():
    recorder = Recorder()
    for update in range(4):
        observe(recorder, call(update, update * 1.0 + 0.5, seconds=0.25))
        observe(recorder, step(update, update * 1.0 + 1.0, overhead_s=0.5 * (update + 1)))
    rate = recorder.timing()
    assert rate is not None
    assert (rate.update_s, rate.forward_share) == (0.5, 0.5)


def test_nothing_is_known_before_the_second_update():
    recorder = Recorder()
    assert recorder.timing() is None
    observe(recorder, step(0, 1.0))
    assert recorder.timing() is None


def test_every_series_has_its_updates():
    recorder = Recorder()
    for update in range(3):
        observe(recorder, backward(update, update, value=None if update == 1 else math.nan if update else 0.5))
        observe(recorder, step(update, update, grad_norm=None if update else 3.0, learning_rates=(0.1 * update, 7.0)))
    observe(recorder, make_event(GraphsAlive, 2, 2.0, count=40))
    series = recorder.series()
    assert list(series) == ["loss", "grad_norm", "lr", "live_graphs"]
    assert series["loss"].updates == (0, 2)
    assert math.isnan(series["loss"].values[1])
    assert (series["grad_norm"].values, series["live_graphs"].values) == ((3.0,), (40.0,))
    assert series["lr"].values == (0.0, 0.1, 0.2)


@pytest.mark.slow(reason="a million events")
def test_memory_is_constant_over_a_million_events():
    recorder = Recorder()
    judge = DetectorDispatcher([WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()])
    blocks: list[int] = []

    def live(updates: range) -> None:
        for update in updates:
            now = update * 1e-3
            epoch, place = divmod(update, 1000)
            events = [
                batch(update, now),
                call(update, now),
                start(update, now),
                backward(update, now),
                step(update, now),
            ]
            if place == 0:
                events.insert(0, _started(update, now, epoch))
            if place == 999:
                events.append(_exhausted(update, now, epoch))
            if update % 500 == 0:
                events.insert(0, gap(update, now, 400))
            for event in events:
                observe(recorder, event)
                judge.dispatch(event)
        gc.collect()
        blocks.append(sys.getallocatedblocks())

    live(range(20_000))
    for first in range(20_000, 200_000, 60_000):
        live(range(first, first + 60_000))
    assert judge.findings() is not None
    # A million events; 180 000 updates that kept one small object each would show 180 000 blocks.
    assert blocks[-1] - blocks[0] < 12_000, blocks
    assert len(recorder.series()["loss"].values) <= MAX_POINTS


def _started(update: int, now: float, epoch: int) -> LoaderStarted:
    return make_event(
        LoaderStarted, update, now, loader=LOADER, epoch=epoch, sampler="RandomSampler", shuffles=True, batch_size=4
    )


def _exhausted(update: int, now: float, epoch: int) -> LoaderExhausted:
    return make_event(LoaderExhausted, update, now, loader=LOADER, epoch=epoch, batches=1000, backwards=1000)
