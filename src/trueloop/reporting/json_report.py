"""Convert a report to JSON and back.

This is schema 1. New keys may be added to it; renaming or removing a key, or changing its meaning, needs a new number.

- ``schema``: 1.
- ``tool``: ``{"name": "trueloop", "version": ...}``.
- ``verdict``: ``"clean"``, ``"findings"`` (also if all of them are notes) or ``"not judged"`` (nothing was trained);
  ``headline`` is the verdict in a sentence.
- ``findings``: most severe first, each with
  ``code`` ("GRD001"), ``slug`` ("never-cleared"), ``title``, ``severity`` ("error", "warning", "note"),
  ``message`` (one sentence, with the numbers that prove it),
  ``path``, ``line``, ``function`` (null, null, "" if no line of the user is known; ``path`` as in Python's tracebacks),
  ``related``: ``[{"path", "line", "function", "message"}]``,
  ``first_update`` (from 0; null for a finding of the linter), ``count`` (number of occurrences),
  ``fix`` (text), ``change``: null or ``{"path", "line", "function", "text", "position"}``, where ``text``, without
  indentation, goes "before", "after" or "instead" of the line;
  ``column``, ``end``: null, or, for findings of the linter, the column (from 1, in characters) and ``[line, column]``
  after the last character; ``cell``: null, or the number of the notebook cell in which ``line`` is counted;
  ``autofix``: null or ``{"safe", "message", "edits": [{"start", "end", "text"}]}``: byte ranges of the file (of a
  notebook: of its code cells joined) and the text that replaces each.
- ``verdicts``: ``[{"code", "verdict", "reason"}]``, one for each failure of the catalogue, with the verdict "fired",
  "passed", "not applicable" or "not judged".
- ``files``: number of files the linter read; 0 for a run.
- ``suppressed``: number of findings that comments or settings suppress.
- ``updates`` (optimizer steps), ``updates_traced`` (updates with full tracing), ``seconds``.
- ``overhead``: ``{"seconds", "share"}``: seconds spent tracing and their share of the run's time, as lower bounds: the
  work inside hooks is timed, calling the hooks is not.
- ``timing``: null or ``{"update_s", "data_share", "forward_share", "backward_share", "optimizer_share"}``: seconds
  between two updates, and the share of each phase.
- ``series``: any of "loss" (where backward passes start), "loss_read" (each loss that the program reads), "grad_norm",
  "lr", "live_graphs", "held_out_loss" (of evaluations), each ``{"updates": [...], "values": [...]}``.
- ``layer_gradient_norms``: null, or ``{"updates": [...], "layers": [...], "norms": [[...], ...]}``: for each layer one
  norm per update, null where the layer was not stepped.
- ``layers``: ``[{"layer", "gradient", "update_ratio", "activation", "idle"}]``, first layer first: the norm of its
  gradient at the end of the run, that of an update over that of the weight, the activation behind it ("relu",
  "sigmoid", "tanh" or ""), and the share of dead units (ReLU) or saturated values (sigmoid, tanh); null = not read.
- ``learning``: null, or ``{"verdict", "kind", "start", "end", "constant", "updates", "only_class", "share",
  "held_out"}``: the loss at the start and the end of the run, and that of the best constant answer (null if it is not
  defined), with the verdict "learning", "overfitting", "memorised", "slowly", "not at all", "diverging" or "unknown".
  ``only_class`` is null, or the class that alone was predicted at the end, and ``share`` its share of the targets.
  ``held_out`` is null, or, if the verdict is about held-out samples, ``{"best", "best_update", "end"}``: their
  lowest loss, the number of updates before it, and their loss at the end.
- ``error``: null, or the explained PyTorch error that ended the program:
  ``kind`` ("shape-mismatch"), ``type`` ("RuntimeError"), ``title``, ``message`` (PyTorch's own, shortened),
  ``path``, ``line``, ``function`` (the user line that raised it; null, null, "" if none is known),
  ``origin``: null or ``{"path", "line", "function", "message"}``, the line that created the offending tensor,
  ``related`` (as above), ``update``, ``meaning``, ``fix``.
- ``problems``: internal errors of the sanitizer, as text.

JSON has no NaN and no infinity: they are written as the strings "nan", "inf" and "-inf".
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from trueloop.core.findings import (
    ExplainedError,
    FailureVerdict,
    Finding,
    LayerGradientNorms,
    LayerState,
    Report,
    Series,
    Severity,
    SourceLocation,
    SuggestedChange,
    UpdateTiming,
    Verdict,
)
from trueloop.core.learning import HeldOutLoss, LearningSummary, LearningVerdict
from trueloop.core.source_text import Edit, Fix
from trueloop.reporting.summary import headline, outcome, overhead_share
from trueloop.version import __version__

SCHEMA: Final = 1


def to_json(report: Report) -> dict[str, Any]:
    """Return a report as the JSON object that this module describes."""
    return {
        "schema": SCHEMA,
        "tool": {"name": "trueloop", "version": __version__},
        "verdict": outcome(report).value,
        "headline": headline(report),
        "findings": [finding_to_json(finding) for finding in report.findings],
        "verdicts": [{**verdict._asdict(), "verdict": verdict.verdict.value} for verdict in report.verdicts],
        "files": report.files,
        "suppressed": report.suppressed,
        "updates": report.updates,
        "updates_traced": report.updates_traced,
        "seconds": report.seconds,
        "overhead": {"seconds": report.overhead_s, "share": overhead_share(report)},
        "timing": asdict(report.timing) if report.timing else None,
        "series": {
            name: {"updates": list(series.updates), "values": [_number(value) for value in series.values]}
            for name, series in report.series.items()
        },
        "layer_gradient_norms": _layer_norms_to_json(report.layer_gradient_norms)
        if report.layer_gradient_norms
        else None,
        "layers": [_layer_to_json(each) for each in report.layers],
        "learning": _learning_to_json(report.learning) if report.learning else None,
        "error": _error_to_json(report.error) if report.error else None,
        "problems": list(report.problems),
    }


def from_json(content: Mapping[str, Any]) -> Report:
    """Return the report of a JSON object that `to_json` returned.

    Raises:
        ValueError: the object has another schema.
        KeyError: a key is missing.
    """
    if content["schema"] != SCHEMA:
        raise ValueError(f"a report of schema {content['schema']!r}; this version reads {SCHEMA}")
    timing = content["timing"]
    return Report(
        findings=tuple(_finding_from_json(finding) for finding in content["findings"]),
        verdicts=tuple(
            FailureVerdict(verdict["code"], Verdict(verdict["verdict"]), verdict["reason"])
            for verdict in content["verdicts"]
        ),
        files=content.get("files", 0),
        suppressed=content["suppressed"],
        updates=content["updates"],
        updates_traced=content["updates_traced"],
        seconds=content["seconds"],
        overhead_s=content["overhead"]["seconds"],
        timing=UpdateTiming(**timing) if timing else None,
        series={
            name: Series(updates=tuple(series["updates"]), values=tuple(map(float, series["values"])))
            for name, series in content["series"].items()
        },
        layer_gradient_norms=_layer_norms_from_json(norms) if (norms := content.get("layer_gradient_norms")) else None,
        layers=tuple(_layer_from_json(each) for each in content.get("layers", ())),
        learning=_learning_from_json(learning) if (learning := content.get("learning")) else None,
        error=_error_from_json(content["error"]) if content.get("error") else None,
        problems=tuple(content["problems"]),
    )


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """Return one finding as an entry of ``findings``."""
    location, change = finding.location, finding.change
    return {
        "code": finding.code,
        "slug": finding.slug,
        "title": finding.title,
        "severity": finding.severity.value,
        "message": finding.message,
        **(location._asdict() if location else {"path": None, "line": None, "function": ""}),
        "related": [{**location._asdict(), "message": message} for location, message in finding.related],
        "first_update": finding.first_update,
        "count": finding.count,
        "fix": finding.fix,
        "change": {**change.location._asdict(), "text": change.text, "position": change.position} if change else None,
        "column": finding.column,
        "end": list(finding.end) if finding.end else None,
        "cell": finding.cell,
        "autofix": _fix_to_json(finding.autofix) if finding.autofix else None,
    }


def _layer_norms_to_json(layers: LayerGradientNorms) -> dict[str, Any]:
    norms = [[None if norm is None else _number(norm) for norm in row] for row in layers.norms]
    return {"updates": list(layers.updates), "layers": list(layers.layers), "norms": norms}


def _layer_norms_from_json(content: Mapping[str, Any]) -> LayerGradientNorms:
    rows = [[None if norm is None else float(norm) for norm in row] for row in content["norms"]]
    return LayerGradientNorms(
        updates=tuple(content["updates"]), layers=tuple(content["layers"]), norms=tuple(map(tuple, rows))
    )


def _layer_to_json(layer: LayerState) -> dict[str, Any]:
    return {key: _number(each) if isinstance(each, float) else each for key, each in layer._asdict().items()}


def _layer_from_json(content: Mapping[str, Any]) -> LayerState:
    numbers = {
        key: float(each) for key, each in content.items() if key not in ("layer", "activation") and each is not None
    }
    return LayerState(layer=content["layer"], activation=content["activation"], **numbers)


def _learning_to_json(learning: LearningSummary) -> dict[str, Any]:
    start, end = _number(learning.start), _number(learning.end)
    held_out = learning.held_out._asdict() if learning.held_out else None
    return {
        **learning._asdict(), "verdict": learning.verdict.value, "start": start, "end": end, "held_out": held_out
    }  # fmt: skip


def _learning_from_json(content: Mapping[str, Any]) -> LearningSummary:
    return LearningSummary(
        verdict=LearningVerdict(content["verdict"]),
        kind=content["kind"],
        start=float(content["start"]),
        end=float(content["end"]),
        constant=None if content["constant"] is None else float(content["constant"]),
        updates=content["updates"],
        only_class=content.get("only_class"),
        share=float(content.get("share", 0.0)),
        held_out=HeldOutLoss(**held_out) if (held_out := content.get("held_out")) else None,
    )


def _fix_to_json(fix: Fix) -> dict[str, Any]:
    return {"safe": fix.safe, "message": fix.description, "edits": [edit._asdict() for edit in fix.edits]}


def _error_to_json(error: ExplainedError) -> dict[str, Any]:
    return {
        "kind": error.kind,
        "type": error.type,
        "title": error.title,
        "message": error.message,
        **(error.location._asdict() if error.location else {"path": None, "line": None, "function": ""}),
        "origin": {**error.origin._asdict(), "message": error.origin_message} if error.origin else None,
        "related": [{**location._asdict(), "message": message} for location, message in error.other_locations],
        "update": error.update,
        "meaning": error.meaning,
        "fix": error.fix,
    }


def _error_from_json(content: Mapping[str, Any]) -> ExplainedError:
    origin = content["origin"]
    return ExplainedError(
        kind=content["kind"],
        type=content["type"],
        title=content["title"],
        message=content["message"],
        location=None if content["path"] is None else _location(content),
        origin=_location(origin) if origin else None,
        origin_message=origin["message"] if origin else "",
        other_locations=tuple((_location(other), other["message"]) for other in content["related"]),
        update=content["update"],
        meaning=content["meaning"],
        fix=content["fix"],
    )


def _finding_from_json(content: Mapping[str, Any]) -> Finding:
    change = content["change"]
    return Finding(
        code=content["code"],
        slug=content["slug"],
        title=content["title"],
        severity=Severity(content["severity"]),
        message=content["message"],
        location=None if content["path"] is None else _location(content),
        related=tuple((_location(other), other["message"]) for other in content["related"]),
        first_update=content["first_update"],
        count=content["count"],
        fix=content["fix"],
        change=SuggestedChange(_location(change), change["text"], change["position"]) if change else None,
        column=content.get("column"),
        end=(end[0], end[1]) if (end := content.get("end")) else None,
        cell=content.get("cell"),
        autofix=_fix_from_json(content.get("autofix")),
    )


def _fix_from_json(content: Mapping[str, Any] | None) -> Fix | None:
    if content is None:
        return None
    return Fix(tuple(Edit(**edit) for edit in content["edits"]), safe=content["safe"], description=content["message"])


def _location(content: Mapping[str, Any]) -> SourceLocation:
    return SourceLocation(content["path"], content["line"], content["function"])


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(float(value))
