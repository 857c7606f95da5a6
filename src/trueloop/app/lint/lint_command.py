"""Run `trueloop lint`: select files and rules, print findings, write fixes and return the exit code."""

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

from trueloop.analysis.project import Project
from trueloop.app.lint.lint_output import Format, LintSummary, format_path, print_results
from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import Severity
from trueloop.core.formatting import format_count
from trueloop.core.paths import is_file, is_folder
from trueloop.core.suppression import matches_code
from trueloop.failures.load import plugin_versions
from trueloop.failures.selection import FailureSelection, read_config_list, select_failures
from trueloop.lint.add_ignores import add_ignore_comments
from trueloop.lint.baseline import Key, baseline_key, load_baseline, write_baseline
from trueloop.lint.cache import MIN_FILES, LintCache
from trueloop.lint.check_file import ActiveRule, FileResult
from trueloop.lint.check_tree import LintedFile, LintJob, cache_cell_lines, lint_content, lint_files
from trueloop.lint.files import Unreadable, decode, discover, read_text

EXIT_FINDINGS, EXIT_NOT_JUDGED = 1, 2
STDIN: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class LintOptions:
    """Options of `trueloop lint`."""

    format: Format = "text"
    """Output format: for people, one finding per line, or for programs."""
    select: Sequence[str] = ()
    """Report only these codes, families or slugs, separated by commas. Style notes are off unless named."""
    ignore: Sequence[str] = ()
    """Do not report these codes, families or slugs."""
    fix: bool = False
    """Apply the safe fixes to the files."""
    unsafe_fixes: bool = False
    """Apply unsafe fixes as well, which must be reviewed. Implies --fix."""
    diff: bool = False
    """Print what --fix would change and write nothing; exit with 1 if there are changes."""
    statistics: bool = False
    """Print the number of findings per failure instead of the findings."""
    baseline: Path | None = None
    """Do not report the findings that this file lists."""
    write_baseline: Path | None = None
    """Write all current findings to this file, for --baseline."""
    add_ignore: bool = False
    """Suppress every finding by a comment on its line, to adopt the linter on an old code base."""
    jobs: int | None = None
    """Number of processes; by default the number of processors."""
    no_cache: bool = False
    """Check every file, also those that are unchanged since an earlier call, and write no .trueloop_cache folder."""
    stdin_filename: str = "stdin.py"
    """File name to report for source code from standard input (-)."""
    strict: bool = False
    """Exit with 2 if any file could not be checked, not only if none could."""
    quiet: bool = False
    """Print findings only, and nothing if there are none."""


def lint(paths: Sequence[str], options: LintOptions) -> int:
    """Lint files, print the findings and return the exit code.

    Returns:
        0 = no findings, 1 = findings, 2 = no file could be checked, or with ``strict`` some files could not.

    Raises:
        InvalidConfig: a path or a code does not exist.
    """
    base = Path.cwd()
    selection = select_failures(options.select, options.ignore, folder=base)
    job = LintJob((), fix=options.fix or options.unsafe_fixes or options.diff, unsafe=options.unsafe_fixes)
    baseline = load_baseline(options.baseline) if options.baseline else Counter[Key]()
    summary = LintSummary()
    if STDIN in paths:
        if len(paths) > 1:
            raise InvalidConfig("Standard input (-) cannot be combined with other paths.")
        return _lint_stdin(job._replace(rules=active_rules(selection)), options, summary, base)
    named = _check_paths(paths)
    files = list(discover(named, exclude=read_config_list(base, "exclude")))
    folders = {str(each.parent) for each in named if not is_folder(each)}
    job = job._replace(project=Project(map(str, files), read_text, folders))
    cacheable = len(files) >= MIN_FILES and not folders and not job.fix and not options.no_cache
    ignored = [f"-{code}" for code in selection.ignore]
    cache = LintCache(base, files, [*selection.select, *ignored, *plugin_versions()]) if cacheable else None
    if cache is None or any(cache.result(str(each)) is None for each in files):  # importing all rules takes time
        job = job._replace(rules=active_rules(selection))
    for linted_file in lint_files(files, job, jobs=options.jobs, cache=cache):
        _add_result(linted_file, summary, baseline, base)
        if linted_file.after is not None:
            _write_fixes(linted_file, summary, options, base)
        if options.add_ignore and linted_file.result.findings:
            _add_ignores(linted_file.result, summary)
    if cache is not None:
        cache.save()
    summary.drop_used_pragmas()
    if options.write_baseline:
        count = write_baseline(options.write_baseline, summary.baseline_keys)
        print(f"Wrote {format_count(count, 'finding')} to {options.write_baseline}, for --baseline.", file=sys.stderr)
        return EXIT_NOT_JUDGED if summary.problems else 0
    if not options.diff:
        print_results(summary, options.format, base=base, statistics=options.statistics, quiet=options.quiet)
    return _exit_code(summary, options)


def active_rules(selection: FailureSelection) -> list[ActiveRule]:
    """Return the rules to apply; style rules are applied only if the selection names them."""
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
    summary.used_pragmas |= linted.used_elsewhere
    if linted.findings and linted.path.endswith(".ipynb"):
        cache_cell_lines([linted.path])
    elif linted.findings:
        linecache.checkcache(linted.path)
    for finding in linted.findings:
        location = finding.location
        line = linecache.getline(location.path, location.line) if location else ""
        key = baseline_key(finding, line, base)
        summary.baseline_keys.append(key)
        if baseline[key] > 0:
            baseline[key] -= 1
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
    """Return the change of a file as a unified diff."""
    import difflib

    old, new = (decode(content).text.splitlines(keepends=True) for content in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically, keeping its permissions; the target of a link is replaced.

    Raises:
        InvalidConfig: the file cannot be written.
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
    own = [each for each in linted.findings if each.location and each.location.path == linted.path]
    text, count = add_ignore_comments(decoded.text, own)
    replace_file(path, decoded.encode(text))
    summary.ignored_findings += count
    summary.findings = [finding for finding in summary.findings if finding not in own]


def _lint_stdin(job: LintJob, options: LintOptions, summary: LintSummary, base: Path) -> int:
    content = sys.stdin.buffer.read()
    name = options.stdin_filename
    if is_file(Path(name)):
        job = job._replace(project=Project([], read_text, [str(Path(name).parent)]))
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
    if summary.problems and (options.strict or len(summary.problems) >= summary.files):
        return EXIT_NOT_JUDGED
    if options.diff:
        return EXIT_FINDINGS if summary.changed_files else 0
    has_serious = any(finding.severity is not Severity.NOTE or options.select for finding in summary.findings)
    return EXIT_FINDINGS if has_serious else 0
