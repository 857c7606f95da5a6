"""Many files: each read, looked at and forgotten, in several processes."""

from __future__ import annotations

import gc
import linecache
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

from trueloop.core.findings import Finding, SourceLocation
from trueloop.lint.check_file import Linted, Ruled, lint_text
from trueloop.lint.files import Decoded, Unreadable, contents, decode
from trueloop.lint.fix import fix_text
from trueloop.lint.notebook import Notebook

WORTH_IT: Final = 48  # files; fewer are read before another process has started
AT_ONCE: Final = 16
COLLECT: Final = 32  # files between two collections of garbage


class Job(NamedTuple):
    """What to do with each file."""

    rules: Sequence[Ruled]
    fix: bool = False
    unsafe: bool = False


class Read(NamedTuple):
    """One file, read."""

    linted: Linted
    """After the fixes, where some were asked for."""
    before: bytes = b""
    after: bytes | None = None
    """What the file holds with its fixes; None = they change nothing."""
    fixed: int = 0


def read_file(path: Path, job: Job) -> Read:
    """Lint one file, and fix it in memory where that is asked for."""
    try:
        return read_content(contents(path), str(path), job)
    except Unreadable as error:
        return Read(Linted(path=str(path), problem=str(error)))


def read_content(content: bytes, path: str, job: Job) -> Read:
    """Lint what a file holds.

    Args:
        content: of the file.
        path: as the findings tell it; one that ends in ".ipynb" is a notebook.
        job: what to do.

    Raises:
        Unreadable: it is no text that can be judged.
    """
    decoded = decode(content)
    if path.endswith(".ipynb"):
        return _notebook(decoded, content, path, job)
    if not job.fix:
        return Read(_in_file(lint_text(decoded.text, path, job.rules), decoded), content)
    fixed = fix_text(decoded.text, path, job.rules, unsafe=job.unsafe)
    after = decoded.encoded(fixed.text) if fixed.fixed else None
    return Read(_in_file(fixed.left, decoded._replace(text=fixed.text)), content, after, fixed.fixed)


def _in_file(linted: Linted, decoded: Decoded) -> Linted:
    """Tell fixes in bytes of the file, where those are not the text's in UTF-8."""
    if decoded.encoding == "utf-8" and not decoded.bom:
        return linted
    found = [replace(each, autofix=decoded.in_file(each.autofix)) if each.autofix else each for each in linted.found]
    return replace(linted, found=tuple(found))


def _notebook(decoded: Decoded, content: bytes, path: str, job: Job) -> Read:
    notebook = Notebook(decoded.text)
    if not job.fix:
        return Read(_in_cells(lint_text(notebook.text, path, job.rules, notebook=True), notebook, path), content)
    fixed = fix_text(notebook.text, path, job.rules, unsafe=job.unsafe, notebook=True)
    if not fixed.fixed:
        return Read(_in_cells(fixed.left, notebook, path), content)
    raw = notebook.written(fixed.text)
    return Read(_in_cells(fixed.left, Notebook(raw), path), content, decoded.encoded(raw), fixed.fixed)


def _in_cells(linted: Linted, notebook: Notebook, path: str) -> Linted:
    """Tell places by cell and line, and why cells could not be judged."""
    problem = "; ".join(words for _, words in notebook.broken) or linted.problem

    def site(known: SourceLocation) -> SourceLocation:
        cell, line = notebook.place(known.line)
        return SourceLocation(f"{path}:cell {cell.number}", line, known.function)

    def moved(finding: Finding) -> Finding:
        assert finding.location is not None
        cell, line = notebook.place(finding.location.line)
        end = finding.end and (finding.end[0] - finding.location.line + line, finding.end[1])
        related = tuple((site(other), words) for other, words in finding.related)
        return replace(finding, location=site(finding.location), related=related, end=end, cell=cell.number)

    idle = tuple((site(known), codes) for known, codes in linted.idle)
    return replace(linted, found=tuple(map(moved, linted.found)), problem=problem, idle=idle)


def read_files(paths: Iterable[Path], job: Job, *, jobs: int | None = None) -> Iterator[Read]:
    """Yield what every file comes to, in order; one tree is in memory at a time in each process.

    Args:
        paths: of files.
        job: what to do with each.
        jobs: processes; None = as many as there are processors for this one.
    """
    known = iter(paths)
    first = list(islice(known, WORTH_IT))
    workers = jobs or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else jobs or os.cpu_count() or 1
    if len(first) < WORTH_IT or workers == 1:
        with _collecting_rarely():
            for number, path in enumerate(chain(first, known), 1):
                yield read_file(path, job)
                _collect(number)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    how = "fork" if sys.platform == "linux" and "torch" not in sys.modules else "spawn"
    context = multiprocessing.get_context(how)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(job,)) as pool:
        every = [*first, *known]
        yield from pool.map(_one, every, chunksize=AT_ONCE)


@contextmanager
def _collecting_rarely() -> Generator[None]:
    """Collect garbage between files only.

    Within one all there is is alive, and looking at it again and again costs half the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()  # what is there already stays
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


def _collect(files: int) -> None:
    if files % COLLECT == 0:
        gc.collect()


_job: Job | None = None


_done = 0


def _begin(job: Job) -> None:
    global _job  # noqa: PLW0603 - a process of the pool has one job
    _job = job
    gc.disable()
    gc.freeze()


def _one(path: Path) -> Read:
    global _done  # noqa: PLW0603
    assert _job is not None
    read = read_file(path, _job)
    _done += 1
    _collect(_done)
    return read if read.after is not None else read._replace(before=b"")  # what did not change is not sent back


def remember_cells(paths: Iterable[str], open_text: Callable[[str], str | None] = lambda path: None) -> None:
    """Let `linecache` know the cells of notebooks, so that a report can show their lines.

    Args:
        paths: of notebooks.
        open_text: returns the text of one that is not on the disk.
    """
    for path in paths:
        try:
            raw = open_text(path) or decode(contents(Path(path))).text
            cells = Notebook(raw).cells
        except Unreadable:
            continue
        for cell in cells:
            lines = [f"{line}\n" for line in cell.source.split("\n")]
            linecache.cache[f"{path}:cell {cell.number}"] = (len(cell.source), None, lines, path)
