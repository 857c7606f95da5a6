"""Render a report as one HTML page without network access or scripts."""

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final

from trueloop.core.findings import ExplainedError, Finding, Report, Severity, UpdateTiming
from trueloop.core.formatting import format_duration, format_number, format_percent, to_single_line
from trueloop.core.html import Markup, element, render_document, section
from trueloop.core.learning import CONSTANT_ANSWERS, LearningSummary
from trueloop.reporting.excerpt import Excerpt, Line, diff_lines, excerpts
from trueloop.reporting.layer_table import render_layers
from trueloop.reporting.plots import Plot, render_figure
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

TITLES: Final = {
    "loss": "Loss",
    "loss_read": "Loss, as the program reads it",
    "grad_norm": "Gradient norm",
    "lr": "Learning rate",
    "live_graphs": "Graphs alive",
}
LOG_SCALED: Final = ("loss", "loss_read", "grad_norm")
DIFF_CLASSES: Final = {"+": "added", "-": "removed", " ": "kept"}


def to_html(report: Report, *, base: Path | None = None) -> str:
    """Return the page of a report.

    Args:
        report: report of a run or of the linter.
        base: paths inside this folder are written relative to it.
    """
    style = files("trueloop.reporting").joinpath("page.css").read_text(encoding="utf-8")
    findings = [_finding_article(finding, base) for finding in report.findings]
    parts = [
        _header(report),
        _error_section(report.error, base) if report.error else Markup(),
        _cards(report),
        section("Findings", *findings) if findings else Markup(),
        _curve_section(report),
        render_layers(report.layers),
        _timing_section(report.timing) if report.timing else Markup(),
        _verdict_section(report),
        _problem_section(report),
        element(
            "footer", "Written by trueloop. ", element("code", "trueloop explain CODE"), " prints a finding's page."
        ),
    ]
    return render_document(f"trueloop: {headline(report)}", style, *parts)


def _header(report: Report) -> Markup:
    worst = report.highest_severity()
    tone = "error" if report.error else "good" if worst in (None, Severity.NOTE) else str(worst)
    if tone == "good" and has_no_updates(report):
        tone = "warning"
    return element("header", element("p", "trueloop", class_="kicker"), element("h1", headline(report), class_=tone))


def _cards(report: Report) -> Markup:
    card_texts: list[tuple[str, str, str]] = []
    if report.seconds > 0:
        card_texts += [
            ("updates", format_number(report.updates), f"in {format_duration(report.seconds)}"),
            ("fully traced", format_number(report.updates_traced), "the other updates with cheap checks only"),
            (
                "tracing overhead",
                f"≥ {format_percent(overhead_share(report))}",
                f"{format_duration(report.overhead_s)}, timed inside the hooks",
            ),
        ]
    if report.timing:
        card_texts.append(("an update", format_duration(report.timing.update_s), "median"))
    if report.suppressed:
        card_texts.append(("suppressed", format_number(report.suppressed), "by comments or settings"))
    cards = (
        element("div", element("dt", name), element("dd", value), element("dd", unit, class_="unit"))
        for name, value, unit in card_texts
    )
    return element("dl", *cards, class_="cards") if card_texts else Markup()


def _error_section(error: ExplainedError, base: Path | None) -> Markup:
    return section(
        "Error that ended the run",
        element(
            "article",
            element("h3", element("span", error.type, class_="pill error"), " ", to_single_line(error.title)),
            element("p", element("code", to_single_line(error.message)), class_="soft"),
            element("p", *_prose(error.meaning)),
            *(part for excerpt in excerpts(error) for part in _excerpt(excerpt, base)),
            element("p", element("strong", "Fix: "), *_prose(error.fix)),
            class_="finding error",
            id="error",
        ),
    )


def _finding_article(finding: Finding, base: Path | None) -> Markup:
    severity = finding.severity.value
    name = element("span", f"{severity} {finding.code}", class_=f"pill {severity}")
    fix = [element("p", element("strong", "Fix: "), *_prose(finding.fix))] if finding.fix else []
    if finding.change:
        lines = (
            element("span", element("i", change.sign), change.text or " ", class_=DIFF_CLASSES[change.sign])
            for change in diff_lines(finding.change)
        )
        fix.append(element("pre", *lines))
    return element(
        "article",
        element("h3", name, " ", to_single_line(finding.title)),
        element("p", *_prose(finding.message)),
        *(part for excerpt in excerpts(finding) for part in _excerpt(excerpt, base)),
        *([element("p", f"Seen {since}.", class_="since")] if (since := format_occurrences(finding)) else []),
        *fix,
        class_=f"finding {severity}",
        id=f"{finding.code}-{finding.location.line if finding.location else 0}",
    )


def _excerpt(excerpt: Excerpt, base: Path | None) -> Iterator[Markup]:
    location = excerpt.location
    function = f" in {location.function}" if location.function else ""
    yield element("p", element("code", f"{format_path(location.path, base)}:{location.line}"), function, class_="where")
    yield element("pre", *(_line(line) for line in excerpt.lines))


def _line(line: Line | None) -> Markup:
    if line is None:
        return element("span", element("i", "…"))
    is_primary = any(note.is_primary for note in line.notes)
    notes = (element("b", to_single_line(note.text)) for note in line.notes if note.text)
    css_class = "fault" if is_primary else "related" if line.notes else "around"
    return element("span", element("i", line.number), line.text, *notes, class_=css_class)


def _curve_section(report: Report) -> Markup:
    marks = [
        (finding.first_update, finding.code)
        for finding in report.findings
        if finding.first_update is not None and finding.severity is not Severity.NOTE
    ]
    levels = {"loss": level} if (level := _constant_answer(report.learning)) else {}
    held_out = report.series.get("held_out_loss")
    figures = [
        render_figure(
            Plot(
                name=name,
                title=f"{title}; grey: of held-out samples" if name == "loss" and held_out else title,
                reference=held_out if name == "loss" else None,
                series=report.series[name],
                marks=marks,
                log=name in LOG_SCALED,
                level=levels.get(name),
            )
        )
        for name, title in TITLES.items()
        if name in report.series and report.series[name].values
    ]
    note = element("p", "Dashed: the update at which a failure was first found.", class_="soft") if marks else ""
    learning = element("p", text, ".") if (text := describe_learning(report)) else ""
    return section("Curves", learning, element("div", *figures, class_="curves"), note) if figures else Markup()


def _constant_answer(learning: LearningSummary | None) -> tuple[float, str] | None:
    """Return the loss of the best constant answer, and what it is, for a line in the curve of the loss."""
    if learning is None or learning.constant is None:
        return None
    return learning.constant, f"always answering the {CONSTANT_ANSWERS[learning.kind]}"


def _timing_section(timing: UpdateTiming) -> Markup:
    shares = timing.shares.items()
    bar = (element("div", class_=name, style=f"flex: {share:.4f}") for name, share in shares if share > 0)
    legend = (
        element("li", element("span", class_=f"dot {name}"), f"{name} {format_percent(share)}")
        for name, share in shares
    )
    return section(
        "Time per update",
        element("div", element("div", *bar, class_="bar"), element("ul", *legend, class_="legend"), class_="block"),
    )


def _verdict_section(report: Report) -> Markup:
    if not report.verdicts:
        return Markup()
    rows = [(code, f"fired; {note}") for code, note in repeat_notes(report).items()]
    rows += [(", ".join(codes), reason) for reason, codes in reasons_not_judged(report).items()]
    cells = ((element("td", codes), element("td", to_single_line(reason))) for codes, reason in rows)
    reasons = element("table", *(element("tr", *row) for row in cells))
    return section(
        "Verdicts",
        element("div", element("p", format_counts(report), "."), *([reasons] if rows else []), class_="block"),
    )


def _problem_section(report: Report) -> Markup:
    if not report.problems:
        return Markup()
    note = element("p", "These are internal errors of trueloop. They did not affect the program.")
    problems = element("ul", *(element("li", to_single_line(problem)) for problem in report.problems))
    return section("Internal errors", element("div", note, problems, class_="block"))


def _prose(text: str) -> Iterator[Markup | str]:
    """Yield the parts of a text, joined into one line; parts between backticks become code elements."""
    for index, part in enumerate(to_single_line(text).split("`")):
        yield element("code", part) if index % 2 else part
