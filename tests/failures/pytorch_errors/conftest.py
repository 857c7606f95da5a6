"""Fixtures that run a script that raises a PyTorch error and check its explanation."""

from __future__ import annotations

import random
import runpy
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from trueloop.core.findings import ExplainedError
from trueloop.failures.load import known_errors
from trueloop.sanitizer.watch import Watch

RAISED, CREATED = "# <- raised", "# <- created"


class FailedRun(NamedTuple):
    """One script that ended with an error."""

    error: BaseException
    explanation: ExplainedError | None
    script: str

    def line(self, mark: str) -> int | None:
        """Return the number of the first line with a mark, or None."""
        return next((number for number, line in enumerate(self.script.splitlines(), 1) if mark in line), None)


@pytest.fixture
def run_failing(tmp_path: Path) -> Callable[[str], FailedRun]:
    """Write a script that raises an error to a file, and run it with the sanitizer."""

    def run_failing(script: str) -> FailedRun:
        import numpy as np
        import torch

        script = textwrap.dedent(script)
        path = tmp_path / "train.py"
        path.write_text(script)
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(0)
        watch = Watch([], errors=known_errors())
        watch.start()
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Exception as error:  # noqa: BLE001 - the tests check which error it is
            watch.report_error(error)
            report = watch.stop()
            assert not report.problems
            return FailedRun(error, report.error, script)
        watch.stop()
        raise AssertionError("the script ended without an error")

    return run_failing


@pytest.fixture
def assert_explained(run_failing: Callable[[str], FailedRun], tmp_path: Path) -> Callable[..., ExplainedError]:
    """Run a script with marked lines (``# <- raised``, ``# <- created``); check the explanation's lines and words."""

    def assert_explained(script: str, kind: str, *words: str) -> ExplainedError:
        run = run_failing(script)
        explanation = run.explanation
        assert explanation is not None, repr(run.error)
        assert explanation.kind == kind
        path = str(tmp_path / "train.py")
        assert explanation.location is not None
        assert (explanation.location.path, explanation.location.line) == (path, run.line(RAISED))
        assert (explanation.origin and explanation.origin.line) == run.line(CREATED)
        assert not [word for word in words if word not in f"{explanation.meaning} {explanation.fix}"], (
            f"{explanation.meaning} {explanation.fix}"
        )
        return explanation

    return assert_explained


@pytest.fixture
def assert_unexplained(run_failing: Callable[[str], FailedRun]) -> Callable[[str], BaseException]:
    """Run a script that ends with an error that was not raised by PyTorch: it must have no explanation."""

    def assert_unexplained(script: str) -> BaseException:
        run = run_failing(script)
        assert run.explanation is None, run.explanation
        return run.error

    return assert_unexplained


@pytest.fixture
def assert_message_explained(assert_explained: Callable[..., ExplainedError]) -> Callable[..., ExplainedError]:
    """Check the explanation of an error that PyTorch never raises on a CPU.

    The test compiles a function under a path of PyTorch, which raises the error with the literal message.
    """

    def assert_message_explained(message: str, kind: str, *words: str, error: str = "RuntimeError") -> ExplainedError:
        source = f"import torch\ndef fail(x):\n    raise {error}({message!r})\n"
        script = (
            "import torch\n"
            "space = {}\n"
            f"exec(compile({source!r}, torch.__path__[0] + '/nn/made_up.py', 'exec'), space)\n"
            "space['fail'](torch.ones(2))  # <- raised\n"
        )
        return assert_explained(script, kind, *words)

    return assert_message_explained
