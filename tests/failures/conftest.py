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
    def places(self) -> set[tuple[str, int | None]]:
        """(code, line) of each finding that is more than a note."""
        return {
            (found.code, found.location.line if found.location and found.location.path == str(self.path) else None)
            for found in self.findings
            if found.severity != Severity.NOTE
        }


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunResult]:
    """Run a script in this process, from its own file, with all detectors of the catalogue attached."""

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


def _codes_without_means(report: Report) -> set[str]:
    """Return the codes that this version of PyTorch gives no means to judge, according to the verdicts."""
    return {
        each.code for each in report.verdicts if each.verdict is Verdict.NOT_JUDGED and each.reason == UNSUPPORTED_TORCH
    }


@pytest.fixture
def run_reports(run: Callable[..., RunResult]) -> Callable[[str], RunResult]:
    """Run a script whose faulty lines end in ``# <- GRD001``: exactly these must be found, and nothing else."""

    def check(script: str) -> RunResult:
        lines = textwrap.dedent(script).splitlines()
        expected = {(mark[1], number) for number, line in enumerate(lines, 1) for mark in MARK.finditer(line)}
        assert expected, "no line is marked"
        ran = run(script)
        missed = {code for code, _ in expected - ran.places}
        if missed and missed == _codes_without_means(ran.report) & missed and ran.places <= expected:
            pytest.skip(UNSUPPORTED_TORCH)
        assert ran.places == expected, [f"{found.code} {found.location}: {found.message}" for found in ran.findings]
        return ran

    return check


@pytest.fixture
def run_is_clean(
    run: Callable[..., RunResult], same_training_after_fix: Callable[[str], None]
) -> Callable[..., RunResult]:
    """Run a correct script: nothing may be found, except notes of the failure given by ``note``.

    ``lint --fix`` must not change its training, unless ``correct`` is False: a faulty script that a run cannot detect.
    """

    def check(script: str, note: str = "", *, correct: bool = True) -> RunResult:
        ran = run(script)
        if correct:
            same_training_after_fix(textwrap.dedent(script))
        assert not ran.places, _words(ran.findings)
        assert {each.code for each in ran.findings} == ({note} if note else set()), _words(ran.findings)
        return ran

    return check


RULES = [
    ActiveRule(entry.failure, entry.slug, entry.failure.rule) for entry in catalogue().values() if entry.failure.rule
]
COMMENT = re.compile(r"#[^\n]*")


@pytest.fixture
def lint_reports() -> Callable[..., list[Finding]]:
    """Lint a script whose faulty lines end in ``# <- GRD001``: the rules must find exactly these, and nothing else.

    Where a finding has a fix, it is applied: the result must parse, keep every comment, no longer have the finding, and
    have nothing left to fix. Notes are checked only where the script has a mark for them.
    """

    def check(script: str, *, fixes: bool | None = None) -> list[Finding]:
        script = textwrap.dedent(script)
        expected = {
            (mark[1], number) for number, line in enumerate(script.splitlines(), 1) for mark in MARK.finditer(line)
        }
        assert expected, "no line is marked"
        found = lint_text(script, "train.py", RULES).findings
        serious = [each for each in found if each.severity != Severity.NOTE or _place(each) in expected]
        assert {_place(each) for each in serious} == expected, _words(found)
        if fixes is not None:
            assert all((each.autofix is not None) is fixes for each in serious), _words(found)
        if any(each.autofix for each in serious):
            fixed = fix_text(script, "train.py", RULES, unsafe=True)
            left = {_place(each)[0] for each in fixed.result.findings if each.autofix}
            assert not left, fixed.text
            assert all(comment in fixed.text for comment in COMMENT.findall(script)), fixed.text
            assert fix_text(fixed.text, "train.py", RULES, unsafe=True).text == fixed.text
        return serious

    return check


@pytest.fixture
def lint_is_clean(same_training_after_fix: Callable[[str], None]) -> Callable[..., None]:
    """Lint a correct script, or a faulty one that the text alone does not reveal: no error, no warning.

    Notes are allowed, except those of the failure given by ``code``. ``lint --fix`` must not change its training.
    """

    def check(script: str, code: str = "") -> None:
        same_training_after_fix(textwrap.dedent(script))
        found = [
            each
            for each in lint_text(textwrap.dedent(script), "train.py", RULES).findings
            if each.severity != Severity.NOTE or each.code == code
        ]
        assert not found, _words(found)

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

    Where the fixes change nothing in the text there is nothing to run.
    """

    def check(script: str) -> None:
        fixed = fix_text(script, "train.py", RULES).text
        if fixed != script:
            before = updates(script)
            assert before, f"no optimizer stepped, so that nothing shows what the fix changes:\n{fixed}"
            assert updates(fixed) == before, f"the safe fix changes how it trains:\n{fixed}"

    return check


def _place(found: Finding) -> tuple[str, int]:
    assert found.location is not None
    return found.code, found.location.line


def _words(found: list[Finding] | tuple[Finding, ...]) -> list[str]:
    return [f"{each.code} {each.location}: {each.message}" for each in found]
