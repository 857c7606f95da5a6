"""Runs a script that ends with an error of torch's, and says how it was explained."""

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

RAISED, MADE = "# <- raised", "# <- made"


class Ended(NamedTuple):
    """What ended one script."""

    error: BaseException
    explained: ExplainedError | None
    script: str

    def line(self, mark: str) -> int | None:
        """Return the number of the line that carries a mark."""
        found = [number for number, line in enumerate(self.script.splitlines(), 1) if mark in line]
        return found[0] if found else None


@pytest.fixture
def ended(tmp_path: Path) -> Callable[[str], Ended]:
    """Run a script that raises, under the watch, from a file of its own."""

    def ended(script: str) -> Ended:
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
        except Exception as error:  # noqa: BLE001 - whichever it is, it is what is told of
            watch.report_error(error)
            report = watch.stop()
            assert not report.problems
            return Ended(error, report.error, script)
        watch.stop()
        raise AssertionError("the script ended without an error")

    return ended


@pytest.fixture
def explained(ended: Callable[[str], Ended], tmp_path: Path) -> Callable[..., ExplainedError]:
    """Run a script whose lines end in ``# <- raised`` and ``# <- made``: these are told, and words are in the text."""

    def explained(script: str, kind: str, *words: str) -> ExplainedError:
        end = ended(script)
        explanation = end.explained
        assert explanation is not None, repr(end.error)
        assert explanation.kind == kind
        path = str(tmp_path / "train.py")
        assert explanation.location is not None
        assert (explanation.location.path, explanation.location.line) == (path, end.line(RAISED))
        assert (explanation.origin and explanation.origin.line) == end.line(MADE)
        assert not [word for word in words if word not in f"{explanation.meaning} {explanation.fix}"], (
            f"{explanation.meaning} {explanation.fix}"
        )
        return explanation

    return explained


@pytest.fixture
def unexplained(ended: Callable[[str], Ended]) -> Callable[[str], BaseException]:
    """Run a script that ends with an error that is none of torch's, whatever it says."""

    def unexplained(script: str) -> BaseException:
        end = ended(script)
        assert end.explained is None, end.explained
        return end.error

    return unexplained


@pytest.fixture
def as_torch(explained: Callable[..., ExplainedError]) -> Callable[..., ExplainedError]:
    """Explain an error with the words of torch that no CPU can be made to say.

    A look-alike: a function that is compiled under a path of torch raises it, with torch's text word for word.
    """

    def as_torch(message: str, kind: str, *words: str, error: str = "RuntimeError") -> ExplainedError:
        source = f"import torch\ndef fail(x):\n    raise {error}({message!r})\n"
        script = (
            "import torch\n"
            "space = {}\n"
            f"exec(compile({source!r}, torch.__path__[0] + '/nn/made_up.py', 'exec'), space)\n"
            "space['fail'](torch.ones(2))  # <- raised\n"
        )
        return explained(script, kind, *words)

    return as_torch
