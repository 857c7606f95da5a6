"""Runs a script with or without the sanitizer, and returns its output and the findings.

The tests of healthy and guilty scripts load this file. ``python watching.py [--bare] script.py`` prints the result as
JSON: for runs of several processes, and for libraries that can be loaded only once per process.
``python watching.py --both one.py two.py`` runs each script bare and watched in one process with one process group,
because gloo fails when a process creates its group many times.
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
    """Output and findings of one script."""

    printed: str
    randomness: str
    """Digest of the states of Python's, NumPy's and PyTorch's random generators after the script."""
    report: Report | None
    """The sanitizer's report; None if the script ran without the sanitizer."""

    @property
    def findings(self) -> list[Finding]:
        """The findings that are more than a note."""
        assert self.report is not None
        return [found for found in self.report.findings if found.severity != Severity.NOTE]

    @property
    def messages(self) -> list[str]:
        """The findings as lines of text."""
        return [f"{found.code} {found.severity} {found.location}: {found.message}" for found in self.findings]


def run(path: Path, *arguments: str, watched: bool) -> Run:
    """Run a script in this process with newly seeded random generators, like ``python script.py ARGUMENTS``."""
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


def marked_lines(*paths: Path) -> set[tuple[str, str, int]]:
    """Return (code, file, line) for every line that ends in a mark such as ``# <- GRD001``."""
    return {
        (mark[1], str(path), number)
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for mark in MARK.finditer(line)
    }


@contextlib.contextmanager
def _as_program(path: Path, *arguments: str) -> Iterator[None]:
    argv, folders, modules = sys.argv[:], sys.path[:], set(sys.modules)
    sys.argv, sys.path[:0] = [str(path), *arguments], [str(path.parent)]
    grad, threads, dtype = torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype()
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, folders
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        folder = str(path.parent)
        for name in set(sys.modules) - modules:  # the next script may have modules with the same names
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
                del sys.modules[name]


def _randomness() -> str:
    numpy_state = np.random.get_state(legacy=False)
    states = (random.getstate(), repr(numpy_state), torch.get_rng_state().numpy().tobytes())
    return hashlib.sha256(repr(states).encode()).hexdigest()


def main() -> None:
    """Run the scripts named on the command line and print the results as one line of JSON."""
    paths = [Path(argument).resolve() for argument in sys.argv[1:] if not argument.startswith("--")]
    torch.set_num_threads(1)
    if "--both" in sys.argv:
        _keep_one_process_group()
        for path in paths:  # a first run, not compared: imports can draw random numbers
            run(path, watched=False)
        results = [[_as_dict(run(path, watched=watched)) for watched in (False, True)] for path in paths]
    else:
        results = _as_dict(run(paths[0], watched="--bare" not in sys.argv))
    gc.collect()  # torch 2.13 aborts if gloo's threads release a tensor after the interpreter has ended
    print("\n" + json.dumps(results), flush=True)  # noqa: T201 - read by the test that started this program


def _keep_one_process_group() -> None:
    dist.init_process_group("gloo")
    dist.init_process_group = lambda *args, **options: None
    dist.destroy_process_group = lambda *args, **options: None


def _as_dict(done: Run) -> dict[str, object]:
    problems = list(done.report.problems) if done.report else []
    codes = [found.code for found in done.findings] if done.report else []
    return {
        "printed": done.printed, "randomness": done.randomness, "problems": problems, "codes": codes,
        "messages": done.messages if done.report else [], "updates": done.report and done.report.updates,
    }  # fmt: skip


if __name__ == "__main__":
    main()
