"""The report's tables and lists: evaluations, time, checkpoints, notes, settings, environment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from trueloop.core.formatting import format_count, duration, short
from trueloop.core.html import Markup, element, section, table
from trueloop.core.paths import path_exists
from trueloop.core.protocols import CheckpointSaved, Evaluated
from trueloop.runs.history import History, leaves

SHOWN = 500  # rows of a table; a page of more is slow on a phone, and the journal has them all
FINDING = "finding"
TONES = {"error": "bad", "warning": "warn", "note": "good"}
SPENT = {
    "computing": "computing",
    "waiting": "waiting for data",
    "evaluating": "evaluating",
    "saving": "saving checkpoints",
}


def evaluations(history: History) -> Markup:
    """Tabulate every metric of every split, a row per update at which something was evaluated."""
    at: dict[int, list[Evaluated]] = {}
    for each in history.evaluations:
        at.setdefault(each.update, []).append(each)
    names = list(dict.fromkeys((each.split, name) for each in history.evaluations for name in each.metrics))
    rows: list[Sequence[object]] = []
    before = 0
    for update, group in at.items():
        values = {(each.split, name): short(value, 4) for each in group for name, value in each.metrics.items()}
        badge = element("span", "best", class_="pill good") if history.best in group else ""
        trained = _mean_loss(history, before, update)
        rows.append([group[0].epoch, update, trained, *(values.get(name, "") for name in names), badge])
        before = update
    if not rows:
        return Markup()
    head = ["epoch", "update", "train loss", *(f"{split} {name}" for split, name in names), ""]
    return section("Evaluations", table(head, rows[-SHOWN:], class_="numbers"), _left_out(len(rows), "evaluation"))


def _mean_loss(history: History, after: int, upto: int) -> str:
    """Average the training loss over the examples of the updates between two evaluations."""
    updates = history.updates
    window = range(bisect_right(updates.update, after), bisect_right(updates.update, upto))
    stepped = [i for i in window if not updates.skipped[i]]
    examples = sum(updates.examples[i] for i in stepped)
    return short(sum(updates.loss[i] * updates.examples[i] for i in stepped) / examples, 4) if examples else ""


def time_split(history: History) -> Markup:
    """Draw where the seconds went as one bar."""
    split = history.time_split()
    if split.total <= 0:
        return Markup()
    parts = [(name, label, getattr(split, name)) for name, label in SPENT.items()]
    bar = (
        element("span", class_=f"part {name}", style=f"width:{100 * seconds / split.total:.2f}%")
        for name, _, seconds in parts
    )
    legend = (
        element(
            "li",
            element("span", class_=f"dot {name}"),
            f" {label}: {duration(seconds)}, {100 * seconds / split.total:.1f} %",
        )
        for name, label, seconds in parts
    )
    return section(
        "Where the time went",
        element("div", *bar, class_="bar", role="img", aria_label="Shares of the time, listed below"),
        element("ul", *legend, class_="legend"),
    )


def checkpoints(history: History, run_dir: Path) -> Markup:
    """Tabulate the checkpoints that are still on disk, newest first."""
    if not history.checkpoints:
        return Markup()
    kept = [(path, each) for each in reversed(history.checkpoints) if (path := _found(each, run_dir))]
    gone = len(history.checkpoints) - len(kept)
    names = list(dict.fromkeys(name for _, each in kept for name in each.metrics))
    best = history.best.update if history.best else -1
    rows = [
        [
            element("code", path),
            each.epoch,
            each.update,
            *(short(each.metrics[name], 4) if name in each.metrics else "" for name in names),
            element("span", "best", class_="pill good") if each.update == best else "",
        ]
        for path, each in kept[:SHOWN]
    ]
    told = element("p", f"{format_count(gone, 'older checkpoint')} no longer on disk.", class_="aside") if gone else ""
    head = ["folder", "epoch", "update", *names, ""]
    return section("Checkpoints", table(head, rows, class_="numbers left") if rows else "", told)


def _found(checkpoint: CheckpointSaved, run_dir: Path) -> str | None:
    """Name the checkpoint as it lies now, relative to the run where it can be; the run may have been moved."""
    saved = Path(checkpoint.path)
    for place in (run_dir / saved.parent.name / saved.name, run_dir / saved, saved):
        if path_exists(place):
            return str(place.relative_to(run_dir)) if place.is_relative_to(run_dir) else str(place)
    return None


def notes(history: History) -> Markup:
    """List what a person should read, in the order it happened; findings have a section of their own."""
    notes = [each for each in history.notes if each.kind != FINDING]
    if not notes:
        return Markup()
    items = (
        element(
            "li",
            element("span", each.kind.replace("_", " "), class_="pill warn"),
            element("span", f"update {each.update}", class_="unit"),
            element("span", each.message),
        )
        for each in notes[-SHOWN:]
    )
    return section("Notes", element("ul", *items, class_="notes"), _left_out(len(notes), "note"))


def findings(history: History) -> Markup:
    """List what the sanitizer found while this run trained: severity, place, words and what to do."""
    found = [each for each in history.notes if each.kind == FINDING]
    if not found:
        return Markup()
    items = (
        element(
            "li",
            element(
                "span",
                str(each.details.get("severity")),
                class_=f"pill {TONES.get(str(each.details.get('severity')), 'warn')}",
            ),
            element("span", f"update {each.update}", class_="unit"),
            element("span", each.message),
            element("code", f"{each.details.get('path')}:{each.details.get('line')}")
            if each.details.get("path")
            else "",
            element("span", f"Fix: {each.details.get('fix')}", class_="aside"),
        )
        for each in found[-SHOWN:]
    )
    return section("Findings", element("ul", *items, class_="notes"), _left_out(len(found), "finding"))


def settings(history: History) -> Markup:
    """Show the configuration as it is nested, with the names the command line takes."""
    groups = dict(_groups("run", history.facts.get("config"))) | dict(_groups("options", history.facts.get("options")))
    blocks = (_block(title, pairs) for title, pairs in groups.items() if pairs)
    return section("Configuration", element("div", *blocks, class_="blocks")) if groups else Markup()


def environment(history: History) -> Markup:
    """Show what the run ran on: everything in the facts that is not shown elsewhere; long lists are folded up."""
    apart = {"config", "options", "class_names", "source", "packages"}
    groups = dict(_groups("machine and model", {k: v for k, v in history.facts.items() if k not in apart}))
    blocks = (_block(title, pairs) for title, pairs in groups.items() if pairs)
    folded = [*_packages(history.facts.get("packages")), *_sources(history.facts.get("source"))]
    return section("Environment", element("div", *blocks, class_="blocks"), *folded) if groups else Markup()


def _packages(packages: object) -> Iterator[Markup]:
    if isinstance(packages, Mapping) and packages:
        pairs = list(cast("Mapping[str, Any]", packages).items())
        title = element("summary", f"{format_count(len(pairs), 'installed package')}")
        yield element("details", title, element("div", _block("packages", pairs), class_="blocks"))


def _sources(source: object) -> Iterator[Markup]:
    for name, text in cast("Mapping[str, Any]", source if isinstance(source, Mapping) else {}).items():
        yield element("details", element("summary", f"The recipe's source: {name}"), element("pre", text))


def _groups(title: str, tree: object) -> Iterator[tuple[str, list[tuple[str, object]]]]:
    """Cut a nested mapping into its own values and one group per mapping in it; deeper ones get dotted names."""
    if not isinstance(tree, Mapping):
        return
    items = cast("Mapping[str, Any]", tree).items()
    yield title, [(key, value) for key, value in items if not isinstance(value, Mapping)]
    for key, value in items:
        if isinstance(value, Mapping):
            yield key, list(leaves(cast("Mapping[str, Any]", value)))


def _block(title: str, pairs: Sequence[tuple[str, object]]) -> Markup:
    rows = (element("div", element("dt", key), element("dd", _value(value))) for key, value in pairs)
    return element("div", element("h3", title.replace("_", " ")), element("dl", *rows), class_="block")


def _value(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(_value(each) for each in cast("Sequence[object]", value)) or "none"
    return str(value)


def _left_out(rows: int, what: str) -> Markup:
    if rows <= SHOWN:
        return Markup()
    return element("p", f"The newest {SHOWN} of {format_count(rows, what)}; all are in the journal.", class_="aside")
