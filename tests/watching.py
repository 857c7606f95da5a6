"""Runs a script with and without the watch, and says what it printed and what was found.

Loaded by the tests of healthy and guilty scripts; as a program, ``python watching.py [--bare] script.py``, it tells the
same of one process as JSON: for runs of several processes, and for libraries of which one process holds one copy only.
``python watching.py --both one.py two.py`` runs each bare and watched in one process and one process group, which
torch's gloo backend could not make again and again.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import random
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from trueloop.core.findings import Finding, Report, Severity
from trueloop.failures.load import catalogue
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch

MARK = re.compile(r"#\s*<-\s*([A-Z]{3}\d{3})")


class Run(NamedTuple):
    """What one script did."""

    printed: str
    randomness: str
    """A digest of the states of Python's, numpy's and torch's generators after it."""
    report: Report | None
    """None where nobody watched."""

    @property
    def findings(self) -> list[Finding]:
        """Those that are more than a note."""
        assert self.report is not None
        return [found for found in self.report.findings if found.severity != Severity.NOTE]

    @property
    def words(self) -> list[str]:
        """The findings, for people."""
        return [f"{found.code} {found.severity} {found.location}: {found.message}" for found in self.findings]


def run(path: Path, *arguments: str, watched: bool) -> Run:
    """Run a script in this process from a clean start of the generators, as ``python script.py ARGUMENTS`` would."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    printed = io.StringIO()
    watch = Watch([WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()]) if watched else None
    report = None
    with _as_program(path, *arguments), contextlib.redirect_stdout(printed):
        if watch is not None:
            watch.start()
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            report = watch.stop() if watch is not None else None
    return Run(printed.getvalue(), _randomness(), report)


def marked(*paths: Path) -> set[tuple[str, str, int]]:
    """Return (code, file, line) for every line that ends in ``# <- GRD001``."""
    return {
        (mark[1], str(path), number)
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for mark in MARK.finditer(line)
    }


@contextlib.contextmanager
def _as_program(path: Path, *words: str) -> Iterator[None]:
    arguments, folders, modules = sys.argv[:], sys.path[:], set(sys.modules)
    sys.argv, sys.path[:0] = [str(path), *words], [str(path.parent)]
    grad, threads, dtype = torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype()
    try:
        yield
    finally:
        sys.argv, sys.path[:] = arguments, folders
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        here = str(path.parent)
        for name in set(sys.modules) - modules:  # a script's own modules: the next one may call its own the same
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(here):
                del sys.modules[name]


def _randomness() -> str:
    legacy = np.random.get_state(legacy=False)
    states = (random.getstate(), repr(legacy), torch.get_rng_state().numpy().tobytes())
    return hashlib.sha256(repr(states).encode()).hexdigest()


def main() -> None:
    """Run the script named on the command line and print one JSON line about it."""
    paths = [Path(word).resolve() for word in sys.argv[1:] if not word.startswith("--")]
    torch.set_num_threads(1)
    if "--both" in sys.argv:
        _keep_one_group()
        for path in paths:  # what imports libraries is no part of the comparison: some draw random numbers
            run(path, watched=False)
        answer = [[_told(run(path, watched=watched)) for watched in (False, True)] for path in paths]
    else:
        answer = _told(run(paths[0], watched="--bare" not in sys.argv))
    gc.collect()  # gloo's threads need Python to let a sum go: torch 2.13 aborts where one is held until Python ends
    print("\n" + json.dumps(answer), flush=True)  # noqa: T201 - read by the test that started this program


def _keep_one_group() -> None:
    dist.init_process_group("gloo")
    dist.init_process_group = lambda *args, **options: None
    dist.destroy_process_group = lambda *args, **options: None


def _told(done: Run) -> dict[str, object]:
    problems = list(done.report.problems) if done.report else []
    codes = [found.code for found in done.findings] if done.report else []
    return {
        "printed": done.printed, "randomness": done.randomness, "problems": problems,
        "codes": codes, "words": done.words if done.report else [], "updates": done.report and done.report.updates,
    }  # fmt: skip


if __name__ == "__main__":
    main()
