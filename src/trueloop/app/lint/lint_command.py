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

from trueloop.app.lint.lint_output import Format, Total, shown, tell
from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import Severity
from trueloop.core.formatting import format_count
from trueloop.core.suppression import matches_code
from trueloop.failures.selection import FailureSelection, read_config_list, select_failures
from trueloop.lint.add_ignores import with_ignores
from trueloop.lint.baseline import Key, key, load
from trueloop.lint.baseline import write as write_baseline
from trueloop.lint.check_file import Linted, Ruled
from trueloop.lint.check_tree import Job, Read, read_content, read_files, remember_cells
from trueloop.lint.files import Unreadable, decode, discover

FOUND, UNJUDGED = 1, 2
STDIN: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
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


def lint(paths: Sequence[str], wishes: Wishes) -> int:
    """Look at files, tell what was found, and return the exit code: 0 clean, 1 findings, 2 something was not judged.

    Raises:
        InvalidConfig: a path that does not exist, a code that does not.
    """
    base = Path.cwd()
    choice = select_failures(wishes.select, wishes.ignore, folder=base)
    job = Job(rules_of(choice), fix=wishes.fix or wishes.unsafe_fixes or wishes.diff, unsafe=wishes.unsafe_fixes)
    known = load(wishes.baseline) if wishes.baseline else Counter[Key]()
    total = Total()
    if STDIN in paths:
        if len(paths) > 1:
            raise InvalidConfig("Standard input (-) goes with no other path.")
        return _stdin(job, wishes, total, base)
    files = discover(_existing(paths), exclude=read_config_list(base, "exclude"))
    for read in read_files(files, job, jobs=wishes.jobs):
        _take(read, total, known, base)
        if read.after is not None:
            _write(read, total, wishes, base)
        if wishes.add_ignore and read.linted.found:
            _ignore(read.linted, total)
    if wishes.write_baseline:
        count = write_baseline(wishes.write_baseline, total.keys)
        print(f"{wishes.write_baseline}: {format_count(count, 'finding')} from now on known (--baseline).", file=sys.stderr)
        return UNJUDGED if total.problems else 0
    if not wishes.diff:
        tell(total, wishes.format, base=base, statistics=wishes.statistics, quiet=wishes.quiet)
    return _code(total, wishes)


def rules_of(choice: FailureSelection) -> list[Ruled]:
    """Return the rules to ask: matters of style only where they are named."""
    return [
        Ruled(entry.failure, entry.slug, rule)
        for entry in choice.entries()
        if (rule := entry.failure.rule) is not None
        and not matches_code(entry.code, choice.ignore)
        and (not rule.opt_in or (choice.select and matches_code(entry.code, choice.select)))
    ]


def _existing(paths: Sequence[str]) -> list[Path]:
    for path in paths:
        if not os.path.lexists(path):
            raise InvalidConfig(f"There is no file or folder {path!r}.")
    return [Path(path) for path in paths or ["."]]


def _take(read: Read, total: Total, known: Counter[Key], base: Path) -> None:
    linted = read.linted
    total.files += 1
    total.silenced += linted.silenced
    total.fixed += read.fixed
    if linted.problem:
        total.problems.append((linted.path, linted.problem))
    total.idle += linted.idle
    if linted.found and linted.path.endswith(".ipynb"):
        remember_cells([linted.path])
    elif linted.found:
        linecache.checkcache(linted.path)
    for finding in linted.found:
        site = finding.location
        words = linecache.getline(site.path, site.line) if site else ""
        found = key(finding, words, base)
        total.keys.append(found)
        if known[found] > 0:
            known[found] -= 1
            total.known += 1
        else:
            total.findings.append(finding)


def _write(read: Read, total: Total, wishes: Wishes, base: Path) -> None:
    assert read.after is not None
    path = Path(read.linted.path)
    total.changed += 1
    if wishes.diff:
        sys.stdout.write(difference(read.before, read.after, shown(str(path), base)))
        return
    replace_file(path, read.after)
    linecache.checkcache(str(path))


def difference(before: bytes, after: bytes, name: str) -> str:
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


def _ignore(linted: Linted, total: Total) -> None:
    path = Path(linted.path)
    if path.suffix == ".ipynb":
        total.problems.append((linted.path, "comments are not added to notebooks"))
        return
    decoded = decode(path.read_bytes())
    text, count = with_ignores(decoded.text, linted.found)
    replace_file(path, decoded.encoded(text))
    total.ignored += count
    total.findings = [finding for finding in total.findings if finding not in linted.found]


def _stdin(job: Job, wishes: Wishes, total: Total, base: Path) -> int:
    content = sys.stdin.buffer.read()
    name = wishes.stdin_filename
    try:
        read = read_content(content, name, job)
    except Unreadable as error:
        read = Read(Linted(path=name, problem=str(error)), content)
    shown_content = content if read.after is None else read.after
    with suppress(Unreadable):
        lines = decode(shown_content).text.splitlines(keepends=True)
        linecache.cache[name] = (len(shown_content), None, lines, name)
    if name.endswith(".ipynb") and read.linted.found:
        remember_cells([name], lambda path: decode(shown_content).text)
    _take(read, total, Counter[Key](), base)
    if wishes.diff:
        if read.after is not None:
            total.changed += 1
            sys.stdout.write(difference(content, read.after, name))
        return _code(total, wishes)
    out = sys.stdout
    if job.fix:
        sys.stdout.buffer.write(shown_content)
        out = sys.stderr
    tell(total, wishes.format, base=base, statistics=wishes.statistics, quiet=wishes.quiet, file=out)
    return _code(total, wishes)


def _code(total: Total, wishes: Wishes) -> int:
    if total.problems:
        return UNJUDGED
    if wishes.diff:
        return FOUND if total.changed else 0
    grave = any(finding.severity is not Severity.NOTE or wishes.select for finding in total.findings)
    return FOUND if grave else 0
