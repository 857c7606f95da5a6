"""Print findings on standard error as they occur, in two lines each, without breaking a progress bar."""

import io
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from trueloop.core.findings import Finding, Severity, SourceLocation
from trueloop.core.formatting import to_single_line
from trueloop.reporting.summary import format_path

MAX_FINDINGS: Final = 10  # number of findings to print; the report has all of them
COLOURS: Final = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}


class LiveFindings:
    """Prints errors and warnings, each code once per line of the program.

    Args:
        base: folder that paths are relative to.
        rank: rank of this process; None for a single process.
    """

    def __init__(self, base: Path, *, rank: int | None = None) -> None:
        self._base, self._rank = base, rank
        self._printed: set[tuple[str, SourceLocation | None]] = set()
        self._original = sys.stderr

    def print_finding(self, finding: Finding) -> None:
        """Print one finding; does nothing if standard error is missing or closed, and never raises."""
        key = (finding.code, finding.location)
        if finding.severity == Severity.NOTE or key in self._printed or len(self._printed) > MAX_FINDINGS:
            return
        self._printed.add(key)
        if len(self._printed) > MAX_FINDINGS:
            self._write(Text("trueloop: more findings are in the report", "dim"))
        else:
            self._write(self._lines(finding))

    def _lines(self, finding: Finding) -> Text:
        location = finding.location
        where = f" {format_path(location.path, self._base)}:{location.line}" if location else ""
        rank = "" if self._rank is None else f" rank {self._rank}"
        text = Text.assemble(
            ("trueloop", "bold"), f"{rank}: ", (f"{finding.severity} {finding.code}", COLOURS[finding.severity]),
            (where, "cyan"), f": {to_single_line(finding.message)}",
        )  # fmt: skip
        if finding.fix:
            text.append("\n  fix: ", style="bold green").append(to_single_line(finding.fix))
        return text

    def _write(self, text: Text) -> None:
        stream = self._stream()
        if stream is None:  # a program without a console, on Windows
            return
        try:
            buffer = io.StringIO()
            is_terminal = getattr(stream, "isatty", bool)()  # a custom stream may have only write and flush
            Console(file=buffer, force_terminal=is_terminal, soft_wrap=True, highlight=False).print(text)
            line = buffer.getvalue()
            encoding = getattr(stream, "encoding", None) or "utf-8"
            line = line.encode(encoding, "replace").decode(encoding)
            bars = _progress_bars()
            if bars is None:
                stream.write(line)
                stream.flush()
            else:
                bars.write(line.rstrip("\n"), file=stream)
        except (OSError, ValueError):  # the stream is closed; the report has all findings
            return

    def _stream(self) -> Any:
        """Return the original standard error; but the current one if rich or a notebook has replaced it."""
        current = sys.stderr
        return current if type(current).__module__.startswith(("rich.", "ipykernel.")) else self._original


def _progress_bars() -> Any:
    """Return tqdm's class if one of its bars is visible, so that lines can be printed above the bar; else None."""
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return bars if getattr(bars, "_instances", None) else None
