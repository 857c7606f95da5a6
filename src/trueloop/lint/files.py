"""Which files are looked at, and what stands in them."""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from trueloop.core.paths import is_file, is_folder, path_exists
from trueloop.core.source_text import Edit, Fix

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

SUFFIXES: Final = frozenset((".py", ".pyw", ".ipynb"))
EXCLUDED_FOLDERS: Final = frozenset((
    ".git", ".hg", ".svn", ".tox", ".nox", ".venv", "venv", ".mypy_cache", ".ruff_cache", ".pytest_cache",
    "__pycache__", "node_modules", "site-packages", ".eggs", ".ipynb_checkpoints", "__pypackages__", ".direnv",
))  # fmt: skip
"""Folders that are left out, unless they are named themselves."""
MAX_FILE_BYTES: Final = 8 * 1024 * 1024  # bytes of a file that somebody wrote


class Unreadable(Exception):
    """A file that cannot be judged, in words."""


class Decoded(NamedTuple):
    """A file's text, and how to write it back."""

    text: str
    encoding: str
    bom: bool

    def encode(self, text: str) -> bytes:
        """Return another text the way the file is written."""
        return (b"\xef\xbb\xbf" if self.bom else b"") + text.encode(self.encoding)

    def to_file_offsets(self, fix: Fix) -> Fix:
        """Return a fix of the text, whose edits count bytes of UTF-8, with edits that count bytes of the file."""
        whole = self.text.encode("utf-8", "surrogatepass")
        places = {place: len(self.encode(whole[:place].decode())) for edit in fix.edits for place in edit[:2]}
        edits = tuple(Edit(places[each.start], places[each.end], each.text) for each in fix.edits)
        return Fix(edits, safe=fix.safe, description=fix.description)


def discover(paths: Iterable[Path], *, exclude: Sequence[str] = ()) -> Iterator[Path]:
    """Yield the files to look at, each once: those that are named, and in folders all Python files and notebooks.

    In a folder, what ``.gitignore`` files leave out is left out, and folders nobody writes by hand. Links are followed;
    a folder is gone through once. A link back to a folder that holds it, and one to nothing, is yielded: reading it
    fails, and says so.

    Args:
        paths: files and folders.
        exclude: patterns in the manner of ``.gitignore``, for the folders that are named.
    """
    seen: set[str] = set()
    for path in paths:
        if not is_folder(path):
            found: Iterable[Path] = (path,)
        else:
            found = _walk(path, [(path, _spec(exclude)), *_parent_specs(path)], set(), ())
        for each in found:
            resolved = os.path.realpath(each)  # knows an end to a link that leads to itself
            if resolved not in seen:
                seen.add(resolved)
                yield each


FolderId = tuple[int, int]
"""What tells a folder apart, whatever it is called."""
Specs = Sequence[tuple[Path, "GitIgnoreSpec | None"]]
"""Folders, and what their ``.gitignore`` files say; the nearest last."""


def _walk(folder: Path, specs: Specs, visited: set[FolderId], above: tuple[FolderId, ...]) -> Iterator[Path]:
    """Yield what to look at in a folder and below.

    Args:
        folder: to go through.
        specs: what is left out.
        been: the folders gone through so far.
        above: those this one lies in.
    """
    try:
        status = folder.stat()
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        yield folder  # reading it will fail, and say so
        return
    known = status.st_dev, status.st_ino
    if known in above:
        yield folder
    if known in visited:
        return
    visited.add(known)
    if any(entry.name == ".gitignore" for entry in entries):
        specs = [*specs, (folder, _read_spec(folder / ".gitignore"))]
    for entry in entries:
        path, is_folder = folder / entry.name, _is_folder(entry)
        if _ignored(path, specs, is_folder=bool(is_folder)):
            continue
        if not is_folder:
            if path.suffix in SUFFIXES and (is_folder is not None or entry.is_symlink()):
                yield path
        elif entry.name not in EXCLUDED_FOLDERS and not path_exists(path / "pyvenv.cfg"):
            yield from _walk(path, specs, visited, (*above, known))


def _is_folder(entry: os.DirEntry[str]) -> bool | None:
    """True for a folder, False for a file; None for what is neither, such as a link to nothing."""
    try:
        return True if entry.is_dir() else False if entry.is_file() else None
    except OSError:  # a link to itself
        return None


def _ignored(path: Path, specs: Specs, *, is_folder: bool) -> bool:
    verdict = False
    for root, spec in specs:  # the nearest file has the last word
        if spec is not None:
            relative = os.path.relpath(path, root).replace(os.sep, "/") + ("/" if is_folder else "")
            said = spec.check_file(relative).include
            verdict = verdict if said is None else said
    return verdict


def _parent_specs(folder: Path) -> list[tuple[Path, GitIgnoreSpec | None]]:
    """Return what the folders above say, up to the repository's own; nothing where they leave out the folder itself."""
    found: list[tuple[Path, GitIgnoreSpec | None]] = []
    resolved = folder.resolve()
    if path_exists(resolved / ".git"):
        return found
    for above in resolved.parents:
        if is_file(above / ".gitignore"):
            found.insert(0, (above, _read_spec(above / ".gitignore")))
        if path_exists(above / ".git"):
            named = [each for each in (resolved, *resolved.parents) if each.is_relative_to(above) and each != above]
            return [] if any(_ignored(each, found, is_folder=True) for each in named) else found
    return []  # in no repository


def _read_spec(path: Path) -> GitIgnoreSpec | None:
    try:
        return _spec(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return None


def _spec(lines: Sequence[str]) -> GitIgnoreSpec | None:
    if not lines:
        return None
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


def decode(content: bytes) -> Decoded:
    """Return the text of a Python file as Python reads it, line ends untouched.

    Raises:
        Unreadable: it is too large, binary, or not in the encoding it says.
    """
    if len(content) > MAX_FILE_BYTES:
        raise Unreadable(
            f"{len(content) / 2**20:.0f} MB: nobody wrote this by hand (at most {MAX_FILE_BYTES // 2**20} MB are read)"
        )
    if b"\0" in content:
        raise Unreadable("a binary file, not Python")
    encoding = "utf-8"
    try:
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        except SyntaxError as error:
            if "unknown encoding" in str(error):
                raise Unreadable(str(error)) from error
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Unreadable(f"line {line}: byte 0x{content[error.start]:02x} is not {error.encoding}") from error
    except (LookupError, UnicodeError) as error:  # rot13, punycode, undefined
        raise Unreadable(f"the encoding {encoding} is none of texts") from error
    bom = encoding == "utf-8-sig"
    return Decoded(text, "utf-8" if bom else encoding, bom)


def read_bytes(path: Path) -> bytes:
    """Return what a file holds.

    Raises:
        Unreadable: it is not there, or may not be read.
    """
    try:
        return path.read_bytes()
    except IsADirectoryError as error:
        raise Unreadable("a folder within itself, by a link: skipped") from error
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
