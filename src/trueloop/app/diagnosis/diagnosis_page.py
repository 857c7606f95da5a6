"""Render the experiments as one HTML page: the changes that help, and the curve of each experiment."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from trueloop.app.diagnosis.conclusions import Diagnosis, Effect, Outcome, constant_words, main_curve
from trueloop.app.diagnosis.diagnosis_output import sentence, split_location
from trueloop.app.diagnosis.experiments import Trial
from trueloop.core.findings import Report, Series, Severity
from trueloop.core.html import Markup, element, render_document, section
from trueloop.reporting.plots import Plot, render_figure
from trueloop.reporting.summary import format_path

EMPTY: Final = Series(updates=(), values=())


def to_html(found: Diagnosis, report: Report, *, base: Path) -> str:
    """Return the page.

    Args:
        found: the conclusions.
        report: the report of the script's own run.
        base: paths inside this folder are written relative to it.
    """
    style = files("trueloop.reporting").joinpath("page.css").read_text(encoding="utf-8")
    helping = [_article(outcome, found, base) for outcome in found.helping]
    curves = [_figure(outcome, found) for outcome in found.outcomes]
    tone = "good" if helping or "learns" in found.headline else "warning"
    parts = [
        element(
            "header", element("p", "trueloop diagnose", class_="kicker"), element("h1", found.headline, class_=tone)
        ),
        *(element("p", note) for note in found.notes),
        _findings(report, base),
        section("What helps", *helping) if helping else Markup(),
        section("Experiments", _legend(found), element("div", *curves, class_="curves")) if curves else Markup(),
        element(
            "footer", "Written by trueloop diagnose. The script's own report: ", element("code", "trueloop run"), "."
        ),
    ]
    return render_document(f"trueloop: {found.headline}", style, *parts)


def _findings(report: Report, base: Path) -> Markup:
    """List the findings of the script's own run, which come before any experiment."""
    lines = [
        element(
            "li",
            element("strong", f"{each.severity.value} {each.code} "),
            f"{format_path(each.location.path, base)}:{each.location.line}: " if each.location else "",
            each.message,
        )
        for each in report.findings
        if each.severity is not Severity.NOTE
    ]
    return section("Findings of the run", element("div", element("ul", *lines), class_="block")) if lines else Markup()


def _article(outcome: Outcome, found: Diagnosis, base: Path) -> Markup:
    change = outcome.trial.change
    where, code = split_location(change.location, base)
    place = (
        [element("p", element("code", where), class_="where"), element("pre", element("span", code))] if where else []
    )
    return element(
        "article",
        element("h3", sentence(outcome, found)),
        *place,
        element("p", element("strong", "Change: "), change.advice),
        class_="finding note",
    )


def _figure(outcome: Outcome, found: Diagnosis) -> Markup:
    series, baseline = _series(outcome.trial), found.trials.baseline
    words = "" if outcome.effect is Effect.HELPS else f" ({outcome.effect.value})"
    level = (found.constant, f"always answering the {_kind_words(found)}") if found.constant is not None else None
    title = f"{outcome.trial.change.title}{words}"
    reference = _series(baseline) if baseline else None
    return render_figure(Plot(name="loss", title=title, series=series, log=True, reference=reference, level=level))


def _series(trial: Trial) -> Series:
    """Return the main loss under the first seed."""
    main = main_curve(trial.curves[0])
    return Series(updates=tuple(main.updates), values=tuple(main.values)) if main else EMPTY


def _kind_words(found: Diagnosis) -> str:
    baseline = found.trials.baseline
    main = main_curve(baseline.curves[0]) if baseline else None
    return constant_words(main.kind) if main else ""


def _legend(found: Diagnosis) -> Markup:
    return element(
        "p",
        f"Loss of the first {found.updates} updates with the first seed; grey: the unchanged script.",
        class_="soft",
    )
