"""Frames are sent while the page paints them, and contain every point of the curves once."""

from __future__ import annotations

import contextlib
import math

import pytest

from trueloop.app.web.wire_format import decode_frame
from trueloop.lab import frames as module
from trueloop.lab.frames import FrameSender, RunningMean
from trueloop.lab.teaching.program import Program
from trueloop.lab.teaching.script import teaching_loop
from trueloop.lab.teaching.script_run import ScriptRun
from trueloop.lab.teaching.simulation import Simulation


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: clock[0])
    return clock


def start(frames: FrameSender, **settings: object) -> ScriptRun:
    simulation = Simulation(samples=40, batch=8, epochs=1, **settings)  # pyright: ignore[reportArgumentType]
    script_run = ScriptRun(
        Program(teaching_loop(simulation).text()), lambda script_run: None, isolated=contextlib.nullcontext
    )
    script_run.run()
    frames.start_run(7)
    return script_run


def test_at_most_two_frames_are_unpainted(now: list[float]):
    sent: list[bytes] = []
    frames = FrameSender(sent.append)
    script_run = start(frames)
    assert frames.is_due
    frames.send(script_run, "running")
    assert not frames.is_due  # too soon
    now[0] += 1
    frames.send(script_run, "running")
    now[0] += 1
    assert not frames.page_keeps_up
    assert not frames.page_stopped
    now[0] += 10
    assert frames.page_stopped
    frames.acknowledge(2)
    assert frames.is_due
    assert not frames.page_stopped
    frames.acknowledge(10**9)  # frames that were never sent are ignored
    for _ in range(2):
        frames.send(script_run, "running")
    assert not frames.page_keeps_up


def test_every_point_is_in_one_frame_and_weights_in_some(now: list[float]):
    sent: list[bytes] = []
    frames = FrameSender(sent.append)
    frames.neurons = True
    script_run = start(frames, hidden=(3,))
    for _ in range(module.LARGE_FRAME_INTERVAL):
        frames.send(script_run, "running")
    headers = [decode_frame(data)[0] for data in sent]
    assert [header["points"]["update"] for header in headers] == [[0, 1, 2, 3], [], []]
    assert [header["run"] for header in headers] == [7] * 3
    assert [("weights" in header, len(header["planes"])) for header in headers] == [(True, 4), (False, 1), (False, 1)]
    assert len(headers[0]["weights"]["layers.0.weight"]) == 3
    frames.send(script_run, "paused")
    assert len(decode_frame(sent[-1])[0]["planes"]) == 4


def test_the_weights_of_a_large_network_are_not_sent(now: list[float]):
    sent: list[bytes] = []
    frames = FrameSender(sent.append)
    frames.send(start(frames, hidden=(64, 64)), "paused")
    assert "weights" not in decode_frame(sent[0])[0]


def test_the_smoothed_loss_starts_without_bias_and_leaves_out_non_finite_values():
    mean = RunningMean()
    assert mean.add(3.0) == pytest.approx(3.0)
    assert mean.add(3.0) == pytest.approx(3.0)
    assert math.isnan(mean.add(math.inf))
    assert 2.0 < mean.add(1.0) < 2.5  # the weighted mean of 3, 3 and 1
    for _ in range(200):
        mean.add(1.0)
    assert mean.add(1.0) == pytest.approx(1.0, abs=1e-4)
