"""Runs a script as text under the watch and says what was found where."""

from __future__ import annotations

import random
import re
import runpy
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from trueloop.catalogue.load import catalogue
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
def quiet(run: Callable[..., Ran]) -> Callable[[str], Ran]:
    """Run a correct look-alike: nothing may be found, not even a note of its own family's."""

    def check(script: str) -> Ran:
        ran = run(script)
        assert not ran.places, [f"{found.code} {found.site}: {found.message}" for found in ran.findings]
        return ran

    return check
