"""Frames are sent as long as they are painted, and hold every point of the curves once."""

from __future__ import annotations

import contextlib

import pytest

from trueloop.app.web.wire_format import decode_frame
from trueloop.lab import frames as module
from trueloop.lab.frames import FrameSender
from trueloop.lab.teaching.player import Play
from trueloop.lab.teaching.program import Program
from trueloop.lab.teaching.script import teaching_loop
from trueloop.lab.teaching.simulation import Simulation


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: clock[0])
    return clock


def played(frames: FrameSender, **settings: object) -> Play:
    simulation = Simulation(samples=40, batch=8, epochs=1, **settings)  # pyright: ignore[reportArgumentType]
    play = Play(Program(teaching_loop(simulation).text()), lambda play: None, isolated=contextlib.nullcontext)
    play.run()
    frames.start_run(7)
    return play


def test_two_frames_are_on_their_way_at_most_and_acknowledging_the_newest_is_enough(now: list[float]):
    sent: list[bytes] = []
    frames = FrameSender(sent.append)
    play = played(frames)
    assert frames.is_due
    frames.send(play, "running")
    assert not frames.is_due  # too soon
    now[0] += 1
    frames.send(play, "running")
    now[0] += 1
    assert not frames.page_keeps_up
    assert not frames.page_stopped
    now[0] += 10
    assert frames.page_stopped
    frames.acknowledge(2)
    assert frames.is_due
    assert not frames.page_stopped
    frames.acknowledge(10**9)  # nobody has painted what was never sent
    for _ in range(2):
        frames.send(play, "running")
    assert not frames.page_keeps_up


def test_every_point_is_in_one_frame_and_large_things_in_some(now: list[float]):
    sent: list[bytes] = []
    frames = FrameSender(sent.append)
    frames.neurons = True
    play = played(frames, hidden=(3,))
    for _ in range(module.LARGE_FRAME_INTERVAL):
        frames.send(play, "running")
    headers = [decode_frame(data)[0] for data in sent]
    assert [header["points"]["update"] for header in headers] == [[0, 1, 2, 3], [], []]
    assert [header["run"] for header in headers] == [7] * 3
    assert [("weights" in header, len(header["planes"])) for header in headers] == [(False, 1), (False, 1), (True, 4)]
    assert len(headers[-1]["weights"]["layers.0.weight"]) == 3
    frames.send(play, "paused")
    assert len(decode_frame(sent[-1])[0]["planes"]) == 4


def test_a_network_of_many_weights_keeps_them_to_itself(now: list[float]):
    sent: list[bytes] = []
    frames = FrameSender(sent.append)
    frames.send(played(frames, hidden=(64, 64)), "paused")
    assert "weights" not in decode_frame(sent[0])[0]
