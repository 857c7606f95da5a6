"""Fixtures that run or lint a script given as text and compare the findings with its marked lines."""

from __future__ import annotations

import itertools
import random
import re
import runpy
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from trueloop.core.findings import Finding, Report, Severity, Verdict
from trueloop.failures.load import catalogue
from trueloop.lint.check_file import ActiveRule, lint_text
from trueloop.lint.fix import fix_text
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch
from trueloop.tracing.saved_tensors import UNSUPPORTED_TORCH

MARK = re.compile(r"#\s*<-\s*([A-Z]{3}\d{3})")


class RunResult(NamedTuple):
    """The report of one script that was run."""

    path: Path
    report: Report

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.report.findings

    @property
    def reported_lines(self) -> set[tuple[str, int | None]]:
        """(code, line) of each finding that is more than a note; None as line for findings outside the script."""
        return {self._line(each) for each in self.findings if each.severity != Severity.NOTE}

    @property
    def note_lines(self) -> set[tuple[str, int | None]]:
        """(code, line) of each note."""
        return {self._line(each) for each in self.findings if each.severity == Severity.NOTE}

    def _line(self, finding: Finding) -> tuple[str, int | None]:
        location = finding.location
        return finding.code, location.line if location and location.path == str(self.path) else None


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunResult]:
    """Write a script to a file and run it in this process with all detectors of the catalogue."""

    def run(script: str, name: str = "train.py") -> RunResult:
        import numpy as np
        import torch

        path = tmp_path / name
        path.write_text(textwrap.dedent(script))
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(0)
        watch = Watch([WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()])
        watch.start()
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            report = watch.stop()
        assert not report.problems
        return RunResult(path, report)

    return run


def _unsupported_codes(report: Report) -> set[str]:
    """Return the codes of failures that this version of PyTorch cannot detect, according to the verdicts."""
    return {
        each.code for each in report.verdicts if each.verdict is Verdict.NOT_JUDGED and each.reason == UNSUPPORTED_TORCH
    }


@pytest.fixture
def run_reports(run: Callable[..., RunResult]) -> Callable[[str], RunResult]:
    """Run a script whose faulty lines end in marks such as ``# <- GRD001``: exactly these must be found.

    Notes are checked only at marked lines.
    """

    def check(script: str) -> RunResult:
        lines = textwrap.dedent(script).splitlines()
        expected = {(mark[1], number) for number, line in enumerate(lines, 1) for mark in MARK.finditer(line)}
        assert expected, "no line is marked"
        result = run(script)
        expected -= result.note_lines - result.reported_lines
        missed = {code for code, _ in expected - result.reported_lines}
        if missed and missed <= _unsupported_codes(result.report) and result.reported_lines <= expected:
            pytest.skip(UNSUPPORTED_TORCH)
        assert result.reported_lines == expected, _messages(result.findings)
        return result

    return check


@pytest.fixture
def run_is_clean(
    run: Callable[..., RunResult], same_training_after_fix: Callable[[str], None]
) -> Callable[..., RunResult]:
    """Run a correct script: nothing may be found, except notes of the failure given by ``note``.

    ``lint --fix`` must not change its training. ``correct`` is False for a faulty script that no run can detect.
    """

    def check(script: str, note: str = "", *, correct: bool = True) -> RunResult:
        result = run(script)
        if correct:
            same_training_after_fix(textwrap.dedent(script))
        assert not result.reported_lines, _messages(result.findings)
        notes = {each.code for each in result.findings} - {"ENV001"}  # on a busy machine every program waits for data
        assert notes == ({note} if note else set()), _messages(result.findings)
        return result

    return check


RULES = [
    ActiveRule(entry.failure, entry.slug, entry.failure.rule) for entry in catalogue().values() if entry.failure.rule
]
COMMENT = re.compile(r"#[^\n]*")


@pytest.fixture
def lint_reports() -> Callable[..., list[Finding]]:
    """Lint a script whose faulty lines end in marks such as ``# <- GRD001``: exactly these must be found.

    All fixes of the findings are applied: the fixed script must parse, keep every comment, and have nothing left to
    fix. Notes are checked only at marked lines.
    """

    def check(script: str, *, fixes: bool | None = None) -> list[Finding]:
        script = textwrap.dedent(script)
        expected = {
            (mark[1], number) for number, line in enumerate(script.splitlines(), 1) for mark in MARK.finditer(line)
        }
        assert expected, "no line is marked"
        findings = lint_text(script, "train.py", RULES).findings
        checked = [each for each in findings if each.severity != Severity.NOTE or _code_and_line(each) in expected]
        assert {_code_and_line(each) for each in checked} == expected, _messages(findings)
        if fixes is not None:
            assert all((each.autofix is not None) is fixes for each in checked), _messages(findings)
        if any(each.autofix for each in checked):
            fixed = fix_text(script, "train.py", RULES, unsafe=True)
            remaining = {each.code for each in fixed.result.findings if each.autofix}
            assert not remaining, fixed.text
            assert all(comment in fixed.text for comment in COMMENT.findall(script)), fixed.text
            assert fix_text(fixed.text, "train.py", RULES, unsafe=True).text == fixed.text
        return checked

    return check


@pytest.fixture
def lint_is_clean(same_training_after_fix: Callable[[str], None]) -> Callable[..., None]:
    """Lint a correct script, or a faulty one whose source code does not show the mistake: no error, no warning.

    Notes are allowed, except those of the failure given by ``code``. ``lint --fix`` must not change its training.
    """

    def check(script: str, code: str = "") -> None:
        same_training_after_fix(textwrap.dedent(script))
        result = lint_text(textwrap.dedent(script), "train.py", RULES)
        assert not result.problem
        findings = [each for each in result.findings if each.severity != Severity.NOTE or each.code == code]
        assert not findings, _messages(findings)

    return check


# Safe fixes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def updates(tmp_path: Path) -> Callable[[str], list[tuple[str, ...]]]:
    """Run a script from fixed seeds; return its first updates, as digests of every gradient and parameter."""
    count = itertools.count()

    def updates(script: str) -> list[tuple[str, ...]]:
        first_updates = runpy.run_path(str(Path(__file__).parents[1] / "updates.py"))["first_updates"]
        return first_updates(script, tmp_path / f"updates-{next(count)}")

    return updates


@pytest.fixture
def same_training_after_fix(updates: Callable[[str], list[tuple[str, ...]]]) -> Callable[[str], None]:
    """Apply the safe fixes to a correct program: its gradients and parameters must stay the same, bit for bit.

    If the fixes do not change the script, it is not run.
    """

    def check(script: str) -> None:
        fixed = fix_text(script, "train.py", RULES).text
        if fixed != script:
            before = updates(script)
            assert before, f"no optimizer stepped, so the effect of the fix cannot be compared:\n{fixed}"
            assert updates(fixed) == before, f"the safe fix changes the training:\n{fixed}"

    return check


def _code_and_line(finding: Finding) -> tuple[str, int]:
    assert finding.location is not None
    return finding.code, finding.location.line


def _messages(findings: list[Finding] | tuple[Finding, ...]) -> list[str]:
    return [f"{each.code} {each.location}: {each.message}" for each in findings]


@pytest.fixture
def lint_codes() -> Callable[..., list[str]]:
    """Lint a script that need not run, under the name of a file, and return the codes of errors and warnings."""

    def codes(script: str, name: str = "train.py") -> list[str]:
        found = lint_text(textwrap.dedent(script), name, RULES).findings
        return [each.code for each in found if each.severity != Severity.NOTE]

    return codes
