"""Print the conclusions of the experiments, and turn them into JSON."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from trueloop.app.diagnosis.conclusions import Diagnosis, Effect, Outcome, constant_words
from trueloop.app.diagnosis.experiments import Trial
from trueloop.core.findings import Report, Severity
from trueloop.core.formatting import format_count, format_float, replace_unprintable
from trueloop.reporting.summary import format_path

LOCATION: Final = re.compile(r"(?P<path>.*?):(?P<line>\d+): (?P<code>.*)", re.DOTALL)
SCHEMA: Final = 1
LABEL_WIDTH: Final = 13
MIN_WIDTH: Final = 40
CODE_STYLE: Final = "cyan"


def print_diagnosis(found: Diagnosis, report: Report, console: Console, *, base: Path) -> None:
    """Print the conclusions after the report of the script's own run.

    Args:
        found: the conclusions.
        report: the report of the script's own run.
        console: where to print.
        base: folder that paths are relative to.
    """
    try:
        for label, text, style in _blocks(found, report, base):
            _print_block(console, label, text, style)
    except (OSError, ValueError):  # the terminal or pipe is closed
        return


def _blocks(found: Diagnosis, report: Report, base: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each paragraph with its label and style."""
    yield "\nexperiments", found.headline, "bold"
    for note in (*_findings_first(report), *found.notes):
        yield "", note, ""
    for number, outcome in enumerate(found.helping, 1):
        constant = constant_sentence(found) if number == 1 else ""
        yield f"{number}", sentence(outcome, found) + (f"; {constant}" if constant else ""), "bold green"
        where, code = split_location(outcome.trial.change.location, base)
        if where:
            yield "", f"{where}: {code}", CODE_STYLE
        yield "", f"change: {replace_unprintable(outcome.trial.change.advice)}", ""
    for line in _other_lines(found):
        yield "", line, "dim"


def _print_block(console: Console, label: str, text: str, style: str) -> None:
    width = max(console.width - LABEL_WIDTH, MIN_WIDTH)
    lines = [text] if style == CODE_STYLE else textwrap.wrap(text, width, break_long_words=False)
    for index, line in enumerate(lines):
        start = label if index == 0 else ""
        console.print(Text(f"{start:<{LABEL_WIDTH + start.count(chr(10))}}", "dim").append(line, style), soft_wrap=True)


def sentence(outcome: Outcome, found: Diagnosis) -> str:
    """Return the effect of a change: "inputs standardised: 0.02 instead of 2.30 after 30 updates (both seeds)"."""
    seeds = "both seeds" if found.seeds > 1 else "one seed"
    change = f"{outcome.trial.change.title}: {_loss(outcome.after)} instead of {_loss(outcome.before)}"
    return f"{change} after {format_count(found.updates, 'update')} ({seeds})"


def constant_sentence(found: Diagnosis) -> str:
    """Return the loss of the best constant answer: "always answering the mean costs 2.30"; "" if it is not known."""
    baseline = found.trials.baseline
    kinds = [curve.kind for curves in baseline.curves for curve in curves] if baseline else []
    words = constant_words(kinds[0]) if kinds else ""
    return f"always answering the {words} costs {_loss(found.constant)}" if words and found.constant is not None else ""


def split_location(location: str, base: Path) -> tuple[str, str]:
    """Return "train.py:14" and the source line of a change; ("", "") if its place is not known."""
    match = LOCATION.fullmatch(location)
    if match is None:
        return "", ""
    return f"{format_path(match['path'], base)}:{match['line']}", replace_unprintable(match["code"])


def to_json(found: Diagnosis, report: Report) -> dict[str, Any]:
    """Return the conclusions and all curves as JSON; numbers that are not finite are null."""
    return {
        "schema": SCHEMA,
        "headline": found.headline,
        "notes": list(found.notes),
        "constant": _number(found.constant),
        "updates": found.updates,
        "seeds": found.seeds,
        "findings": [f"{each.code} {each.message}" for each in report.findings if each.severity is not Severity.NOTE],
        "outcomes": [
            {
                **each.trial.change._asdict(),
                "effect": each.effect.name.lower(),
                "before": _number(each.before),
                "after": _number(each.after),
                "curves": _curves(each.trial),
            }
            for each in found.outcomes
        ],
        "baseline": _curves(found.trials.baseline) if found.trials.baseline else [],
        "one_batch": [_curves(each) for each in found.trials.one_batch],
        "stopped": found.trials.stopped,
        "failed": found.trials.failed,
    }


def _findings_first(report: Report) -> list[str]:
    errors = [each for each in report.findings if each.severity is Severity.ERROR]
    codes = ", ".join(dict.fromkeys(each.code for each in errors))
    return (
        [f"Look at {codes} above first: experiments change settings, and cure no mistake in the code."]
        if errors
        else []
    )


def _other_lines(found: Diagnosis) -> Sequence[str]:
    lines: list[str] = []
    for effect in [each for each in Effect if each is not Effect.HELPS]:
        several = [each for each in found.outcomes if each.effect is effect]
        shown = ", ".join(f"{each.trial.change.title} ({_loss(each.after)})" for each in several)
        if shown:
            lines.append(f"{effect}: {shown}")
    return lines


def _loss(value: float | None) -> str:
    return "NaN" if value is None or not math.isfinite(value) else format_float(value)


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _curves(trial: Trial) -> list[list[dict[str, Any]]]:
    return [
        [{**curve._asdict(), "values": [_number(value) for value in curve.values]} for curve in curves]
        for curves in trial.curves
    ]
