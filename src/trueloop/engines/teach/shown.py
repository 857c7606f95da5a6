"""Runs the very text that a page shows, and keeps what it leaves."""

from __future__ import annotations

from importlib.abc import InspectLoader
from types import CodeType, ModuleType
from typing import Any, Final

NAME: Final = "<as shown>"


class Shown:
    """A program that trueloop has written itself from checked settings, never one that a request brought."""

    def __init__(self) -> None:
        self._module = ModuleType("__main__")
        self.names: dict[str, Any] = vars(self._module)
        """Every name the program has bound so far."""
        self.printed: list[str] = []
        """What it has printed, a call at a time."""
        self.names["print"] = self._keep

    def run(self, text: str) -> None:
        """Run the program, or its next part: several parts run as if they were one file.

        Raises:
            Exception: whatever leaves the program.
        """
        _Text(text).exec_module(self._module)

    def _keep(self, *values: object) -> None:
        self.printed.append(" ".join(map(str, values)))


class _Text(InspectLoader):
    """Gives Python the code of a text, as an import of a file would."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, fullname: str) -> str:
        """Return the text."""
        return self._text

    def get_code(self, fullname: str) -> CodeType:
        """Return it compiled."""
        return self.source_to_code(self._text, NAME)
