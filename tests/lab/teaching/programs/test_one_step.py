"""Settings of one update: an update beyond the epoch is refused, and a large one gets a message."""

from __future__ import annotations

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.lab.teaching.programs.one_step import OneStep, one_step, too_large


def test_an_update_beyond_the_epoch_is_refused():
    assert OneStep(dataset=100, batch=16, accumulate=4, update=1).plan().updates_per_epoch == 2
    with pytest.raises(InvalidConfig, match=r"update is 2, counted from 0; an epoch has 2 updates\."):
        OneStep(dataset=100, batch=16, accumulate=4, update=2).plan()


def test_a_large_update_gets_a_message():
    assert too_large(OneStep().plan()) == ""
    assert too_large(OneStep(dataset=10**12, batch=10**6).plan()).startswith(
        "An update of this run has 1,000,000 examples"
    )
    assert too_large(OneStep(dataset=10**12, batch=1, accumulate=1000).plan())
    assert too_large(OneStep(dataset=500, batch=10**6).plan()) == ""


@pytest.mark.parametrize("settings", [OneStep(), OneStep(processes=2, accumulate=4, drop_last=True, weight=-1e-7)])
def test_the_program_compiles_and_contains_its_settings(settings: OneStep):
    text = one_step(settings)
    compile(text, "text", "exec")
    assert f"lr={settings.lr}" in text
    assert ("rank r takes" in text) == (settings.processes > 1)
    assert ("drop_last=True" in text) == settings.drop_last
    assert f"constant_(model.weight, {settings.weight!r})" in text
    assert max(map(len, text.splitlines())) <= 120
