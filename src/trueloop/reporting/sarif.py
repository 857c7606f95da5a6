"""Convert a report to SARIF 2.1.0 for editors, code hosts and CI."""

import hashlib
import linecache
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from trueloop.core.findings import ExplainedError, Finding, Report, Severity, SourceLocation
from trueloop.core.source_text import Fix
from trueloop.failures.load import catalogue
from trueloop.failures.page import first_reference_url, render_markdown
from trueloop.version import __version__

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT: Final = "primaryLocationLineHash"
"""Key under which code hosts expect the fingerprint of a result."""


def to_sarif(report: Report, *, base: Path | None = None) -> dict[str, Any]:
    """Return a SARIF log with one run of the tool.

    Args:
        report: report of a run or of the linter.
        base: paths inside this folder are written relative to it; for code hosts, the root of the repository.
    """
    findings = [*([_error_as_finding(report.error)] if report.error else []), *report.findings]
    rules = list({finding.code: _rule(finding) for finding in findings}.values())
    rule_indices = {rule["id"]: index for index, rule in enumerate(rules)}
    driver = {"name": "trueloop", "semanticVersion": _to_semver(__version__), "version": __version__, "rules": rules}
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": list(_results(findings, rule_indices, base)),
        "invocations": [_invocation(report.problems)],
    }
    if base is not None:
        run["originalUriBaseIds"] = {"SRCROOT": {"uri": f"{base.resolve().as_uri().rstrip('/')}/"}}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _results(
    findings: Iterable[Finding], rule_indices: Mapping[str, int], base: Path | None
) -> Iterable[dict[str, Any]]:
    counts: dict[str, int] = {}
    for finding in findings:
        fingerprint = _fingerprint(finding, base)
        counts[fingerprint] = counts.get(fingerprint, 0) + 1
        result: dict[str, Any] = {
            "ruleId": finding.code,
            "ruleIndex": rule_indices[finding.code],
            "level": finding.severity.value,  # SARIF uses the same words
            "message": {"text": f"{finding.message} {finding.fix}".strip()},
            "occurrenceCount": max(1, finding.count),
            "partialFingerprints": {FINGERPRINT: f"{fingerprint}:{counts[fingerprint]}"},
        }
        if finding.location:
            result["locations"] = [_location(finding.location, base, finding)]
        if finding.location and finding.autofix and finding.cell is None:
            result["fixes"] = [_fix(finding.autofix, finding.location, base)]
        if finding.related:
            result["relatedLocations"] = [
                {"id": number, **_location(location, base), "message": {"text": message}}
                for number, (location, message) in enumerate(finding.related)
            ]
        if finding.first_update is not None:
            result["properties"] = {"firstUpdate": finding.first_update}
        yield result


def _error_as_finding(error: ExplainedError) -> Finding:
    """Convert the error that ended a run to a finding."""
    return Finding(
        code=f"raised/{error.kind}",
        slug=error.kind,
        title=error.title,
        severity=Severity.ERROR,
        message=f"{error.type}: {error.message} {error.meaning}",
        location=error.location,
        related=error.related,
        first_update=error.update,
        fix=error.fix,
    )


def _fingerprint(finding: Finding, base: Path | None) -> str:
    """Return a hash of the code, the file and the text of the line; it does not change when the line moves."""
    location = finding.location
    path = _artifact(location.path, base)["uri"] if location else ""
    line = linecache.getline(location.path, location.line) if location else ""
    content = "\0".join((finding.code, path, line.strip()))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _rule(finding: Finding) -> dict[str, Any]:
    """Return the SARIF rule of a failure: from its page or, if the catalogue lacks the failure, from the finding."""
    entry = catalogue().get(finding.code)
    fix = entry.failure.fix if entry else finding.fix
    command = f" Full page: trueloop explain {finding.code}" if entry else ""
    rule: dict[str, Any] = {
        "id": finding.code,
        "name": "".join(word.capitalize() for word in finding.slug.split("-")),
        "shortDescription": {"text": f"{finding.title}."},
        "help": {"text": f"{fix}{command}".strip()},
        "defaultConfiguration": {"level": finding.severity.value},
    }
    if entry:
        page = entry.failure.doc
        rule["fullDescription"] = {"text": " ".join(page.split("\n\n", 1)[0].split())}
        rule["help"]["markdown"] = render_markdown(page)
        rule["properties"] = {"tags": [entry.family]}
        if address := first_reference_url(page):
            rule["helpUri"] = address
    return rule


def _fix(fix: Fix, location: SourceLocation, base: Path | None) -> dict[str, Any]:
    replacements = [
        {
            "deletedRegion": {"byteOffset": edit.start, "byteLength": edit.end - edit.start},
            "insertedContent": {"text": edit.text},
        }
        for edit in fix.edits
    ]
    change = {"artifactLocation": _artifact(location.path, base), "replacements": replacements}
    return {"description": {"text": f"{fix.description}."}, "artifactChanges": [change]}


def _location(location: SourceLocation, base: Path | None, finding: Finding | None = None) -> dict[str, Any]:
    file, _, cell = location.path.partition(":cell ")
    if cell:  # a notebook: a line of a cell is not a line of the file
        return {
            "physicalLocation": {"artifactLocation": _artifact(file, base)},
            "message": {"text": f"Cell {cell}, line {location.line}."},
        }
    region = {"startLine": max(1, location.line)}
    if finding is not None and finding.column and finding.end:
        region |= {"startColumn": finding.column, "endLine": finding.end[0], "endColumn": finding.end[1]}
    physical = {"artifactLocation": _artifact(location.path, base), "region": region}
    logical = {"logicalLocations": [{"name": location.function, "kind": "function"}]} if location.function else {}
    return {"physicalLocation": physical, **logical}


def _artifact(path: str, base: Path | None) -> dict[str, str]:
    """Return the SARIF artifactLocation of a file, relative to ``base`` if the file is inside it."""
    if base is not None:
        normalised = Path(os.path.normpath(base / path))  # pathlib keeps "a/../b.py" unchanged
        for root in (base, base.resolve()):
            if normalised.is_relative_to(root):
                return {"uri": _quote(normalised.relative_to(root).as_posix()), "uriBaseId": "SRCROOT"}
        path = str(normalised)
    return {"uri": Path(path).as_uri() if Path(path).is_absolute() else _quote(path)}


def _quote(path: str) -> str:
    return quote(path.encode("utf-8", "surrogateescape"), safe="/")


def _to_semver(version: str) -> str:
    """Convert a Python version to a semantic version: "1.2.3-dev4" for 1.2.3.dev4."""
    parts = version.split(".")
    return ".".join(parts[:3]) + "".join(f"-{part}" for part in parts[3:])


def _invocation(problems: Iterable[str]) -> dict[str, Any]:
    notifications = [{"level": "warning", "message": {"text": problem}} for problem in problems]
    return {"executionSuccessful": True, **({"toolExecutionNotifications": notifications} if notifications else {})}
