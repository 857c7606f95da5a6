"""`trueloop lint` behind its options: which files, which rules, what is told, what is written, the exit code."""

from __future__ import annotations

import linecache
import os
import stat
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trueloop.app.lint.lint_output import Format, LintSummary, format_path, print_results
from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import Severity
from trueloop.core.formatting import format_count
from trueloop.core.suppression import matches_code
from trueloop.failures.selection import FailureSelection, read_config_list, select_failures
from trueloop.lint.add_ignores import add_ignore_comments
from trueloop.lint.baseline import Key, baseline_key, load_baseline, write_baseline
from trueloop.lint.check_file import ActiveRule, FileResult
from trueloop.lint.check_tree import LintedFile, LintJob, cache_cell_lines, lint_content, lint_files
from trueloop.lint.files import Unreadable, decode, discover

EXIT_FINDINGS, EXIT_NOT_JUDGED = 1, 2
STDIN: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class LintOptions:
    """What the user asks for, as options of the command line."""

    format: Format = "text"
    """How findings are told: for people, one per line, or for programs."""
    select: Sequence[str] = ()
    """Look for these only: codes, families or slugs, with commas between them. Notes on style are off unless named."""
    ignore: Sequence[str] = ()
    """Do not tell of these."""
    fix: bool = False
    """Write the safe fixes into the files."""
    unsafe_fixes: bool = False
    """Write those, too, that want to be looked at. Implies --fix."""
    diff: bool = False
    """Print what --fix would change, and write nothing; exit with 1 if there is anything."""
    statistics: bool = False
    """Print how often each failure was found, instead of the findings."""
    baseline: Path | None = None
    """Do not tell of what this file lists."""
    write_baseline: Path | None = None
    """Write a file that lists all that is found, for --baseline."""
    add_ignore: bool = False
    """Silence every finding by a comment in its line, to begin with on an old code base."""
    jobs: int | None = None
    """Processes; by default as many as there are processors."""
    stdin_filename: str = "stdin.py"
    """What the text from standard input (-) is called."""
    quiet: bool = False
    """Print findings only, and nothing where there are none."""


def lint(paths: Sequence[str], options: LintOptions) -> int:
    """Look at files, tell what was found, and return the exit code: 0 clean, 1 findings, 2 something was not judged.

    Raises:
        InvalidConfig: a path that does not exist, a code that does not.
    """
    base = Path.cwd()
    selection = select_failures(options.select, options.ignore, folder=base)
    job = LintJob(active_rules(selection), fix=options.fix or options.unsafe_fixes or options.diff, unsafe=options.unsafe_fixes)
    baseline = load_baseline(options.baseline) if options.baseline else Counter[Key]()
    summary = LintSummary()
    if STDIN in paths:
        if len(paths) > 1:
            raise InvalidConfig("Standard input (-) goes with no other path.")
        return _lint_stdin(job, options, summary, base)
    files = discover(_check_paths(paths), exclude=read_config_list(base, "exclude"))
    for linted_file in lint_files(files, job, jobs=options.jobs):
        _add_result(linted_file, summary, baseline, base)
        if linted_file.after is not None:
            _write_fixes(linted_file, summary, options, base)
        if options.add_ignore and linted_file.result.findings:
            _add_ignores(linted_file.result, summary)
    if options.write_baseline:
        count = write_baseline(options.write_baseline, summary.baseline_keys)
        print(f"{options.write_baseline}: {format_count(count, 'finding')} from now on known (--baseline).", file=sys.stderr)
        return EXIT_NOT_JUDGED if summary.problems else 0
    if not options.diff:
        print_results(summary, options.format, base=base, statistics=options.statistics, quiet=options.quiet)
    return _exit_code(summary, options)


def active_rules(selection: FailureSelection) -> list[ActiveRule]:
    """Return the rules to ask: matters of style only where they are named."""
    return [
        ActiveRule(entry.failure, entry.slug, rule)
        for entry in selection.entries()
        if (rule := entry.failure.rule) is not None
        and not matches_code(entry.code, selection.ignore)
        and (not rule.opt_in or (selection.select and matches_code(entry.code, selection.select)))
    ]


def _check_paths(paths: Sequence[str]) -> list[Path]:
    for path in paths:
        if not os.path.lexists(path):
            raise InvalidConfig(f"There is no file or folder {path!r}.")
    return [Path(path) for path in paths or ["."]]


def _add_result(linted_file: LintedFile, summary: LintSummary, baseline: Counter[Key], base: Path) -> None:
    linted = linted_file.result
    summary.files += 1
    summary.suppressed += linted.suppressed
    summary.fixed_findings += linted_file.fix_count
    if linted.problem:
        summary.problems.append((linted.path, linted.problem))
    summary.unused_pragmas += linted.unused_pragmas
    if linted.findings and linted.path.endswith(".ipynb"):
        cache_cell_lines([linted.path])
    elif linted.findings:
        linecache.checkcache(linted.path)
    for finding in linted.findings:
        site = finding.location
        words = linecache.getline(site.path, site.line) if site else ""
        found = baseline_key(finding, words, base)
        summary.baseline_keys.append(found)
        if baseline[found] > 0:
            baseline[found] -= 1
            summary.in_baseline += 1
        else:
            summary.findings.append(finding)


def _write_fixes(linted_file: LintedFile, summary: LintSummary, options: LintOptions, base: Path) -> None:
    assert linted_file.after is not None
    path = Path(linted_file.result.path)
    summary.changed_files += 1
    if options.diff:
        sys.stdout.write(unified_diff(linted_file.before, linted_file.after, format_path(str(path), base)))
        return
    replace_file(path, linted_file.after)
    linecache.checkcache(str(path))


def unified_diff(before: bytes, after: bytes, name: str) -> str:
    """Return what changes in a file, as a unified diff."""
    import difflib

    old, new = (decode(content).text.splitlines(keepends=True) for content in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, with the permissions it has; a link goes on pointing where it does.

    Raises:
        InvalidConfig: it may not be written.
    """
    import tempfile

    target = path.resolve()
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            file.write(content)
        os.chmod(file.name, mode)  # noqa: PTH101
        os.replace(file.name, target)  # noqa: PTH105
    except OSError as error:
        raise InvalidConfig(f"{str(path)!r} cannot be written: {error.strerror}.") from error


def _add_ignores(linted: FileResult, summary: LintSummary) -> None:
    path = Path(linted.path)
    if path.suffix == ".ipynb":
        summary.problems.append((linted.path, "comments are not added to notebooks"))
        return
    decoded = decode(path.read_bytes())
    text, count = add_ignore_comments(decoded.text, linted.findings)
    replace_file(path, decoded.encode(text))
    summary.ignored_findings += count
    summary.findings = [finding for finding in summary.findings if finding not in linted.findings]


def _lint_stdin(job: LintJob, options: LintOptions, summary: LintSummary, base: Path) -> int:
    content = sys.stdin.buffer.read()
    name = options.stdin_filename
    try:
        linted_file = lint_content(content, name, job)
    except Unreadable as error:
        linted_file = LintedFile(FileResult(path=name, problem=str(error)), content)
    final_content = content if linted_file.after is None else linted_file.after
    with suppress(Unreadable):
        lines = decode(final_content).text.splitlines(keepends=True)
        linecache.cache[name] = (len(final_content), None, lines, name)
    if name.endswith(".ipynb") and linted_file.result.findings:
        cache_cell_lines([name], lambda path: decode(final_content).text)
    _add_result(linted_file, summary, Counter[Key](), base)
    if options.diff:
        if linted_file.after is not None:
            summary.changed_files += 1
            sys.stdout.write(unified_diff(content, linted_file.after, name))
        return _exit_code(summary, options)
    out = sys.stdout
    if job.fix:
        sys.stdout.buffer.write(final_content)
        out = sys.stderr
    print_results(summary, options.format, base=base, statistics=options.statistics, quiet=options.quiet, file=out)
    return _exit_code(summary, options)


def _exit_code(summary: LintSummary, options: LintOptions) -> int:
    if summary.problems:
        return EXIT_NOT_JUDGED
    if options.diff:
        return EXIT_FINDINGS if summary.changed_files else 0
    grave = any(finding.severity is not Severity.NOTE or options.select for finding in summary.findings)
    return EXIT_FINDINGS if grave else 0
