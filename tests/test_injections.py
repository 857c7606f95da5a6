"""Every injected failure is found in the teaching script; the correct script has no finding."""

from __future__ import annotations

import contextlib
import io
import runpy
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trueloop.core.findings import Report, Severity
from trueloop.failures.load import Entry, catalogue
from trueloop.lab.teaching.inject import write_script
from trueloop.lab.teaching.program import Program
from trueloop.lab.teaching.simulation import Simulation
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch

ENTRIES = list(catalogue().values())
INJECTED = [entry for entry in ENTRIES if entry.failure.inject]
SEEDS = (0, pytest.param(1, marks=pytest.mark.slow(reason="a repetition with another seed")))

EVERYTHING = Simulation(
    dataset="moons", samples=88, batch=8, accumulation=2, clip=5.0, schedule="cosine", optimizer="momentum",
    learning_rate=0.05, batchnorm=True, dropout=0.2, hidden=(16,), activation="relu", epochs=14,
)  # fmt: skip
"""Settings that most injections need; the last window of an epoch is incomplete."""


ALSO_REPORTED = {"GRD006": ("MDL008", "LRN005")}
"""Other failures that an injected one entails: weights of zero in all layers keep each other at zero, and the model
gives the same answer for every input."""


def run_lesson(text: str, folder: Path) -> Report:
    """Run a script with all detectors, as `trueloop run` does."""
    path = folder / "lesson.py"
    path.write_text(text)
    watch = Watch([WatchedFailure(each.failure, each.slug) for each in ENTRIES])
    dtype = torch.get_default_dtype()
    watch.start()
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns about some of the failures
            runpy.run_path(str(path), run_name="__main__")
    finally:
        report = watch.stop()
        torch.set_default_dtype(dtype)
    assert not report.problems
    return report


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("entry", INJECTED, ids=lambda entry: f"{entry.code}-{entry.slug}")
def test_run_reports_the_injected_failure_only(entry: Entry, seed: int, tmp_path: Path):
    assert entry.failure.inject is not None
    loop = write_script(replace(EVERYTHING, seed=seed), [entry.failure.inject]).loop
    assert loop.changed_lines()
    findings = {finding.code: finding for finding in run_lesson(loop.text(), tmp_path).findings}
    assert entry.code in findings
    serious = {code for code, finding in findings.items() if finding.severity != Severity.NOTE}
    assert serious <= {entry.code, *ALSO_REPORTED.get(entry.code, ())}, [
        finding.message for finding in findings.values()
    ]


def test_weights_stored_by_reference_are_reported_early():
    inject = catalogue()["CKP001"].failure.inject
    assert inject is not None
    program = Program(write_script(Simulation(samples=100, epochs=30), [inject]).loop.text())
    reported: list[tuple[str, int]] = []
    watch = Watch(
        [WatchedFailure(each.failure, each.slug) for each in ENTRIES],
        on_finding=lambda finding: reported.append((finding.code, len(program.variables["evaluations"]))),
    )
    watch.start()
    try:
        program.run()
    finally:
        watch.stop()
    [(code, epochs)] = reported
    assert code == "CKP001"
    assert epochs in (5, 10)  # the best weights are checked every fifth epoch; the last of five may be the best


@pytest.mark.parametrize("seed", SEEDS)
def test_run_accepts_the_correct_script(seed: int, tmp_path: Path):
    report = run_lesson(write_script(replace(EVERYTHING, seed=seed), []).loop.text(), tmp_path)
    assert not [finding for finding in report.findings if finding.severity != Severity.NOTE]
    assert report.updates == 14 * 5
