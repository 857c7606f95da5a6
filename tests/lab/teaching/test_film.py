"""A film holds the curves and the planes of the correct and the broken script."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.failures.load import find_failure
from trueloop.lab.teaching import film as module
from trueloop.lab.teaching.film import film_run, join_runs, write_film_scripts


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Shorten the scripts to three epochs."""
    monkeypatch.setattr(module, "SETTINGS", replace(module.SETTINGS, epochs=3))


def film_of(code: str):
    entry = find_failure(code)
    assert entry
    assert entry.failure.inject
    scripts = write_film_scripts(entry.failure.inject)
    return join_runs(scripts, film_run(scripts.healthy, scripts), film_run(scripts.broken, scripts))


def test_a_film_shows_both_runs_at_every_update():
    made = film_of("GRD001")
    assert made["updates"] == 39  # 3 epochs of 13 updates, the last evaluated after all of them
    for which in ("healthy", "broken"):
        run = made[which]
        assert run["curves"]["loss"][0] == list(range(39))
        assert len(run["points"]) == 196
        assert [update for update, _ in run["pictures"]] == [0, 6, 12, 18, 24, 30, 36, 39]
        assert all(len(b64decode(picture)) == run["side"] ** 2 for _, picture in run["pictures"])
    assert made["healthy"]["curves"]["loss"] != made["broken"]["curves"]["loss"]
    assert made["healthy"]["pictures"][0] == made["broken"]["pictures"][0], "both start with the same weights"
    assert made["healthy"]["pictures"][-1] != made["broken"]["pictures"][-1]
    assert len(encode_json(made)) < 100_000


def test_values_that_are_not_finite_do_not_change_the_axes():
    made = film_of("GRD007")
    losses = made["broken"]["curves"]["loss"][1]
    assert str(losses[-1]) == "nan"
    assert all(0 < chart["high"] < 1e6 for chart in made["charts"])


def test_an_optimizer_that_never_steps_has_a_loss_for_each_window():
    made = film_of("OPT006")
    broken, correct = (made[which]["curves"]["loss"] for which in ("broken", "healthy"))
    assert broken[0] == correct[0]
    assert min(broken[1]) > min(correct[1])
    accuracies = made["broken"]["curves"]["accuracy"][1]
    assert len(accuracies) == 3
