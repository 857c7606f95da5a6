"""Run a generated script in this process and expose its variables."""

import contextlib
import io
import linecache
import warnings
from types import ModuleType
from typing import Any

import torch

from trueloop.lab.teaching.run_snippet import SourceLoader


class Program:
    """A script that runs as a main program; tracebacks and findings name its lines.

    Args:
        text: a generated script, never untrusted text.
        name: file name of its lines in tracebacks.
    """

    def __init__(self, text: str, *, name: str = "simulation.py") -> None:
        self.text, self.name = text, name
        self.module = ModuleType("__main__")
        self.variables: dict[str, Any] = vars(self.module)
        """Variables of the script."""

    def run(self) -> None:
        """Run the script; its output is discarded and the default dtype is restored.

        Raises:
            BaseException: raised by the script.
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
