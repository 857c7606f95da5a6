"""Both scripts of a signature are run, and the plots show their curves."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from trueloop.failures.load import catalogue
from trueloop.failures.teaching_script import CannotInject
from trueloop.lab.teaching import signatures
from trueloop.lab.teaching.signatures import BASE, POINTS, Recording, plots, record, write_pair

INJECT = {code: entry.failure.inject for code, entry in catalogue().items() if entry.failure.inject}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Shorten the scripts to two epochs."""
    monkeypatch.setattr(signatures, "BASE", replace(BASE, epochs=2))


def recording_of(**curves: list[float]) -> Recording:
    recording = Recording()
    for name, values in curves.items():
        for update, value in enumerate(values):
            recording.add(name, update, value)
    return recording


def test_every_injectable_failure_has_a_pair_of_scripts():
    for code, inject in INJECT.items():
        scripts = write_pair(inject)
        assert scripts.healthy != scripts.broken, code
        assert scripts.lines, code
        broken = scripts.broken.splitlines()
        assert all(1 <= each.line <= len(broken) for each in scripts.lines), code


def test_the_key_depends_on_scripts_and_versions():
    scripts = write_pair(INJECT["GRD001"])
    keys = {scripts.key(), scripts.key("2"), scripts._replace(broken="x").key(), scripts._replace(healthy="x").key()}
    assert len(keys) == 4
    assert scripts.key("2") == write_pair(INJECT["GRD001"]).key("2")


def test_a_run_is_recorded_completely():
    scripts = write_pair(INJECT["MEM001"])
    torch.set_num_threads(1)
    healthy = record(scripts.healthy, scripts.simulation, lambda script_run: script_run.run())
    broken = record(scripts.broken, scripts.simulation, lambda script_run: script_run.run())
    updates, losses = healthy.curves["loss"]
    assert updates == list(range(len(losses)))
    assert (healthy.raised, broken.raised) == ("", "")
    assert healthy.curves["held_out"][0] == [len(updates) // 2, len(updates)], "after each of two epochs"
    assert max(healthy.curves["graphs"][1]) <= 2
    assert max(broken.curves["graphs"][1]) > 20
    loss, graphs, *_ = plots([healthy], [broken])
    assert [loss["name"], graphs["name"]] == ["loss", "graphs"], "the most different quantity follows the loss"
    assert loss["apart"] == 0.0
    assert "The same to the last digit." in loss["words"]
    assert "The same" not in graphs["words"]


def test_the_error_of_a_script_is_recorded():
    scripts = write_pair(INJECT["GRD001"])

    def fails(script_run):
        raise ValueError("too bad")

    recording = record(scripts.broken, scripts.simulation, fails)
    assert recording.raised == "ValueError: too bad"
    assert plots([recording], [recording]) == []


def test_a_failure_that_cannot_be_injected_raises():
    def inject(loop):
        raise CannotInject("There is nothing to break.")

    with pytest.raises(CannotInject, match="nothing to break"):
        write_pair(inject)


def test_a_band_covers_all_seeds():
    healthy = [recording_of(loss=[4.0, 2.0]), recording_of(loss=[3.0, 1.0]), recording_of(loss=[2.0, 1.5])]
    (plot,) = plots(healthy, healthy)
    assert (plot["low"], plot["high"], plot["last"], plot["log"]) == (1.0, 4.0, 1, False)
    band = plot["healthy"]
    assert band["x"] == [0.0, 1.0]
    assert band["least"] == [round(1 / 3, 4), 0.0]
    assert band["middle"] == [round(2 / 3, 4), round(0.5 / 3, 4)]
    assert band["most"] == [1.0, round(1 / 3, 4)]


def test_non_finite_values_are_gaps():
    broken = [recording_of(loss=[1.0, 2.0, math.nan, math.inf])]
    (plot,) = plots([recording_of(loss=[1.0, 1.0, 1.0, 1.0])], broken)
    assert plot["broken"]["lost"] == 2
    assert plot["broken"]["middle"][2:] == [None, None]
    assert "broken 2.00, not finite from update 2 on" in plot["words"]
    assert plot["apart"] > 0.5


def test_a_large_range_has_a_logarithmic_axis():
    (plot,) = plots([recording_of(norm=[1.0, 1.0])], [recording_of(norm=[1.0, 10_000.0])])
    assert plot["log"]
    assert plot["broken"]["middle"] == [0.0, 1.0]


def test_a_spike_does_not_flatten_the_curve():
    flat = [recording_of(norm=[1.0 + 0.01 * k for k in range(50)])]
    spiked = [recording_of(norm=[1.0 + 0.01 * k if k != 20 else 1e6 for k in range(50)])]
    (plot,) = plots(flat, spiked)
    assert plot["high"] < 2
    assert max(plot["broken"]["most"]) == 1.0


def test_a_long_curve_is_reduced():
    (plot,) = plots([recording_of(loss=[float(k) for k in range(10_000)])], [recording_of(loss=[1.0])])
    assert len(plot["healthy"]["x"]) == POINTS
    assert plot["last"] == 9999
