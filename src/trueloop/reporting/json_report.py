"""A report as JSON, for programs, and back.

Schema 1. Keys may be added; none is renamed, removed or given another meaning without another number.

- ``schema``: 1.
- ``tool``: ``{"name": "trueloop", "version": ...}``.
- ``verdict``: ``"clean"``, ``"findings"`` (also if they are notes only) or ``"not judged"`` (nothing was trained);
  ``headline`` says it in a sentence.
- ``findings``: the gravest first, each with
  ``code`` ("GRD001"), ``slug`` ("never-cleared"), ``title``, ``severity`` ("error", "warning", "note"),
  ``message`` (one sentence, with the numbers that prove it),
  ``path``, ``line``, ``function`` (null, null, "" where no line of the program is known; ``path`` as Python knows it),
  ``related``: ``[{"path", "line", "function", "message"}]``,
  ``first_update`` (from 0; null where the text alone was read), ``count`` (times it was seen),
  ``fix`` (in words), ``change``: null or ``{"path", "line", "function", "text", "where"}``, where ``text``, without
  indentation, belongs "before", "after" or "instead" of the line;
  ``column``, ``end``: null, or the column (from 1, in characters) and ``[line, column]`` behind the last character,
  where the text was read; ``cell``: null, or the number of a notebook's cell, in which ``line`` is then counted;
  ``edits``: null or ``{"safe", "message", "edits": [{"start", "end", "text"}]}``: bytes of the file (in a notebook, of
  its code cells together) that another text belongs in the place of.
- ``judged``: ``[{"code", "verdict", "reason"}]``, one for each failure that is known, with the verdict "fired",
  "passed", "not applicable" or "not judged".
- ``files``: texts that were read, where nothing ran; 0 of a run.
- ``silenced``: findings that were not to be told.
- ``updates`` (optimizer steps), ``watched`` (of those, in full detail), ``seconds``.
- ``cost``: ``{"seconds", "share"}`` of the run's time that watching took at least: what is done within
  torch's calls is timed, passing them on is not.
- ``rate``: null or ``{"update_s", "data", "forward", "backward", "optimizer"}``: seconds between two updates, and the
  shares of it.
- ``series``: any of "loss", "grad_norm", "lr", "live_graphs", each ``{"updates": [...], "values": [...]}``.
- ``layers``: null, or the gradient's norm by layer: ``{"updates": [...], "layers": [...], "norms": [[...], ...]}``, for
  each layer a norm for each of the updates, null where it was not stepped then.
- ``error``: null, or the error of torch's that ended the program, explained:
  ``kind`` ("shape-mismatch"), ``type`` ("RuntimeError"), ``title``, ``message`` (torch's own, shortened),
  ``path``, ``line``, ``function`` (the program's line that raised it; null, null, "" where none is known),
  ``made_at``: null or ``{"path", "line", "function", "message"}``, the line that made the offending tensor,
  ``related`` (as above), ``update``, ``meaning``, ``fix``.
- ``problems``: what broke inside the watching, in words.

JSON knows no NaN and no infinity: they are written as the strings "nan", "inf" and "-inf".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from trueloop.core.findings import (
    Explained,
    Finding,
    SuggestedChange,
    Judged,
    LayerNorms,
    Report,
    Series,
    Severity,
    SourceLocation,
    UpdateRate,
    Verdict,
)
from trueloop.core.source_text import Edit, Fix
from trueloop.reporting.summary import cost_share, headline, outcome
from trueloop.version import __version__

SCHEMA: Final = 1


def to_json(report: Report) -> dict[str, Any]:
    """Return a report as described above: strict JSON, once it is written."""
    return {
        "schema": SCHEMA,
        "tool": {"name": "trueloop", "version": __version__},
        "verdict": outcome(report).value,
        "headline": headline(report),
        "findings": [finding_to_json(finding) for finding in report.findings],
        "judged": [{**each._asdict(), "verdict": each.verdict.value} for each in report.judged],
        "files": report.files,
        "silenced": report.silenced,
        "updates": report.updates,
        "watched": report.watched,
        "seconds": report.seconds,
        "cost": {"seconds": report.cost_s, "share": cost_share(report)},
        "rate": asdict(report.rate) if report.rate else None,
        "series": {
            name: {"updates": list(each.updates), "values": [_number(value) for value in each.values]}
            for name, each in report.series.items()
        },
        "layers": _layers(report.layers) if report.layers else None,
        "error": _error(report.error) if report.error else None,
        "problems": list(report.problems),
    }


def from_json(content: Mapping[str, Any]) -> Report:
    """Return the report that `to_json` was given.

    Raises:
        ValueError: of another schema.
        KeyError: something is missing.
    """
    if content["schema"] != SCHEMA:
        raise ValueError(f"a report of schema {content['schema']!r}; this version reads {SCHEMA}")
    rate = content["rate"]
    return Report(
        findings=tuple(_revived(each) for each in content["findings"]),
        judged=tuple(Judged(each["code"], Verdict(each["verdict"]), each["reason"]) for each in content["judged"]),
        files=content.get("files", 0),
        silenced=content["silenced"],
        updates=content["updates"],
        watched=content["watched"],
        seconds=content["seconds"],
        cost_s=content["cost"]["seconds"],
        rate=UpdateRate(**rate) if rate else None,
        series={
            name: Series(updates=tuple(each["updates"]), values=tuple(map(float, each["values"])))
            for name, each in content["series"].items()
        },
        layers=_revived_layers(content["layers"]) if content.get("layers") else None,
        error=_revived_error(content["error"]) if content.get("error") else None,
        problems=tuple(content["problems"]),
    )


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """Return one finding, as `to_json` has it."""
    site, change = finding.site, finding.change
    return {
        "code": finding.code,
        "slug": finding.slug,
        "title": finding.title,
        "severity": finding.severity.value,
        "message": finding.message,
        **(site._asdict() if site else {"path": None, "line": None, "function": ""}),
        "related": [{**where._asdict(), "message": words} for where, words in finding.related],
        "first_update": finding.first_update,
        "count": finding.count,
        "fix": finding.fix,
        "change": {**change.location._asdict(), "text": change.text, "where": change.position} if change else None,
        "column": finding.column,
        "end": list(finding.end) if finding.end else None,
        "cell": finding.cell,
        "edits": _repair(finding.repair) if finding.repair else None,
    }


def _layers(layers: LayerNorms) -> dict[str, Any]:
    norms = [[None if norm is None else _number(norm) for norm in row] for row in layers.norms]
    return {"updates": list(layers.updates), "layers": list(layers.layers), "norms": norms}


def _revived_layers(content: Mapping[str, Any]) -> LayerNorms:
    rows = [[None if norm is None else float(norm) for norm in row] for row in content["norms"]]
    return LayerNorms(updates=tuple(content["updates"]), layers=tuple(content["layers"]), norms=tuple(map(tuple, rows)))


def _repair(repair: Fix) -> dict[str, Any]:
    return {"safe": repair.safe, "message": repair.words, "edits": [edit._asdict() for edit in repair.edits]}


def _error(error: Explained) -> dict[str, Any]:
    return {
        "kind": error.kind,
        "type": error.type,
        "title": error.title,
        "message": error.message,
        **(error.site._asdict() if error.site else {"path": None, "line": None, "function": ""}),
        "made_at": {**error.made_at._asdict(), "message": error.made} if error.made_at else None,
        "related": [{**where._asdict(), "message": words} for where, words in error.others],
        "update": error.update,
        "meaning": error.meaning,
        "fix": error.fix,
    }


def _revived_error(content: Mapping[str, Any]) -> Explained:
    made = content["made_at"]
    return Explained(
        kind=content["kind"],
        type=content["type"],
        title=content["title"],
        message=content["message"],
        site=None if content["path"] is None else _site(content),
        made_at=_site(made) if made else None,
        made=made["message"] if made else "",
        others=tuple((_site(each), each["message"]) for each in content["related"]),
        update=content["update"],
        meaning=content["meaning"],
        fix=content["fix"],
    )


def _revived(content: Mapping[str, Any]) -> Finding:
    change = content["change"]
    return Finding(
        code=content["code"],
        slug=content["slug"],
        title=content["title"],
        severity=Severity(content["severity"]),
        message=content["message"],
        site=None if content["path"] is None else _site(content),
        related=tuple((_site(each), each["message"]) for each in content["related"]),
        first_update=content["first_update"],
        count=content["count"],
        fix=content["fix"],
        change=SuggestedChange(_site(change), change["text"], change["where"]) if change else None,
        column=content.get("column"),
        end=(end[0], end[1]) if (end := content.get("end")) else None,
        cell=content.get("cell"),
        repair=_revived_repair(content.get("edits")),
    )


def _revived_repair(content: Mapping[str, Any] | None) -> Fix | None:
    if content is None:
        return None
    return Fix(tuple(Edit(**edit) for edit in content["edits"]), safe=content["safe"], words=content["message"])


def _site(content: Mapping[str, Any]) -> SourceLocation:
    return SourceLocation(content["path"], content["line"], content["function"])


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(float(value))
