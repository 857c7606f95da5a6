"""Run the source code that a page shows, and store its variables and output."""

from importlib.abc import InspectLoader
from types import CodeType, ModuleType
from typing import Any, Final

FILE_NAME: Final = "<as shown>"


class SnippetRunner:
    """Runs programs that trueloop generates from validated settings, never text from a request."""

    def __init__(self) -> None:
        self._module = ModuleType("__main__")
        self.variables: dict[str, Any] = vars(self._module)
        """Variables of the program so far."""
        self.printed: list[str] = []
        """Printed lines, one per call."""
        self.variables["print"] = self._capture_print

    def run(self, text: str) -> None:
        """Run the program or its next part; several parts run like one file.

        Raises:
            Exception: raised by the program.
        """
        SourceLoader(text, FILE_NAME).exec_module(self._module)

    def _capture_print(self, *values: object) -> None:
        self.printed.append(" ".join(map(str, values)))


class SourceLoader(InspectLoader):
    """Import loader for source text.

    Args:
        text: a generated program.
        name: file name of its lines in tracebacks.
    """

    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name

    def get_source(self, fullname: str) -> str:
        """Return the source text."""
        return self._text

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled source."""
        return self.source_to_code(self._text, self._name)
