"""Every injected failure is found in the teaching loop, and the loop as it is has none."""

from __future__ import annotations

import pytest
import torch

from trueloop.catalogue.load import Entry, catalogue
from trueloop.engines.teach.loop import Lesson, teaching_loop
from trueloop.engines.watch.judge import Watched
from trueloop.engines.watch.watch import Watch
from trueloop.ground.findings import Report, Severity

ENTRIES = list(catalogue().values())
INJECTED = [entry for entry in ENTRIES if entry.failure.inject]


def taught(seed: int, entry: Entry | None = None) -> Report:
    torch.manual_seed(seed)
    watch = Watch([Watched(each.failure, each.slug) for each in ENTRIES])
    watch.start()
    try:
        loop = teaching_loop(Lesson(seed=seed, epochs=12))
        if entry is not None:
            entry.failure.inject(loop)
        list(loop.run())
    finally:
        report = watch.stop()
    assert not report.problems
    return report


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # torch sees this one too
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("entry", INJECTED, ids=lambda entry: f"{entry.code}-{entry.slug}")
def test_an_injected_failure_is_found_and_no_other(entry: Entry, seed: int):
    found = {finding.code: finding for finding in taught(seed, entry).findings}
    assert entry.code in found
    graver = {code for code, finding in found.items() if finding.severity != Severity.NOTE}
    assert graver <= {entry.code}, [finding.message for finding in found.values()]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_loop_as_it_is_has_none(seed: int):
    report = taught(seed)
    assert not [finding for finding in report.findings if finding.severity != Severity.NOTE]
    assert report.updates == 12 * 6
