"""A report on the terminal, for somebody at two in the morning: the verdict, each finding with its proof, the rest."""

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
from trueloop.reporting.excerpt import Excerpt, Line, diff, excerpts, repaired
from trueloop.reporting.summary import cost_share, counts, headline, more, reasons, shown, untrained, when

if TYPE_CHECKING:
    from rich.console import Console

COLOURS: Final = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}
SIGNS: Final = {"+": "green", "-": "red", " ": "dim"}
READABLE: Final = 100  # columns of prose; a longer line is hard to find the next one from
LABEL: Final = 12
UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|[µm]?s|min|h|d)(?!\w))")
Part = tuple[str, str]
"""Words and their style."""


class _Look(NamedTuple):
    width: int
    base: Path
    bar: str
    ellipsis: str


def print_report(report: Report, console: Console, *, base: Path) -> None:
    """Print a report.

    Args:
        report: of a run, or of a tree of sources.
        console: decides about colours and the width.
        base: paths are told relative to it.
    """
    _print(console, base, lambda look: _lines(report, look))


def print_found(findings: Iterable[Finding], console: Console, *, base: Path) -> None:
    """Print findings in texts, each with an empty line behind it."""
    _print(console, base, lambda look: (parts for each in findings for parts in (*_finding(each, look), ())))


def _print(console: Console, base: Path, lines: Callable[[_Look], Iterable[Sequence[Part]]]) -> None:
    from rich.text import Text

    utf = console.encoding.startswith("utf")
    for parts in lines(_Look(console.width, base, "│" if utf else "|", "…" if utf else "...")):
        safe = parts if utf else [(_encoded(words, console.encoding), style) for words, style in parts]
        console.print(Text.assemble(*safe), soft_wrap=True)


def _lines(report: Report, look: _Look) -> Iterator[Sequence[Part]]:
    yield []
    yield [("trueloop: ", "bold"), (headline(report), _tone(report))]
    if report.error:
        yield []
        yield from _explained(report.error, look)
    beyond = more(report)
    for index, finding in enumerate(report.findings):
        yield []
        yield from _finding(finding, look)
        last = all(finding.code != other.code for other in report.findings[index + 1 :])
        if last and finding.code in beyond:
            yield from _prose(f"{finding.code} was {beyond[finding.code]}.", look, style="dim")
    yield []
    yield from _rest(report, look)


def _tone(report: Report) -> str:
    worst = Severity.ERROR if report.error else report.highest_severity()
    if worst is not None and worst is not Severity.NOTE:
        return COLOURS[worst]
    return "bold yellow" if untrained(report) else "bold green"


# One finding, and what ended the run ------------------------------------------------------------------------------


def _explained(error: ExplainedError, look: _Look) -> Iterator[Sequence[Part]]:
    yield [(error.type, COLOURS[Severity.ERROR]), (f"  {to_single_line(error.title)}", "bold")]
    yield from _prose(f"torch: {error.message}", look, style="dim")
    yield from _prose(error.meaning, look)
    for excerpt in excerpts(error):
        yield []
        yield from _excerpt(excerpt, look)
    yield []
    yield from _prose(error.fix, look, label="fix   ", style="green")


def _finding(finding: Finding, look: _Look) -> Iterator[Sequence[Part]]:
    name = f"{finding.severity} {finding.code}"
    yield [(name, COLOURS[finding.severity]), (f"  {to_single_line(finding.title)}", "bold")]
    yield from _prose(finding.message, look)
    for excerpt in excerpts(finding):
        yield []
        yield from _excerpt(excerpt, look)
    yield []
    if since := when(finding):
        yield from _prose(since, look, label="seen  ")
    if finding.fix:
        yield from _prose(finding.fix, look, label="fix   ", style="green")
    for change in diff(finding.change) if finding.change else repaired(finding):
        yield [(_cropped(f"        {change.sign} {replace_unprintable(change.text)}", look), SIGNS[change.sign])]
    yield from _prose(f"trueloop explain {finding.code}", look, label="more  ", style="dim")


def _excerpt(excerpt: Excerpt, look: _Look) -> Iterator[Sequence[Part]]:
    site = excerpt.site
    function = f" in {replace_unprintable(site.function)}" if site.function else ""
    yield [("  ", ""), (f"{shown(site.path, look.base)}:{site.line}", "cyan"), (function, "dim")]
    digits = max(len(str(line.number)) for line in excerpt.lines if line)
    for line in excerpt.lines:
        if line is None:
            yield [(f"  {look.ellipsis:>{digits}}", "dim")]
        elif line.text or not line.notes:
            yield from _line(line, digits, look)
        else:  # the source is not there: its place is all there is to say
            for note in line.notes:
                yield [(f"  {line.number:>{digits}} {look.bar} ", "dim"), (to_single_line(note.words), "")]


def _line(line: Line, digits: int, look: _Look) -> Iterator[Sequence[Part]]:
    fault = any(note.at_fault for note in line.notes)
    code = _cropped(replace_unprintable(line.text), look, taken=digits + 5)
    yield [(f"  {line.number:>{digits}} {look.bar} ", "dim"), (code, "bold" if fault else "")]
    start, end = line.code
    room = look.width - digits - 5 - start
    for note in line.notes:
        style = "bold red" if note.at_fault else "cyan"
        mark = ("^" if note.at_fault else "-") * max(1, min(end - start, room))
        words = to_single_line(note.words)
        beside = len(mark) + 1 + len(words) <= room
        gutter = (f"  {'':>{digits}} {look.bar} {' ' * start}", "dim")
        yield [gutter, (f"{mark} {words}".rstrip() if beside else mark, style)]
        for wrapped in [] if beside else textwrap.wrap(words, max(24, room)):
            yield [gutter, (wrapped, style)]


# What is said once -----------------------------------------------------------------------------------------------


def _rest(report: Report, look: _Look) -> Iterator[Sequence[Part]]:
    if report.verdicts:
        yield from _labelled("judged", counts(report), look)
    for index, words in enumerate(_not_judged(report)):
        yield from _labelled("not judged" if index == 0 else "", words, look)
    if report.suppressed:
        yield from _labelled("silenced", f"{format_count(report.suppressed, 'finding')}, by comments or the settings", look)
    if report.seconds > 0:
        yield from _labelled("watched", _watched(report), look)
    if report.timing:
        yield from _labelled("update", pace(report.timing), look)
    if told := values(report.series):
        yield from _labelled("values", told, look)
    for problem in report.problems:
        yield from _labelled("problem", to_single_line(problem), look, style="yellow")
    if report.problems:
        yield from _labelled("", "These broke inside trueloop; the program itself was not touched.", look)


def _not_judged(report: Report) -> Iterator[str]:
    why = reasons(report)
    unproven = why.pop(UNPROVABLE_AT_RUN_TIME, [])
    yield from (f"{', '.join(codes)}: {to_single_line(reason)}" for reason, codes in why.items())
    if unproven:  # the same in every run
        yield f"{len(unproven)} that a run cannot prove: trueloop lint and trueloop doctor can"


def _watched(report: Report) -> str:
    seen = f"{format_count(report.updates, 'update')} in {format_duration(report.seconds)}, {format_number(report.updates_traced)} in full detail"
    return f"{seen}; watching took at least {format_percent(cost_share(report))} of the time ({format_duration(report.overhead_s)})"


def pace(rate: UpdateTiming) -> str:
    """Say how long an update takes, and on what."""
    parts = {"data": rate.data_share, "forward": rate.forward_share, "backward": rate.backward_share, "optimizer": rate.optimizer_share}
    shares = {**parts, "the rest": max(0.0, 1 - sum(parts.values()))}
    split = ", ".join(f"{name} {format_percent(share)}" for name, share in shares.items())
    return f"{format_duration(rate.update_s)} each: {split}" if any(parts.values()) else f"{format_duration(rate.update_s)} each"


def values(series: dict[str, Series]) -> str:
    """Say where the loss, the gradient norm and the learning rate began and ended."""
    names = {"loss": "loss", "grad_norm": "gradient norm", "lr": "learning rate"}
    known = [(words, series[name].values) for name, words in names.items() if name in series and series[name].values]
    return ", ".join(f"{words} {_from_to(format_float(each[0]), format_float(each[-1]))}" for words, each in known)


def _from_to(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


# Lines -----------------------------------------------------------------------------------------------------------


def _prose(text: str, look: _Look, *, label: str = "", style: str = "") -> Iterator[Sequence[Part]]:
    lines = _wrapped(to_single_line(text), look, taken=2 + len(label)) or [""]
    for index, line in enumerate(lines):
        yield [("  ", ""), (label if index == 0 else " " * len(label), "dim"), (line, style)]


def _labelled(label: str, text: str, look: _Look, *, style: str = "") -> Iterator[Sequence[Part]]:
    for index, line in enumerate(_wrapped(text, look, taken=LABEL)):
        yield [(f"{label if index == 0 else '':<{LABEL}}", "dim"), (line, style)]


def _wrapped(text: str, look: _Look, *, taken: int) -> list[str]:
    room = max(24, min(look.width, READABLE) - taken)
    whole = UNIT.sub("\N{NO-BREAK SPACE}", text)  # a number stays with its unit, and a path in one piece
    lines = textwrap.wrap(whole, room, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _cropped(text: str, look: _Look, *, taken: int = 0) -> str:
    room = max(24, look.width - taken)
    return text if len(text) <= room else text[: room - len(look.ellipsis)] + look.ellipsis


def _encoded(words: str, encoding: str) -> str:
    return words.encode(encoding, "replace").decode(encoding, "replace")
