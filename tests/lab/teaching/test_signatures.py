"""Signatures: both scripts are really run, and what is drawn says what they did."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from trueloop.failures.load import catalogue
from trueloop.failures.teaching_script import CannotInject
from trueloop.lab.teaching import signatures
from trueloop.lab.teaching.signatures import BASE, POINTS, Recording, pair, plots, record

INJECT = {code: entry.failure.inject for code, entry in catalogue().items() if entry.failure.inject}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Two epochs tell what these tests ask."""
    monkeypatch.setattr(signatures, "BASE", replace(BASE, epochs=2))


def made(**curves: list[float]) -> Recording:
    recording = Recording()
    for name, values in curves.items():
        for update, value in enumerate(values):
            recording.add(name, update, value)
    return recording


def test_every_failure_that_can_be_injected_can_be_shown():
    for code, inject in INJECT.items():
        both = pair(inject)
        assert both.healthy != both.broken, code
        assert both.lines, code
        broken = both.broken.splitlines()
        assert all(1 <= each.line <= len(broken) for each in both.lines), code


def test_the_key_follows_from_everything():
    both = pair(INJECT["GRD001"])
    keys = {both.key(), both.key("2"), both._replace(broken="x").key(), both._replace(healthy="x").key()}
    assert len(keys) == 4
    assert both.key("2") == pair(INJECT["GRD001"]).key("2")


def test_a_run_is_recorded_from_its_first_update_to_its_last():
    both = pair(INJECT["MEM001"])
    torch.set_num_threads(1)
    healthy = record(both.healthy, both.simulation, lambda play: play.run())
    broken = record(both.broken, both.simulation, lambda play: play.run())
    updates, losses = healthy.curves["loss"]
    assert updates == list(range(len(losses)))
    assert (healthy.raised, broken.raised) == ("", "")
    assert healthy.curves["held_out"][0] == [len(updates) // 2, len(updates)], "after each of two epochs"
    assert max(healthy.curves["graphs"][1]) <= 2
    assert max(broken.curves["graphs"][1]) > 20
    drawn = plots([healthy], [broken])
    assert [each["name"] for each in drawn][:2] == ["loss", "graphs"], "what tells most comes right behind the loss"
    assert drawn[0]["apart"] == 0.0
    assert "The same to the last digit." in drawn[0]["words"]
    assert "The same" not in drawn[1]["words"]


def test_what_a_script_raises_is_told():
    both = pair(INJECT["GRD001"])

    def fails(play):
        raise ValueError("too bad")

    recording = record(both.broken, both.simulation, fails)
    assert recording.raised == "ValueError: too bad"
    assert plots([recording], [recording]) == []


def test_what_cannot_be_broken_says_so():
    def inject(loop):
        raise CannotInject("There is nothing to break.")

    with pytest.raises(CannotInject, match="nothing to break"):
        pair(inject)


def test_a_band_is_of_all_seeds():
    healthy = [made(loss=[4.0, 2.0]), made(loss=[3.0, 1.0]), made(loss=[2.0, 1.5])]
    (drawn,) = plots(healthy, healthy)
    assert (drawn["low"], drawn["high"], drawn["last"], drawn["log"]) == (1.0, 4.0, 1, False)
    band = drawn["healthy"]
    assert band["x"] == [0.0, 1.0]
    assert band["least"] == [round(1 / 3, 4), 0.0]
    assert band["middle"] == [round(2 / 3, 4), round(0.5 / 3, 4)]
    assert band["most"] == [1.0, round(1 / 3, 4)]


def test_what_is_not_finite_is_a_gap_and_is_named():
    broken = [made(loss=[1.0, 2.0, math.nan, math.inf])]
    (drawn,) = plots([made(loss=[1.0, 1.0, 1.0, 1.0])], broken)
    assert drawn["broken"]["lost"] == 2
    assert drawn["broken"]["middle"][2:] == [None, None]
    assert "broken 2.00, not finite from update 2 on" in drawn["words"]
    assert drawn["apart"] > 0.5


def test_orders_of_magnitude_are_drawn_by_their_logarithm():
    (drawn,) = plots([made(norm=[1.0, 1.0])], [made(norm=[1.0, 10_000.0])])
    assert drawn["log"]
    assert drawn["broken"]["middle"] == [0.0, 1.0]


def test_a_spike_does_not_flatten_the_rest():
    flat = [made(norm=[1.0 + 0.01 * k for k in range(50)])]
    spiked = [made(norm=[1.0 + 0.01 * k if k != 20 else 1e6 for k in range(50)])]
    (drawn,) = plots(flat, spiked)
    assert drawn["high"] < 2
    assert max(drawn["broken"]["most"]) == 1.0


def test_a_long_run_is_drawn_by_few_points():
    (drawn,) = plots([made(loss=[float(k) for k in range(10_000)])], [made(loss=[1.0])])
    assert len(drawn["healthy"]["x"]) == POINTS
    assert drawn["last"] == 9999
