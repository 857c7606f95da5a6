"""A script that is run from its text, in this process, while others look at its names."""

from __future__ import annotations

import contextlib
import io
import linecache
import warnings
from types import ModuleType
from typing import Any

import torch

from trueloop.lab.teaching.run_snippet import SourceLoader


class Program:
    """A text that Python runs as a main program; tracebacks and findings name its lines.

    Args:
        text: of a script that we have written; nobody else's is ever run.
        name: the file name that its lines are told under.
    """

    def __init__(self, text: str, *, name: str = "simulation.py") -> None:
        self.text, self.name = text, name
        self.module = ModuleType("__main__")
        self.names: dict[str, Any] = vars(self.module)
        """The script's own, as it goes on."""

    def run(self) -> None:
        """Run it to its end. What it prints goes nowhere; the type of new tensors is put back.

        Raises:
            BaseException: whatever leaves the script.
        """
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self.name] = (len(self.text), None, lines, self.name)
        dtype = torch.get_default_dtype()
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                SourceLoader(self.text, self.name).exec_module(self.module)
        finally:
            torch.set_default_dtype(dtype)
