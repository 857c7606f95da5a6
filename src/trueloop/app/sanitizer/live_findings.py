"""Says a finding on standard error as soon as it is certain, in two lines, without breaking a progress bar."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from trueloop.core.findings import Finding, Severity, SourceLocation
from trueloop.core.formatting import to_single_line
from trueloop.reporting.summary import format_path

MOST: Final = 10  # lines of a program that has everything wrong; the report has them all
COLOURS: Final = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}


class LiveFindings:
    """Tells errors and warnings, each code once for each line of the program.

    Args:
        base: paths are told relative to it.
        rank: of this process, where there are several.
    """

    def __init__(self, base: Path, *, rank: int | None = None) -> None:
        self._base, self._rank = base, rank
        self._told: set[tuple[str, SourceLocation | None]] = set()
        self._usual = sys.stderr

    def print_finding(self, finding: Finding) -> None:
        """Tell one finding; never raises, and does nothing where nobody can read it."""
        key = (finding.code, finding.location)
        if finding.severity == Severity.NOTE or key in self._told or len(self._told) > MOST:
            return
        self._told.add(key)
        if len(self._told) > MOST:
            self._write(Text("trueloop: there is more; the rest is in the report", "dim"))
        else:
            self._write(self._lines(finding))

    def _lines(self, finding: Finding) -> Text:
        site = finding.location
        where = f" {format_path(site.path, self._base)}:{site.line}" if site else ""
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
        if stream is None:  # a program without a terminal, under Windows
            return
        try:
            buffer = io.StringIO()
            terminal = getattr(stream, "isatty", bool)()  # a program's own stream may have no more than write and flush
            Console(file=buffer, force_terminal=terminal, soft_wrap=True, highlight=False).print(text)
            line = buffer.getvalue()
            encoding = getattr(stream, "encoding", None) or "utf-8"
            line = line.encode(encoding, "replace").decode(encoding)
            bars = _progress_bars()
            if bars is None:
                stream.write(line)
                stream.flush()
            else:
                bars.write(line.rstrip("\n"), file=stream)
        except (OSError, ValueError):  # closed, or gone: the report has it all
            return

    def _stream(self) -> Any:
        """Where the program has redirected standard error, ours goes past it; rich and notebooks put lines in place."""
        now = sys.stderr
        return now if type(now).__module__.startswith(("rich.", "ipykernel.")) else self._usual


def _progress_bars() -> Any:
    """Return tqdm's class where a bar of it is on the screen: it writes lines above its bars."""
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return bars if getattr(bars, "_instances", None) else None
