"""Convert a run in progress to data for a page: JSON values, bounded lists, and texts that the page must escape."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import PurePath
from typing import Any, Final, cast

from trueloop.core.formatting import format_count, format_duration, replace_unprintable
from trueloop.runs.history import iter_leaves
from trueloop.runs.live.feed import FeedReader
from trueloop.runs.live.journal import MAX_TEXT_CHARS, JournalReader
from trueloop.runs.live.plots import feed_panels, run_panels
from trueloop.runs.panels import Panel
from trueloop.runs.queries.running import is_training
from trueloop.runs.report import OUTCOMES
from trueloop.runs.report_sections import FINDING_KIND, TIME_LABELS

MAX_SETTINGS: Final = 200
MAX_ITEMS: Final = 100  # number of newest notes, findings and checkpoints
MAX_EXCERPT_LINES: Final = 60  # lines in an excerpt of a finding
MAX_CHECKPOINT_NAMES: Final = 2000  # number of names to read from a run folder
NO_NORMS_MESSAGES: Final = {
    "trained": "This run's journal has no gradient norms by layer.",
    "watched": "No gradient norms by layer yet: they are not read from a GPU, because reading would slow training.",
}


def run_page(run: JournalReader, smoothing: float = 1.0) -> dict[str, Any]:
    """Return the page data of a run of `trueloop train`, whose curves have this factor of the default smoothing."""
    started, split = run.started, run.time_split()
    state, tone, sentence = _describe_state(run)
    spent = [(name, label, getattr(split, name)) for name, label in TIME_LABELS.items()]
    findings = [note for note in run.notes if note.kind == FINDING_KIND]
    notes = [note for note in run.notes if note.kind != FINDING_KIND]
    return {
        "kind": "trained",
        "name": _text(run.run_dir.name),
        "what": _text(started.name if started else ""),
        "state": state,
        "tone": tone,
        "words": sentence,
        "began": run.started_at,
        "seconds": run.end.seconds if run.end and run.processes == 1 else split.total,
        "update": run.update,
        "updates": started.updates if started else None,
        "epoch": run.epoch,
        "epochs": started.epochs if started else None,
        "panels": [panel_json(panel) for panel in run_panels(run, smoothing)],
        "layers": run.layers.to_heatmap(),
        "no_layers": NO_NORMS_MESSAGES["trained"],
        "spent": [
            {"name": name, "label": label, "seconds": seconds, "share": seconds / split.total}
            for name, label, seconds in spent
            if split.total > 0
        ],
        "findings": [_finding({**note.details, "message": note.message}, []) for note in findings[-MAX_ITEMS:]],
        "notes": [
            {"update": note.update, "kind": _text(note.kind.replace("_", " ")), "message": _text(note.message)}
            for note in notes[-MAX_ITEMS:]
        ],
        "checkpoints": _checkpoints(run),
        "settings": _settings(started.facts if started else {}),
        "verdicts": [],
        "error": None,
        **_reading_progress(run),
    }


def feed_page(feed: FeedReader, smoothing: float = 1.0) -> dict[str, Any]:
    """Return the page data of a program under `trueloop run --lab`; for ``smoothing``, see `run_page`."""
    status, report = feed.status(), feed.report or {}
    shares = {name.removesuffix("_share"): value for name, value in (status.timing or {}).items()}
    update_s = shares.pop("update_s", 0.0)
    shares["other"] = max(0.0, 1 - sum(shares.values()))
    tone = {"running": "good", "finished": "good"}.get(status.state, "bad")
    headline = _text(report.get("headline")) or feed.end_summary
    summaries = {"running": "Running.", "killed": "The program ended without a report: a kill, or a call of os._exit."}
    return {
        "kind": "watched",
        "name": _text(feed.program.get("name")),
        "what": _text(feed.program.get("command")),
        "state": status.state,
        "tone": "warn" if tone == "good" and feed.findings else tone,
        "words": headline or summaries.get(status.state, f"Ended with exit code {status.code}."),
        "began": feed.started_at,
        "seconds": status.seconds,
        "update": status.updates,
        "updates": None,
        "epoch": None,
        "epochs": None,
        "panels": [panel_json(panel) for panel in feed_panels(feed, smoothing)],
        "layers": feed.layers.to_heatmap(),
        "no_layers": NO_NORMS_MESSAGES["watched"],
        "spent": [
            {"name": name, "label": name, "seconds": share * update_s, "share": share}
            for name, share in shares.items()
            if status.timing
        ],
        "findings": _feed_findings(feed),
        "notes": [
            {"update": None, "kind": "problem", "message": _text(problem)} for problem in _list(report, "problems")
        ],
        "checkpoints": [],
        "settings": [
            [name, _text(feed.program.get(name))] for name in ("command", "folder", "python", "trueloop", "pid", "rank")
        ],
        "verdicts": _verdicts(report),
        "error": _error(feed),
        **_reading_progress(feed),
        "changed": feed.started_at + status.seconds,
    }


def panel_json(panel: Panel) -> dict[str, Any]:
    """Convert a panel to JSON with values of five significant digits; its curves have no non-finite values."""
    record = asdict(panel)
    for curve in record["curves"]:
        curve["y"] = [float(f"{value:.5g}") for value in curve["y"]]
    return record


def _reading_progress(run: JournalReader | FeedReader) -> dict[str, Any]:
    return {
        "behind": run.has_more,
        "read": run.tail.offset,
        "size": run.tail.size,
        "changed": run.tail.changed_at,
        "problem": run.problem,
    }


def run_state(run: JournalReader) -> str:
    """Return the state of a run in one word, as in its report and in lists."""
    return _describe_state(run)[0]


def _describe_state(run: JournalReader) -> tuple[str, str, str]:
    progress = f"{format_count(run.epoch, 'epoch')}, {format_count(run.update, 'update')}"
    if run.problem:
        return "damaged", "bad", run.problem
    if run.started is None:
        return "empty", "warn", "No run has started here yet."
    if run.end is not None:
        reason = _text(run.end.reason)
        tone, _ = OUTCOMES.get(reason, ("warn", reason))
        return reason, tone, f"{progress} in {format_duration(run.end.seconds)}."
    training = is_training(run.run_dir)
    if training:
        return "running", "good", f"{progress} so far."
    state = "unknown" if training is None else "killed"
    return state, "warn", f"No end is recorded after {progress}; the same command resumes the run."


def _checkpoints(run: JournalReader) -> list[dict[str, Any]]:
    """List the newest checkpoints; "there" is True if the folder of a checkpoint still exists in the run folder."""
    try:
        with os.scandir(run.run_dir / "checkpoints") as entries:
            existing_names = {entry.name for entry in islice(entries, MAX_CHECKPOINT_NAMES)}
    except OSError:  # no checkpoint was saved
        existing_names = set[str]()
    return [
        {
            "name": _text(name := PurePath(checkpoint.path).name),
            "update": checkpoint.update,
            "epoch": checkpoint.epoch,
            "metrics": {_text(key): value for key, value in list(checkpoint.metrics.items())[:8]},
            "seconds": checkpoint.seconds,
            "there": name in existing_names,
        }
        for checkpoint in reversed(list(run.checkpoints)[-MAX_ITEMS:])
    ]


def _settings(facts: Mapping[str, Any]) -> list[list[str]]:
    groups = {
        name: value for name in ("config", "options", "sizes", "versions") if isinstance(value := facts.get(name), dict)
    }
    pairs = [(name.removeprefix("config."), value) for name, value in iter_leaves(groups)]
    pairs += [(name, facts[name]) for name in ("recipe", "parameters", "device", "run_id") if name in facts]
    return [[_text(name), _text(value)] for name, value in pairs[:MAX_SETTINGS]]


def _feed_findings(feed: FeedReader) -> list[dict[str, Any]]:
    """List the findings of a feed, with their final counts if the program has ended."""
    final = {
        _finding_key(finding): cast("dict[str, Any]", finding)
        for finding in _list(feed.report or {}, "findings")
        if isinstance(finding, dict)
    }
    findings: list[dict[str, Any]] = []
    for record in list(feed.findings)[-MAX_ITEMS:]:
        finding = cast("dict[str, Any]", record.get("finding") if isinstance(record.get("finding"), dict) else {})
        findings.append(_finding(final.get(_finding_key(finding), finding), _list(record, "excerpts")))
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(findings, key=lambda finding: (order.get(finding["severity"], 3), finding["first_update"] or 0))


def _finding_key(finding: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(_text(finding.get(name)) for name in ("code", "path", "line", "message"))


def _finding(finding: Mapping[str, Any], excerpts: list[Any]) -> dict[str, Any]:
    first, line, count = finding.get("first_update"), finding.get("line"), finding.get("count")
    severity = finding.get("severity")
    texts = {name: _text(finding.get(name)) for name in ("code", "slug", "title", "message", "path", "function", "fix")}
    return {
        **texts,
        "severity": severity if severity in ("error", "warning", "note") else "warning",
        "line": line if type(line) is int else None,
        "first_update": first if type(first) is int else None,
        "count": count if type(count) is int else 1,
        "excerpts": [_excerpt(excerpt) for excerpt in excerpts[:4] if isinstance(excerpt, dict)],
    }


def _error(feed: FeedReader) -> dict[str, Any] | None:
    """Return the explanation of the PyTorch error that ended a program."""
    error = (feed.report or {}).get("error")
    if not isinstance(error, dict):
        return None
    record = cast("dict[str, Any]", error)
    texts = {name: _text(record.get(name)) for name in ("type", "title", "message", "meaning", "fix")}
    return {**texts, "excerpts": [_excerpt(excerpt) for excerpt in feed.excerpts[:4] if isinstance(excerpt, dict)]}


def _excerpt(excerpt: Mapping[str, Any]) -> dict[str, Any]:
    lines = [_excerpt_line(line) for line in _list(excerpt, "lines")[:MAX_EXCERPT_LINES]]
    return {"path": _text(excerpt.get("path")), "function": _text(excerpt.get("function")), "lines": lines}


def _excerpt_line(line: Any) -> dict[str, Any] | None:
    """Return one line of an excerpt; None for the mark of omitted lines."""
    if not isinstance(line, dict) or not line:
        return None
    fields = cast("dict[str, Any]", line)
    return {
        "number": fields["number"] if type(fields.get("number")) is int else 0,
        "text": _text(fields.get("text"))[:300],
        "fault": bool(fields.get("fault")),
        "words": [_text(word) for word in _list(fields, "words")[:4]],
    }


def _verdicts(report: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {name: _text(cast("dict[str, Any]", verdict).get(name)) for name in ("code", "verdict", "reason")}
        for verdict in _list(report, "verdicts")[:MAX_SETTINGS]
        if isinstance(verdict, dict)
    ]


def _list(record: Mapping[str, Any], name: str) -> list[Any]:
    value = record.get(name)
    return cast("list[Any]", value) if isinstance(value, list) else []


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in list(cast("Iterable[object]", value))[:20])
    lines = str(value)[:MAX_TEXT_CHARS].expandtabs(4).split("\n")
    return "\n".join(map(replace_unprintable, lines))  # bidirectional controls could disguise code
