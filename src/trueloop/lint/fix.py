"""Takes findings away: byte-exact edits, read again after each round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from trueloop.core.findings import Finding, Severity
from trueloop.core.source_text import SourceText, apply_fixes
from trueloop.lint.check_file import FileResult, ActiveRule, lint_text

MAX_ROUNDS: Final = 20  # of fixes upon fixes


class FixResult(NamedTuple):
    """A text after its fixes."""

    text: str
    fix_count: int
    """Findings that are gone."""
    result: FileResult
    """What the rules find in it now."""


def fix_text(source: str, path: str, rules: Sequence[ActiveRule], *, unsafe: bool = False, notebook: bool = False) -> FixResult:
    """Apply every fix, until there is none or none that helps.

    A fix that does not take its finding away, or after which the text is no Python any more, is left out: the finding
    stays.

    Args:
        source: the text.
        path: as the findings tell it.
        rules: to be asked.
        unsafe: apply those that want to be looked at, too.
        notebook: the text is that of the cells of a notebook, one after the other.
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
            first = wanted[0]  # one of them does harm: try each alone
            text, after, done = _apply_round(source, lint, [first])
            if not _is_improvement(before, after, [first]):
                refused.add(_finding_key(first, source))
                continue
        source, before, count = text, after, count + done
    return FixResult(source, count, before)


def _apply_round(source: str, lint: Callable[[str], FileResult], wanted: Sequence[Finding]) -> tuple[str, FileResult, int]:
    text, done = apply_fixes(SourceText(source), [each.autofix for each in wanted if each.autofix is not None])
    return text.source, lint(text.source), len(done)


def _is_improvement(before: FileResult, after: FileResult, fixed: Sequence[Finding]) -> bool:
    """True where the text can be judged still, with fewer findings of those codes and no more of others.

    Notes on what was written do not count.
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
    site = found.location
    return found.code, SourceText(source).line(site.line).strip() if site else ""
