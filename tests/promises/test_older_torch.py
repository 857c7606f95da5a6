"""A torch that does not tell what a graph has saved: what needs that is not judged, in words, and nobody is accused."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trueloop.core.findings import FailureVerdict, Report, Verdict
from trueloop.failures.load import catalogue
from trueloop.sanitizer.watch import Watch
from trueloop.tracing.saved_tensors import UNSUPPORTED_TORCH

BAD = {entry.failure.code: entry.failure.bad for entry in catalogue().values()}
NOT_JUDGED = ("DAT003", "LOS004", "LOS005")
JUDGED = ("GRD003", "GRD007", "LOS001", "LOS002", "LOS003")


@pytest.fixture
def run(new_watch: Callable[[], Watch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Report]:
    """Run a script under the watch on a torch of before 2.8, as far as its graphs go."""
    for name in ("data", "unpack_hook"):
        monkeypatch.delattr(torch._C._autograd.SavedTensor, name, raising=False)

    def run(script: str) -> Report:
        path = tmp_path / "train.py"
        path.write_text(script)
        with new_watch() as watch:
            runpy.run_path(str(path), run_name="__main__")
        assert not watch.report().problems
        return watch.report()

    return run


def verdict(report: Report, code: str) -> FailureVerdict:
    (judged,) = [each for each in report.verdicts if each.code == code]
    return judged


@pytest.mark.parametrize("code", NOT_JUDGED)
def test_the_verdict_says_why(run: Callable[[str], Report], code: str):
    report = run(BAD[code])
    assert report.findings == ()
    assert verdict(report, code) == FailureVerdict(code, Verdict.NOT_JUDGED, UNSUPPORTED_TORCH)


@pytest.mark.parametrize("code", JUDGED)
def test_broadcasts_are_found_by_shapes_and_names(run: Callable[[str], Report], code: str):
    assert {found.code for found in run(BAD[code]).findings} == {code}


def test_hand_written_differences_are_not_judged(run: Callable[[str], Report]):
    by_hand = BAD["LOS003"].replace(
        "nn.functional.mse_loss(model(inputs), targets)", "(model(inputs) - targets).abs().mean()"
    )
    assert by_hand != BAD["LOS003"]
    report = run(by_hand)
    assert report.findings == ()
    assert verdict(report, "LOS003") == FailureVerdict("LOS003", Verdict.NOT_JUDGED, UNSUPPORTED_TORCH)
