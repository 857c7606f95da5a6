"""Render the tables and lists of the report: evaluations, time, checkpoints, notes, settings, environment."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from trueloop.core.formatting import format_count, format_duration, format_float
from trueloop.core.html import Markup, element, section, table
from trueloop.core.paths import path_exists
from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice
from trueloop.runs.history import History, iter_leaves

MAX_ROWS = 500  # rows of a table; a longer page is slow on a phone, and the journal has all rows
FINDING_KIND = "finding"
SEVERITY_TONES = {"error": "bad", "warning": "warn", "note": "good"}
TIME_LABELS = {
    "computing": "computing",
    "waiting": "waiting for data",
    "evaluating": "evaluating",
    "saving": "saving checkpoints",
}


def evaluations_section(history: History) -> Markup:
    """Render a table of every metric of every split, with one row per evaluated update."""
    by_update: dict[int, list[Evaluated]] = {}
    for evaluation in history.evaluations:
        by_update.setdefault(evaluation.update, []).append(evaluation)
    values: dict[str, dict[int, str]] = {}  # column title ("val loss") -> update -> value
    for evaluation in history.evaluations:
        for name, value in evaluation.metrics.items():
            values.setdefault(f"{evaluation.split} {name}", {})[evaluation.update] = format_float(value, 4)
    rows: list[Sequence[object]] = []
    previous_update = 0
    for update, evaluations in by_update.items():
        badge = element("span", "best", class_="pill good") if history.best in evaluations else ""
        train_loss = _mean_loss(history, previous_update, update)
        metrics = (column.get(update, "") for column in values.values())
        rows.append([evaluations[0].epoch, update, train_loss, *metrics, badge])
        previous_update = update
    if not rows:
        return Markup()
    head = ["epoch", "update", "train loss", *values, ""]
    return section(
        "Evaluations", table(head, rows[-MAX_ROWS:], class_="numbers"), _truncation_note(len(rows), "evaluation")
    )


def _mean_loss(history: History, after: int, upto: int) -> str:
    """Return the training loss, averaged over the examples between two evaluations; "" if there are no examples."""
    updates = history.updates
    window = range(bisect_right(updates.update, after), bisect_right(updates.update, upto))
    stepped = [i for i in window if not updates.skipped[i]]
    examples = sum(updates.examples[i] for i in stepped)
    return format_float(sum(updates.loss[i] * updates.examples[i] for i in stepped) / examples, 4) if examples else ""


def time_section(history: History) -> Markup:
    """Render the seconds by activity as one bar with a legend."""
    split = history.time_split()
    if split.total <= 0:
        return Markup()
    activities = [(name, label, getattr(split, name)) for name, label in TIME_LABELS.items()]
    bar = (
        element("span", class_=f"part {name}", style=f"width:{100 * seconds / split.total:.2f}%")
        for name, _, seconds in activities
    )
    legend = (
        element(
            "li",
            element("span", class_=f"dot {name}"),
            f" {label}: {format_duration(seconds)}, {100 * seconds / split.total:.1f} %",
        )
        for name, label, seconds in activities
    )
    return section(
        "Where the time went",
        element("div", *bar, class_="bar", role="img", aria_label="Shares of the time, listed below"),
        element("ul", *legend, class_="legend"),
    )


def checkpoints_section(history: History, run_dir: Path) -> Markup:
    """Render a table of the checkpoints that still exist, newest first."""
    if not history.checkpoints:
        return Markup()
    located = [(_locate_checkpoint(checkpoint, run_dir), checkpoint) for checkpoint in reversed(history.checkpoints)]
    existing = [(path, checkpoint) for path, checkpoint in located if path]
    removed = len(history.checkpoints) - len(existing)
    names = list(dict.fromkeys(name for _, checkpoint in existing for name in checkpoint.metrics))
    best = history.best.update if history.best else -1
    rows = [
        [
            element("code", path),
            checkpoint.epoch,
            checkpoint.update,
            *(format_float(checkpoint.metrics[name], 4) if name in checkpoint.metrics else "" for name in names),
            element("span", "best", class_="pill good") if checkpoint.update == best else "",
        ]
        for path, checkpoint in existing[:MAX_ROWS]
    ]
    note = f"{format_count(removed, 'older checkpoint')} no longer on disk."
    head = ["folder", "epoch", "update", *names, ""]
    return section(
        "Checkpoints",
        table(head, rows, class_="numbers left") if rows else "",
        element("p", note, class_="aside") if removed else "",
    )


def _locate_checkpoint(checkpoint: CheckpointSaved, run_dir: Path) -> str | None:
    """Return the current path of a checkpoint, which changes if the run is moved; None if it does not exist.

    The path is relative to the run folder if the checkpoint is in it.
    """
    saved = Path(checkpoint.path)
    for path in (run_dir / saved.parent.name / saved.name, run_dir / saved, saved):
        if path_exists(path):
            return str(path.relative_to(run_dir)) if path.is_relative_to(run_dir) else str(path)
    return None


def notes_section(history: History) -> Markup:
    """Render the notes in chronological order, without the findings, which have their own section."""
    notes = [note for note in history.notes if note.kind != FINDING_KIND]
    if not notes:
        return Markup()
    items = (_note_item(note, note.kind.replace("_", " "), "warn") for note in notes[-MAX_ROWS:])
    return section("Notes", element("ul", *items, class_="notes"), _truncation_note(len(notes), "note"))


def _note_item(note: Notice, label: str, tone: str, *details: object) -> Markup:
    return element(
        "li",
        element("span", label, class_=f"pill {tone}"),
        element("span", f"update {note.update}", class_="unit"),
        element("span", note.message),
        *details,
    )


def findings_section(history: History) -> Markup:
    """Render the findings of the sanitizer in this run: severity, message, location and fix."""
    findings = [note for note in history.notes if note.kind == FINDING_KIND]
    if not findings:
        return Markup()
    items = map(_finding_item, findings[-MAX_ROWS:])
    return section("Findings", element("ul", *items, class_="notes"), _truncation_note(len(findings), "finding"))


def _finding_item(finding: Notice) -> Markup:
    details = finding.details
    severity = str(details.get("severity"))
    location = element("code", f"{details.get('path')}:{details.get('line')}") if details.get("path") else ""
    fix = element("span", f"Fix: {details.get('fix')}", class_="aside")
    return _note_item(finding, severity, SEVERITY_TONES.get(severity, "warn"), location, fix)


def settings_section(history: History) -> Markup:
    """Render the configuration with its nesting, and the recipe's options."""
    groups = dict(_groups("run", history.facts.get("config"))) | dict(_groups("options", history.facts.get("options")))
    blocks = (_block(title, pairs) for title, pairs in groups.items() if pairs)
    return section("Configuration", element("div", *blocks, class_="blocks")) if groups else Markup()


def environment_section(history: History) -> Markup:
    """Render the remaining facts: machine, versions, packages and source; long lists are collapsed."""
    shown_elsewhere = {"config", "options", "class_names", "source", "packages"}
    groups = dict(_groups("machine and model", {k: v for k, v in history.facts.items() if k not in shown_elsewhere}))
    blocks = (_block(title, pairs) for title, pairs in groups.items() if pairs)
    collapsed = [*_packages(history.facts.get("packages")), *_sources(history.facts.get("source"))]
    return section("Environment", element("div", *blocks, class_="blocks"), *collapsed) if groups else Markup()


def _packages(packages: object) -> Iterator[Markup]:
    if isinstance(packages, Mapping) and packages:
        pairs = list(cast("Mapping[str, Any]", packages).items())
        title = element("summary", f"{format_count(len(pairs), 'installed package')}")
        yield element("details", title, element("div", _block("packages", pairs), class_="blocks"))


def _sources(source: object) -> Iterator[Markup]:
    for name, text in cast("Mapping[str, Any]", source if isinstance(source, Mapping) else {}).items():
        yield element("details", element("summary", f"The recipe's source: {name}"), element("pre", text))


def _groups(title: str, tree: object) -> Iterator[tuple[str, list[tuple[str, object]]]]:
    """Yield a titled group of the direct values of a mapping, then one group of dotted names per nested mapping."""
    if not isinstance(tree, Mapping):
        return
    items = cast("Mapping[str, Any]", tree).items()
    yield title, [(key, value) for key, value in items if not isinstance(value, Mapping)]
    for key, value in items:
        if isinstance(value, Mapping):
            yield key, list(iter_leaves(cast("Mapping[str, Any]", value)))


def _block(title: str, pairs: Sequence[tuple[str, object]]) -> Markup:
    rows = (element("div", element("dt", key), element("dd", _format_value(value))) for key, value in pairs)
    return element("div", element("h3", title.replace("_", " ")), element("dl", *rows), class_="block")


def _format_value(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(_format_value(item) for item in cast("Sequence[object]", value)) or "none"
    return str(value)


def _truncation_note(rows: int, noun: str) -> Markup:
    if rows <= MAX_ROWS:
        return Markup()
    return element("p", f"The newest {MAX_ROWS} of {format_count(rows, noun)}; all are in the journal.", class_="aside")
