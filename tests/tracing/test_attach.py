"""A version of PyTorch without a function that a hook needs: its failures are not judged, all others are."""

from __future__ import annotations

from inspect import get_annotations

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from trueloop.core.findings import Report, Verdict
from trueloop.failures.load import catalogue
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch

ENTRIES = [entry.failure for entry in catalogue().values()]


def run_watched() -> Report:
    """Train with all detectors; return the report."""
    model = nn.Linear(2, 1)
    with Watch([WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()]) as watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()
    return watch.report()


def test_untraceable_events_are_not_judged_with_a_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(nn.Module, "zero_grad")
    before = Optimizer.zero_grad
    report = run_watched()
    assert Optimizer.zero_grad is before
    assert report.updates == 3
    (problem,) = report.problems
    assert problem.startswith("a hook cannot be installed with this version of PyTorch: AttributeError: ")
    needing = {
        each.code
        for each in ENTRIES
        if each.detector
        and ("gradients" in get_annotations(each.detector) or hasattr(each.detector, "on_gradients_cleared"))
    }
    lacking = "its events cannot be traced with this version of PyTorch: "
    unjudged = {each.code for each in report.verdicts if each.reason.startswith(lacking) and "zero_grad" in each.reason}
    assert needing == unjudged != set()
    assert all(each.verdict is Verdict.NOT_JUDGED for each in report.verdicts if each.code in unjudged)
    assert any(each.verdict is Verdict.PASSED for each in report.verdicts)


def test_the_next_watch_installs_all_hooks_again():
    report = run_watched()
    assert not report.problems
    assert not [each for each in report.verdicts if "this version of torch" in each.reason]
