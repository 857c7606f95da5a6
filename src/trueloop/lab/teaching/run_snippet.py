"""Runs the very text that a page shows, and keeps what it leaves."""

from __future__ import annotations

from importlib.abc import InspectLoader
from types import CodeType, ModuleType
from typing import Any, Final

FILE_NAME: Final = "<as shown>"


class SnippetRunner:
    """A program that trueloop has written itself from checked settings, never one that a request brought."""

    def __init__(self) -> None:
        self._module = ModuleType("__main__")
        self.names: dict[str, Any] = vars(self._module)
        """Every name the program has bound so far."""
        self.printed: list[str] = []
        """What it has printed, a call at a time."""
        self.names["print"] = self._capture_print

    def run(self, text: str) -> None:
        """Run the program, or its next part: several parts run as if they were one file.

        Raises:
            Exception: whatever leaves the program.
        """
        SourceLoader(text, FILE_NAME).exec_module(self._module)

    def _capture_print(self, *values: object) -> None:
        self.printed.append(" ".join(map(str, values)))


class SourceLoader(InspectLoader):
    """Gives Python the code of a text, as an import of a file would.

    Args:
        text: a program of ours.
        name: the file name that its lines are told under.
    """

    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name

    def get_source(self, fullname: str) -> str:
        """Return the text."""
        return self._text

    def get_code(self, fullname: str) -> CodeType:
        """Return it compiled, under the name of its file."""
        return self.source_to_code(self._text, self._name)
