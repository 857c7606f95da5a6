"""Applies fixes as byte-exact edits, and lints the text again after each round of fixes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

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
    source: str, path: str, rules: Sequence[ActiveRule], *, unsafe: bool = False, notebook: bool = False
) -> FixResult:
    """Apply fixes until no remaining fix removes a finding.

    A fix is skipped if its finding remains after the fix, or if the fixed text is not valid Python.

    Args:
        source: the source text.
        path: path to report in the findings.
        rules: the rules to apply.
        unsafe: True to apply unsafe fixes as well.
        notebook: True if the text consists of the cells of a notebook.
    """
    lint = partial(lint_text, path=path, rules=rules, notebook=notebook)
    before = lint(source)
    count, refused = 0, set[tuple[str, str]]()
    for _ in range(MAX_ROUNDS):
        fixable = [
            each
            for each in before.findings
            if each.autofix is not None and (each.autofix.safe or unsafe) and _finding_key(each, source) not in refused
        ]
        if not fixable:
            break
        text, after, done = _apply_round(source, lint, fixable)
        if not _is_improvement(before, after, fixable):
            first = fixable[0]  # one of the fixes does not help: try them one by one
            text, after, done = _apply_round(source, lint, [first])
            if not _is_improvement(before, after, [first]):
                refused.add(_finding_key(first, source))
                continue
        source, before, count = text, after, count + done
    return FixResult(source, count, before)


def _apply_round(
    source: str, lint: Callable[[str], FileResult], fixable: Sequence[Finding]
) -> tuple[str, FileResult, int]:
    text, done = apply_fixes(SourceText(source), [each.autofix for each in fixable if each.autofix is not None])
    return text.source, lint(text.source), len(done)


def _is_improvement(before: FileResult, after: FileResult, fixed: Sequence[Finding]) -> bool:
    """Return True if the text is still valid Python, and has fewer findings in total than before.

    A note counts only if its code is one of the fixed codes: the inserted code may cause other notes.
    """
    if after.problem:
        return False
    codes = {each.code for each in fixed}
    count_before, count_after = (
        sum(each.code in codes or each.severity != Severity.NOTE for each in linted.findings)
        for linted in (before, after)
    )
    return count_after < count_before


def _finding_key(finding: Finding, source: str) -> tuple[str, str]:
    location = finding.location
    return finding.code, SourceText(source).line(location.line).strip() if location else ""
