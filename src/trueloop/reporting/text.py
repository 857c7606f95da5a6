"""Print a report on the terminal: the headline, each finding with its evidence, and a summary."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from trueloop.core.findings import (
    UNPROVABLE_AT_RUN_TIME,
    ExplainedError,
    Finding,
    Report,
    Series,
    Severity,
    UpdateTiming,
)
from trueloop.core.formatting import (
    format_count,
    format_duration,
    format_float,
    format_number,
    format_percent,
    replace_unprintable,
    to_single_line,
)
from trueloop.reporting.excerpt import Excerpt, Line, diff_lines, excerpts, fix_diff
from trueloop.reporting.summary import (
    describe_learning,
    format_counts,
    format_occurrences,
    format_path,
    has_no_updates,
    headline,
    overhead_share,
    reasons_not_judged,
    repeat_notes,
)

if TYPE_CHECKING:
    from rich.console import Console

COLOURS: Final = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}
DIFF_STYLES: Final = {"+": "green", "-": "red", " ": "dim"}
MAX_PROSE_WIDTH: Final = 100  # columns; longer lines are hard to read
LABEL_WIDTH: Final = 12
SPACE_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|[µm]?s|min|h|d)(?!\w))")
StyledText = tuple[str, str]
"""Text and the name of its rich style."""


class _Layout(NamedTuple):
    width: int
    """Width of the terminal in columns."""
    base: Path
    """Folder that paths are relative to."""
    bar: str
    """Character between a line number and its line."""
    ellipsis: str


def print_report(report: Report, console: Console, *, base: Path, verbose: bool = False) -> None:
    """Print a report.

    Args:
        report: report of a run or of the linter.
        console: determines colours and width.
        base: folder that paths are relative to.
        verbose: also print why failures were not judged, and where the time of an update goes.
    """
    _print(console, base, lambda layout: _report_lines(report, layout, verbose=verbose))


def print_findings(findings: Iterable[Finding], console: Console, *, base: Path) -> None:
    """Print findings of the linter with an empty line after each."""

    def lines(layout: _Layout) -> Iterator[Sequence[StyledText]]:
        for finding in findings:
            yield from _finding_lines(finding, layout)
            yield []

    _print(console, base, lines)


def _print(console: Console, base: Path, lines: Callable[[_Layout], Iterable[Sequence[StyledText]]]) -> None:
    from rich.text import Text

    is_utf = console.encoding.startswith("utf")
    for line in lines(_Layout(console.width, base, "│" if is_utf else "|", "…" if is_utf else "...")):
        encodable = line if is_utf else [(_encode(text, console.encoding), style) for text, style in line]
        console.print(Text.assemble(*encodable), soft_wrap=True)


def _report_lines(report: Report, layout: _Layout, *, verbose: bool) -> Iterator[Sequence[StyledText]]:
    yield []
    yield [("trueloop: ", "bold"), (headline(report), _headline_style(report))]
    notes = repeat_notes(report)
    for index, finding in enumerate(report.findings):
        yield []
        yield from _finding_lines(finding, layout)
        is_last = all(finding.code != other.code for other in report.findings[index + 1 :])
        if is_last and finding.code in notes:
            yield from _prose(f"{finding.code} was {notes[finding.code]}.", layout, style="dim")
    if verbose or not report.error:
        yield []
        yield from _footer(report, layout, verbose=verbose)
    if report.error:  # the end of the report is read first
        yield []
        yield from _error_lines(report.error, layout)


def _headline_style(report: Report) -> str:
    worst = Severity.ERROR if report.error else report.highest_severity()
    if worst is not None and worst is not Severity.NOTE:
        return COLOURS[worst]
    return "bold yellow" if has_no_updates(report) else "bold green"


def _error_lines(error: ExplainedError, layout: _Layout) -> Iterator[Sequence[StyledText]]:
    yield [(error.type, COLOURS[Severity.ERROR]), (f"  {to_single_line(error.title)}", "bold")]
    yield from _prose(f"torch: {error.message}", layout, style="dim")
    yield from _prose(error.meaning, layout)
    for excerpt in excerpts(error):
        yield []
        yield from _excerpt_lines(excerpt, layout)
    yield []
    yield from _prose(error.fix, layout, label="fix   ", style="green")


def _finding_lines(finding: Finding, layout: _Layout) -> Iterator[Sequence[StyledText]]:
    name = f"{finding.severity} {finding.code}"
    yield [(name, COLOURS[finding.severity]), (f"  {to_single_line(finding.title)}", "bold")]
    yield from _prose(finding.message, layout)
    for excerpt in excerpts(finding):
        yield []
        yield from _excerpt_lines(excerpt, layout)
    yield []
    if occurrences := format_occurrences(finding):
        yield from _prose(occurrences, layout, label="seen  ")
    if finding.fix:
        yield from _prose(finding.fix, layout, label="fix   ", style="green")
    for line in diff_lines(finding.change) if finding.change else fix_diff(finding):
        yield [(_crop(f"        {line.sign} {replace_unprintable(line.text)}", layout), DIFF_STYLES[line.sign])]
    yield from _prose(f"trueloop explain {finding.code}", layout, label="more  ", style="dim")


def _excerpt_lines(excerpt: Excerpt, layout: _Layout) -> Iterator[Sequence[StyledText]]:
    location = excerpt.location
    function = f" in {replace_unprintable(location.function)}" if location.function else ""
    yield [("  ", ""), (f"{format_path(location.path, layout.base)}:{location.line}", "cyan"), (function, "dim")]
    digits = max(len(str(line.number)) for line in excerpt.lines if line)
    for line in excerpt.lines:
        if line is None:
            yield [(f"  {layout.ellipsis:>{digits}}", "dim")]
        elif line.text or not line.notes:
            yield from _source_lines(line, digits, layout)
        else:  # the source code is not available: show only the line number and the notes
            for note in line.notes:
                yield [(f"  {line.number:>{digits}} {layout.bar} ", "dim"), (to_single_line(note.text), "")]


def _source_lines(line: Line, digits: int, layout: _Layout) -> Iterator[Sequence[StyledText]]:
    primary = any(note.is_primary for note in line.notes)
    code = _crop(replace_unprintable(line.text), layout, indent=digits + 5)
    yield [(f"  {line.number:>{digits}} {layout.bar} ", "dim"), (code, "bold" if primary else "")]
    start, end = line.code
    available = layout.width - digits - 5 - start
    for note in line.notes:
        style = "bold red" if note.is_primary else "cyan"
        mark = ("^" if note.is_primary else "-") * max(1, min(end - start, available))
        text = to_single_line(note.text)
        fits = len(mark) + 1 + len(text) <= available
        gutter = (f"  {'':>{digits}} {layout.bar} {' ' * start}", "dim")
        yield [gutter, (f"{mark} {text}".rstrip() if fits else mark, style)]
        for wrapped in [] if fits else textwrap.wrap(text, max(24, available)):
            yield [gutter, (wrapped, style)]


def _footer(report: Report, layout: _Layout, *, verbose: bool) -> Iterator[Sequence[StyledText]]:
    if report.verdicts:
        yield from _labelled("judged", format_counts(report, brief=not verbose), layout)
    for index, reason in enumerate(_not_judged(report) if verbose else ()):
        yield from _labelled("not judged" if index == 0 else "", reason, layout)
    if report.suppressed:
        yield from _labelled(
            "suppressed", f"{format_count(report.suppressed, 'finding')} by comments or settings", layout
        )
    if report.seconds > 0:
        yield from _labelled("traced", _format_overhead(report), layout)
    if report.timing and verbose:
        yield from _labelled("update", format_timing(report.timing), layout)
    if learning := describe_learning(report):
        yield from _labelled("learning", learning, layout)
    if text := format_values(report.series):
        yield from _labelled("values", text, layout)
    yield from _problems(report, layout)


def _problems(report: Report, layout: _Layout) -> Iterator[Sequence[StyledText]]:
    for problem in report.problems:
        yield from _labelled("problem", to_single_line(problem), layout, style="yellow")
    if report.problems:
        yield from _labelled("", "These are internal errors of trueloop; they did not affect the program.", layout)


def _not_judged(report: Report) -> Iterator[str]:
    codes_by_reason = reasons_not_judged(report)
    unproven = codes_by_reason.pop(UNPROVABLE_AT_RUN_TIME, [])
    yield from (f"{', '.join(codes)}: {to_single_line(reason)}" for reason, codes in codes_by_reason.items())
    if unproven:  # these codes are the same in every run, so their number is enough
        yield f"{len(unproven)} that only trueloop lint or trueloop doctor can judge"


def _format_overhead(report: Report) -> str:
    updates = f"{format_count(report.updates, 'update')} in {format_duration(report.seconds)}"
    overhead = f"{format_percent(overhead_share(report))} of the time ({format_duration(report.overhead_s)})"
    return f"{updates}, {format_number(report.updates_traced)} fully; tracing took at least {overhead}"


def format_timing(timing: UpdateTiming) -> str:
    """Return the duration of an update, and the shares of data, forward, backward and optimizer in it."""
    phases = ", ".join(f"{name} {format_percent(share)}" for name, share in timing.shares.items())
    return f"{format_duration(timing.update_s)} each" + (f": {phases}" if timing.shares["other"] < 1 else "")


def format_values(series: dict[str, Series]) -> str:
    """Return the first and last values of the loss (as the program reads it, if it does), gradient norm and rate."""
    loss = "loss_read" if "loss_read" in series else "loss"
    labels = {loss: "loss", "grad_norm": "gradient norm", "lr": "learning rate"}
    recorded = [(label, series[name].values) for name, label in labels.items() if name in series]
    ends = ((label, format_float(values[0]), format_float(values[-1])) for label, values in recorded if values)
    return ", ".join(f"{label} {_from_to(first, last)}" for label, first, last in ends)


def _from_to(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _prose(text: str, layout: _Layout, *, label: str = "", style: str = "") -> Iterator[Sequence[StyledText]]:
    lines = _wrap(to_single_line(text), layout, indent=2 + len(label)) or [""]
    for index, line in enumerate(lines):
        yield [("  ", ""), (label if index == 0 else " " * len(label), "dim"), (line, style)]


def _labelled(label: str, text: str, layout: _Layout, *, style: str = "") -> Iterator[Sequence[StyledText]]:
    for index, line in enumerate(_wrap(text, layout, indent=LABEL_WIDTH)):
        yield [(f"{label if index == 0 else '':<{LABEL_WIDTH}}", "dim"), (line, style)]


def _wrap(text: str, layout: _Layout, *, indent: int) -> list[str]:
    width = max(24, min(layout.width, MAX_PROSE_WIDTH) - indent)
    text = SPACE_BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text)  # keeps a number and its unit on one line
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _crop(text: str, layout: _Layout, *, indent: int = 0) -> str:
    width = max(24, layout.width - indent)
    return text if len(text) <= width else text[: width - len(layout.ellipsis)] + layout.ellipsis


def _encode(text: str, encoding: str) -> str:
    return text.replace("→", "->").encode(encoding, "replace").decode(encoding, "replace")
