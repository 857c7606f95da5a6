"""A torch that does not tell what a graph has saved: what needs that is not judged, in words, and nobody is accused."""

from __future__ import annotations

import pytest
import torch

from trueloop.catalogue.load import catalogue
from trueloop.engines.watch.saved import NOT_TOLD
from trueloop.ground.findings import Verdict

ENTRIES = {entry.failure.code: entry.failure for entry in catalogue().values()}
NOT_JUDGED = ("DAT003", "LOS004", "LOS005")
JUDGED = ("GRD003", "GRD007", "LOS001", "LOS002", "LOS003")


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data", "unpack_hook"):
        monkeypatch.delattr(torch._C._autograd.SavedTensor, name, raising=False)


@pytest.mark.parametrize("code", NOT_JUDGED)
def test_the_verdict_says_why(quiet, code: str):
    report = quiet(ENTRIES[code].bad).report
    (judged,) = [each for each in report.judged if each.code == code]
    assert (judged.verdict, judged.reason) == (Verdict.NOT_JUDGED, NOT_TOLD)


@pytest.mark.parametrize("code", JUDGED)
def test_what_shapes_and_names_tell_is_found(run, code: str):
    assert {found.code for found in run(ENTRIES[code].bad).findings} == {code}


def test_an_error_between_differences_by_hand_is_not_judged(quiet):
    script = ENTRIES["LOS003"].bad.replace(
        "nn.functional.mse_loss(model(inputs), targets)", "(model(inputs) - targets).abs().mean()"
    )
    (judged,) = [each for each in quiet(script).report.judged if each.code == "LOS003"]
    assert (judged.verdict, judged.reason) == (Verdict.NOT_JUDGED, NOT_TOLD)
