"""Applies fixes with byte-exact edits, and lints again after each round."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from trueloop.core.findings import Finding, Severity
from trueloop.core.source_text import SourceText, apply_fixes
from trueloop.lint.check_file import ActiveRule, FileResult, lint_text

MAX_ROUNDS: Final = 20  # fixes may enable further fixes


class FixResult(NamedTuple):
    """A text after fixes."""

    text: str
    fix_count: int
    """Number of fixed findings."""
    result: FileResult
    """Lint result of the fixed text."""


def fix_text(
    source: str, path: str, rules: Sequence[ActiveRule], *, unsafe: bool = False, notebook: bool = False
) -> FixResult:
    """Apply fixes until none is left that helps.

    A fix is skipped if its finding remains afterwards, or if the text is no longer valid Python.

    Args:
        source: the text.
        path: path for the findings.
        rules: the rules to apply.
        unsafe: whether to apply unsafe fixes as well.
        notebook: whether the text consists of the cells of a notebook.
    """
    lint = partial(lint_text, path=path, rules=rules, notebook=notebook)
    before = lint(source)
    count, refused = 0, set[tuple[str, str]]()
    for _ in range(MAX_ROUNDS):
        wanted = [
            each
            for each in before.findings
            if each.autofix is not None and (each.autofix.safe or unsafe) and _finding_key(each, source) not in refused
        ]
        if not wanted:
            break
        text, after, done = _apply_round(source, lint, wanted)
        if not _is_improvement(before, after, wanted):
            first = wanted[0]  # one of them does not help: try each separately
            text, after, done = _apply_round(source, lint, [first])
            if not _is_improvement(before, after, [first]):
                refused.add(_finding_key(first, source))
                continue
        source, before, count = text, after, count + done
    return FixResult(source, count, before)


def _apply_round(
    source: str, lint: Callable[[str], FileResult], wanted: Sequence[Finding]
) -> tuple[str, FileResult, int]:
    text, done = apply_fixes(SourceText(source), [each.autofix for each in wanted if each.autofix is not None])
    return text.source, lint(text.source), len(done)


def _is_improvement(before: FileResult, after: FileResult, fixed: Sequence[Finding]) -> bool:
    """Return True if the text is still valid, with fewer findings of the fixed codes and no more of others.

    Notes about the inserted code do not count.
    """
    if after.problem:
        return False
    codes = {each.code for each in fixed}
    one, two = (
        [each for each in linted.findings if each.code in codes or each.severity != Severity.NOTE]
        for linted in (before, after)
    )
    return len(two) < len(one)


def _finding_key(found: Finding, source: str) -> tuple[str, str]:
    location = found.location
    return found.code, SourceText(source).line(location.line).strip() if location else ""
