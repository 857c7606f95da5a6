"""Runs a script as text under the watch, or only reads it, and says what was found where."""

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

from trueloop.catalogue.load import catalogue
from trueloop.engines.lint.fix import fix_text
from trueloop.engines.lint.lint import Ruled, lint_text
from trueloop.engines.watch.judge import Watched
from trueloop.engines.watch.saved import NOT_TOLD
from trueloop.engines.watch.watch import Watch
from trueloop.ground.findings import Finding, Report, Severity, Verdict

MARK = re.compile(r"#\s*<-\s*([A-Z]{3}\d{3})")


class Ran(NamedTuple):
    """What one script led to."""

    path: Path
    report: Report

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.report.findings

    @property
    def places(self) -> set[tuple[str, int | None]]:
        """(code, line) of each finding that is more than a note."""
        return {
            (found.code, found.site.line if found.site and found.site.path == str(self.path) else None)
            for found in self.findings
            if found.severity != Severity.NOTE
        }


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ran]:
    """Run a script under the watch with the whole catalogue, in this process, from a file of its own."""

    def run(script: str, name: str = "train.py") -> Ran:
        import numpy as np
        import torch

        path = tmp_path / name
        path.write_text(textwrap.dedent(script))
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(0)
        watch = Watch([Watched(entry.failure, entry.slug) for entry in catalogue().values()])
        watch.start()
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            report = watch.stop()
        assert not report.problems
        return Ran(path, report)

    return run


def _untold(report: Report) -> set[str]:
    """Return what this version of torch gives no means to judge, as the verdicts say."""
    return {each.code for each in report.judged if each.verdict is Verdict.NOT_JUDGED and each.reason == NOT_TOLD}


@pytest.fixture
def guilty(run: Callable[..., Ran]) -> Callable[[str], Ran]:
    """Run a script whose lines at fault end in ``# <- GRD001``: exactly these must be found, and nothing else."""

    def check(script: str) -> Ran:
        lines = textwrap.dedent(script).splitlines()
        expected = {(mark[1], number) for number, line in enumerate(lines, 1) for mark in MARK.finditer(line)}
        assert expected, "no line is marked"
        ran = run(script)
        missed = {code for code, _ in expected - ran.places}
        if missed and missed == _untold(ran.report) & missed and ran.places <= expected:
            pytest.skip(NOT_TOLD)
        assert ran.places == expected, [f"{found.code} {found.site}: {found.message}" for found in ran.findings]
        return ran

    return check


@pytest.fixture
def quiet(run: Callable[..., Ran], same_training_after_fix: Callable[[str], None]) -> Callable[..., Ran]:
    """Run a correct look-alike: nothing may be found, not even a note, but for those of a failure that is named.

    ``lint --fix`` must not change how it trains, unless it is not correct: the detector only sees too little of it.
    """

    def check(script: str, note: str = "", *, correct: bool = True) -> Ran:
        ran = run(script)
        if correct:
            same_training_after_fix(textwrap.dedent(script))
        assert not ran.places, _words(ran.findings)
        assert {each.code for each in ran.findings} == ({note} if note else set()), _words(ran.findings)
        return ran

    return check


RULES = [Ruled(entry.failure, entry.slug, entry.failure.rule) for entry in catalogue().values() if entry.failure.rule]
COMMENT = re.compile(r"#[^\n]*")


@pytest.fixture
def told() -> Callable[..., list[Finding]]:
    """Read a script whose lines at fault end in ``# <- GRD001``: the rules must find exactly these, and nothing else.

    Where a finding has a fix, it is applied: the text is Python still, has every comment, and the finding is gone; and
    nothing is left to be fixed. Notes are looked at only where the script has a mark for them.
    """

    def check(script: str, *, fixes: bool | None = None) -> list[Finding]:
        script = textwrap.dedent(script)
        expected = {
            (mark[1], number) for number, line in enumerate(script.splitlines(), 1) for mark in MARK.finditer(line)
        }
        assert expected, "no line is marked"
        found = lint_text(script, "train.py", RULES).found
        graver = [each for each in found if each.severity != Severity.NOTE or _place(each) in expected]
        assert {_place(each) for each in graver} == expected, _words(found)
        if fixes is not None:
            assert all((each.repair is not None) is fixes for each in graver), _words(found)
        if any(each.repair for each in graver):
            fixed = fix_text(script, "train.py", RULES, unsafe=True)
            left = {_place(each)[0] for each in fixed.left.found if each.repair}
            assert not left, fixed.text
            assert all(comment in fixed.text for comment in COMMENT.findall(script)), fixed.text
            assert fix_text(fixed.text, "train.py", RULES, unsafe=True).text == fixed.text
        return graver

    return check


@pytest.fixture
def untold(same_training_after_fix: Callable[[str], None]) -> Callable[..., None]:
    """Read a correct look-alike, or one of which the text cannot tell: no rule may say more than a note.

    Of a failure that is named, not even a note. ``lint --fix`` must not change how it trains.
    """

    def check(script: str, code: str = "") -> None:
        same_training_after_fix(textwrap.dedent(script))
        found = [
            each
            for each in lint_text(textwrap.dedent(script), "train.py", RULES).found
            if each.severity != Severity.NOTE or each.code == code
        ]
        assert not found, _words(found)

    return check


# What a safe fix leaves as it was ---------------------------------------------------------------------------------


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
    assert found.site is not None
    return found.code, found.site.line


def _words(found: list[Finding] | tuple[Finding, ...]) -> list[str]:
    return [f"{each.code} {each.site}: {each.message}" for each in found]
