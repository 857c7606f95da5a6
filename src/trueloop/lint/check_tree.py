"""Lints many files in several processes."""

import gc
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

from trueloop.analysis.project import Project
from trueloop.core.cores import available_cores
from trueloop.core.findings import Finding, Severity, SourceLocation
from trueloop.core.notebook import NotANotebook, Notebook
from trueloop.lint.cache import LintCache
from trueloop.lint.check_file import ActiveRule, FileResult, lint_text
from trueloop.lint.files import Decoded, Unreadable, decode, read_bytes
from trueloop.lint.fix import fix_text

MIN_FILES_FOR_PROCESSES: Final = 48  # fewer files are linted faster than a process starts
FILES_PER_TASK: Final = 16  # files that a process of the pool receives at once
GC_INTERVAL: Final = 32  # number of files between two garbage collections of the objects created since the last one
FULL_GC_INTERVAL: Final = 256  # number of files between two garbage collections of all objects


class LintJob(NamedTuple):
    """Rules and options for linting files."""

    rules: Sequence[ActiveRule]
    fix: bool = False
    """Apply safe fixes to the content in memory."""
    unsafe: bool = False
    """Apply unsafe fixes as well."""
    project: Project | None = None
    """Files into which imports are followed; None = each file is linted alone."""


class LintedFile(NamedTuple):
    """The lint result of a file with its content."""

    result: FileResult
    """Lint result of the fixed content if fixes were requested, else of the original content."""
    before: bytes = b""
    """Content of the file before fixes."""
    after: bytes | None = None
    """Content of the file after fixes; None = unchanged."""
    fix_count: int = 0
    """Number of fixed findings."""
    read_files: frozenset[str] = frozenset()
    """Absolute paths of the other files of the project that were read."""


def lint_file(path: Path, job: LintJob) -> LintedFile:
    """Lint one file, and fix it in memory if requested."""
    if job.project is not None:
        job.project.read_files.clear()
    try:
        linted_file = lint_content(read_bytes(path), str(path), job, on_disk=True)
    except Unreadable as error:
        return LintedFile(FileResult(path=str(path), problem=str(error)))
    return linted_file._replace(read_files=frozenset(job.project.read_files)) if job.project else linted_file


def lint_content(content: bytes, path: str, job: LintJob, *, on_disk: bool = False) -> LintedFile:
    """Lint the content of a file.

    Args:
        content: content of the file.
        path: path to report in the findings; a path that ends in ".ipynb" means a notebook.
        job: rules and options.
        on_disk: whether the content is that of the file at this path.

    Raises:
        Unreadable: the content is not text that can be checked.
    """
    decoded = decode(content)
    if path.endswith(".ipynb"):
        return _lint_notebook(decoded, content, path, job)
    if not job.fix:
        if job.project is not None and on_disk:
            job.project.add_text(os.path.abspath(path), decoded.text)  # noqa: PTH100
        linted = lint_text(decoded.text, path, job.rules, project=job.project)
        return LintedFile(_with_file_offsets(linted, decoded), content)
    fixed = fix_text(decoded.text, path, job.rules, unsafe=job.unsafe, project=job.project)
    linted = _with_file_offsets(fixed.result, decoded._replace(text=fixed.text))
    after = decoded.encode(fixed.text) if fixed.fix_count else None
    return LintedFile(linted, content, after, fixed.fix_count)


def _with_file_offsets(linted: FileResult, decoded: Decoded) -> FileResult:
    """Convert fixes from byte positions in UTF-8 to byte positions in the file, if they differ."""
    if decoded.encoding == "utf-8" and not decoded.bom:
        return linted
    findings = [
        replace(finding, autofix=decoded.to_file_offsets(finding.autofix)) if finding.autofix else finding
        for finding in linted.findings
    ]
    return replace(linted, findings=tuple(findings))


def _lint_notebook(decoded: Decoded, content: bytes, path: str, job: LintJob) -> LintedFile:
    try:
        notebook = Notebook(decoded.text)
    except NotANotebook as error:
        raise Unreadable(str(error)) from error
    if not job.fix:
        linted = lint_text(notebook.text, path, job.rules, notebook=True, project=job.project)
        return LintedFile(_with_cell_locations(linted, notebook, path), content)
    fixed = fix_text(notebook.text, path, job.rules, unsafe=job.unsafe, notebook=True, project=job.project)
    if not fixed.fix_count:
        return LintedFile(_with_cell_locations(fixed.result, notebook, path), content)
    raw = notebook.render(fixed.text)
    linted = _with_cell_locations(fixed.result, Notebook(raw), path)
    return LintedFile(linted, content, decoded.encode(raw), fixed.fix_count)


def _with_cell_locations(linted: FileResult, notebook: Notebook, path: str) -> FileResult:
    """Convert locations to cell and line, and report the cells that could not be checked as the problem."""
    problem = "; ".join(message for _, message in notebook.invalid_cells) or linted.problem

    def locate(location: SourceLocation) -> SourceLocation:
        if location.path != path:
            return location
        cell, line = notebook.locate(location.line)
        return SourceLocation(cell.file_in(path), line, location.function)

    def relocate(finding: Finding) -> Finding:
        assert finding.location is not None
        if finding.location.path != path:
            return replace(finding, related=tuple((locate(other), message) for other, message in finding.related))
        cell, line = notebook.locate(finding.location.line)
        lines_skipped = finding.location.line - line
        end = (finding.end[0] - lines_skipped, finding.end[1]) if finding.end else None
        related = tuple((locate(other), message) for other, message in finding.related)
        return replace(finding, location=locate(finding.location), related=related, end=end, cell=cell.number)

    unused = tuple((locate(location), codes) for location, codes in linted.unused_pragmas)
    return replace(linted, findings=tuple(map(relocate, linted.findings)), problem=problem, unused_pragmas=unused)


def lint_files(
    paths: Sequence[Path], job: LintJob, *, jobs: int | None = None, cache: LintCache | None = None
) -> Iterator[LintedFile]:
    """Lint files and yield their results in the order of the paths; each finding is in the first result that has it.

    Args:
        paths: paths of files.
        job: rules and options.
        jobs: number of processes; None = the number of available processors.
        cache: results of an earlier call, to which those of this call are added; None = all files are checked.
    """
    # What is an error in one program may be a warning in another.
    results = list(_lint_each(paths, job, jobs) if cache is None else _lint_changed(paths, job, jobs, cache))
    found = [finding for each in results for finding in each.result.findings]
    errors = {_key(finding) for finding in found if finding.severity is Severity.ERROR}
    seen: set[tuple[object, ...]] = set()
    for each in results:
        new: list[Finding] = []
        for finding in each.result.findings:
            key = _key(finding)
            is_weaker = finding.severity is not Severity.ERROR and key in errors
            if key not in seen and not is_weaker:
                new.append(finding)
        seen.update(map(_key, new))
        yield each._replace(result=replace(each.result, findings=tuple(new)))


def _lint_changed(paths: Sequence[Path], job: LintJob, jobs: int | None, cache: LintCache) -> Iterator[LintedFile]:
    known = {path: result for path in paths if (result := cache.result(str(path))) is not None}
    checked = _lint_each([path for path in paths if path not in known], job, jobs)
    for path in paths:
        if path in known:
            yield LintedFile(known[path])
        else:
            linted_file = next(checked)
            cache.add(linted_file.result, linted_file.read_files)
            yield linted_file


def _key(finding: Finding) -> tuple[object, ...]:
    location = finding.location and finding.location._replace(function="")
    return finding.code, location, finding.cell, finding.column


def _lint_each(paths: Iterable[Path], job: LintJob, jobs: int | None) -> Iterator[LintedFile]:
    remaining = iter(paths)
    first = list(islice(remaining, MIN_FILES_FOR_PROCESSES))
    workers = jobs or available_cores()
    if len(first) < MIN_FILES_FOR_PROCESSES or workers == 1:
        with _gc_paused():
            for number, path in enumerate(chain(first, remaining), 1):
                yield lint_file(path, job)
                _collect(number)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    method = "fork" if sys.platform == "linux" and "torch" not in sys.modules else "spawn"
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_init_worker, initargs=(job,)) as pool:
        yield from pool.map(_lint_in_worker, [*first, *remaining], chunksize=FILES_PER_TASK)


@contextmanager
def _gc_paused() -> Generator[None]:
    """Pause automatic garbage collection; the caller collects garbage between files.

    No object becomes garbage while a file is linted; scanning the live objects repeatedly would take half of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # collections ignore the objects that exist now
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _collect(file_count: int) -> None:
    if file_count % FULL_GC_INTERVAL == 0:
        gc.collect()
    elif file_count % GC_INTERVAL == 0:
        gc.collect(0)


_job: LintJob | None = None
_file_count = 0


def _init_worker(job: LintJob) -> None:
    global _job  # noqa: PLW0603 - a process of the pool has one job
    _job = job
    gc.disable()
    gc.freeze()


def _lint_in_worker(path: Path) -> LintedFile:
    global _file_count  # noqa: PLW0603
    assert _job is not None
    linted_file = lint_file(path, _job)
    _file_count += 1
    _collect(_file_count)
    # Unchanged content is not sent to the parent process.
    return linted_file if linted_file.after is not None else linted_file._replace(before=b"")


def cache_cell_lines(paths: Iterable[str], open_text: Callable[[str], str | None] = lambda path: None) -> None:
    """Add the cells of notebooks to Python's `linecache`, from which a report reads the lines that it shows.

    Args:
        paths: paths of notebooks.
        open_text: returns the text of a notebook that is not on disk.
    """
    for path in paths:
        try:
            raw = open_text(path) or decode(read_bytes(Path(path))).text
            cells = Notebook(raw).cells
        except (Unreadable, NotANotebook):
            continue
        for cell in cells:
            cell.cache_lines(path, cell.source)
