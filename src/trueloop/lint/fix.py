"""Applies fixes as byte-exact edits, and lints the text again after each round of fixes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from trueloop.analysis.project import Project
from trueloop.core.findings import Finding, Severity
from trueloop.core.source_text import SourceText, apply_fixes
from trueloop.lint.check_file import ActiveRule, FileResult, lint_text

MAX_ROUNDS: Final = 20  # a fix can make further fixes possible


class FixResult(NamedTuple):
    """A source text after fixes."""

    text: str
    fix_count: int
    """Number of fixed findings."""
    result: FileResult
    """Lint result of the fixed text."""


def fix_text(
    source: str,
    path: str,
    rules: Sequence[ActiveRule],
    *,
    unsafe: bool = False,
    notebook: bool = False,
    project: Project | None = None,
) -> FixResult:
    """Apply fixes until no remaining fix removes a finding.

    A fix is skipped if its finding remains after the fix, or if the fixed text is not valid Python.

    Args:
        source: the source text.
        path: path to report in the findings.
        rules: the rules to apply.
        unsafe: True to apply unsafe fixes as well.
        notebook: True if the text consists of the cells of a notebook.
        project: files into which imports are followed; only the text itself is fixed.
    """
    lint = partial(lint_text, path=path, rules=rules, notebook=notebook, project=project)
    before = lint(source)
    total, refused = 0, set[tuple[str, str]]()
    for _ in range(MAX_ROUNDS):
        candidates = (finding for finding in before.findings if _finding_key(finding, source) not in refused)
        fixable = [finding for finding in candidates if finding.autofix and (finding.autofix.safe or unsafe)]
        if not fixable:
            break
        text, after, fix_count = _apply_round(source, lint, fixable)
        if not _is_improvement(before, after, fixable):
            first = fixable[0]  # one of the fixes does not help: try them one by one
            text, after, fix_count = _apply_round(source, lint, [first])
            if not _is_improvement(before, after, [first]):
                refused.add(_finding_key(first, source))
                continue
        source, before, total = text, after, total + fix_count
    return FixResult(source, total, before)


def _apply_round(
    source: str, lint: Callable[[str], FileResult], fixable: Sequence[Finding]
) -> tuple[str, FileResult, int]:
    text, applied = apply_fixes(SourceText(source), [finding.autofix for finding in fixable if finding.autofix])
    return text.source, lint(text.source), len(applied)


def _is_improvement(before: FileResult, after: FileResult, fixed: Sequence[Finding]) -> bool:
    """Return True if the text is still valid Python, and has fewer findings in total than before.

    A note counts only if its code is one of the fixed codes: the inserted code may cause other notes.
    """
    fixed_codes = {finding.code for finding in fixed}

    def count(linted: FileResult) -> int:
        return sum(finding.code in fixed_codes or finding.severity != Severity.NOTE for finding in linted.findings)

    return not after.problem and count(after) < count(before)


def _finding_key(finding: Finding, source: str) -> tuple[str, str]:
    location = finding.location
    return finding.code, SourceText(source).line(location.line).strip() if location else ""
