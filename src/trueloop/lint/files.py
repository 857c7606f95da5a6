"""Finds the files to lint and decodes them."""

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
    ".trueloop_cache", "__pycache__", "node_modules", "site-packages", ".eggs", ".ipynb_checkpoints", "__pypackages__",
    ".direnv",
))  # fmt: skip
"""Names of folders that are skipped unless the user names them explicitly."""
MAX_FILE_BYTES: Final = 8 * 1024 * 1024  # larger files are generated


class Unreadable(Exception):
    """A file cannot be checked; the message says why."""


class Decoded(NamedTuple):
    """Text of a file with its encoding."""

    text: str
    encoding: str
    bom: bool
    """True if the file starts with a byte order mark."""

    def encode(self, text: str) -> bytes:
        """Encode a text in the encoding of this file, with its byte order mark."""
        return (b"\xef\xbb\xbf" if self.bom else b"") + text.encode(self.encoding)

    def to_file_offsets(self, fix: Fix) -> Fix:
        """Convert a fix from byte positions in UTF-8 to byte positions in the file."""
        utf8 = self.text.encode("utf-8", "surrogatepass")
        positions = {position for edit in fix.edits for position in (edit.start, edit.end)}
        offsets = {position: len(self.encode(utf8[:position].decode())) for position in positions}
        edits = tuple(Edit(offsets[edit.start], offsets[edit.end], edit.text) for edit in fix.edits)
        return Fix(edits, safe=fix.safe, description=fix.description)


def discover(paths: Iterable[Path], *, exclude: Sequence[str] = ()) -> Iterator[Path]:
    """Yield each file to lint once: the named files, and all Python files and notebooks in the named folders.

    The search skips files that ``.gitignore`` excludes and `EXCLUDED_FOLDERS`. Links are followed; each folder is
    searched once. A broken link, or a link to an enclosing folder, is yielded: reading it fails with a message.

    Args:
        paths: files and folders.
        exclude: patterns of files to skip in the named folders, in the syntax of ``.gitignore``.
    """
    yielded: set[str] = set()
    for path in paths:
        files: Iterable[Path] = (path,)
        if is_folder(path):
            files = _walk(path, [(path, _spec(exclude)), *_parent_specs(path)], set(), ())
        for file in files:
            resolved = os.path.realpath(file)  # terminates for a link to itself
            if resolved not in yielded:
                yielded.add(resolved)
                yield file


FolderId = tuple[int, int]
"""Device and inode of a folder."""
Specs = Sequence[tuple[Path, "GitIgnoreSpec | None"]]
"""Folders with the patterns of their ``.gitignore`` files; the innermost folder is last."""


def _walk(folder: Path, specs: Specs, visited: set[FolderId], enclosing: tuple[FolderId, ...]) -> Iterator[Path]:
    """Yield the files to lint in a folder and its subfolders.

    Args:
        folder: the folder to search.
        specs: patterns of excluded files.
        visited: folders searched so far.
        enclosing: folders that contain this one.
    """
    try:
        status = folder.stat()
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        yield folder  # reading it will fail with a message
        return
    folder_id = status.st_dev, status.st_ino
    if folder_id in enclosing:
        yield folder
    if folder_id in visited:
        return
    visited.add(folder_id)
    if any(entry.name == ".gitignore" for entry in entries):
        specs = [*specs, (folder, _read_spec(folder / ".gitignore"))]
    for entry in entries:
        path, entry_is_folder = folder / entry.name, _is_folder(entry)
        if _is_ignored(path, specs, as_folder=bool(entry_is_folder)):
            continue
        if not entry_is_folder:
            if path.suffix in SUFFIXES and (entry_is_folder is not None or entry.is_symlink()):
                yield path
        elif entry.name not in EXCLUDED_FOLDERS and not path_exists(path / "pyvenv.cfg"):
            yield from _walk(path, specs, visited, (*enclosing, folder_id))


def _is_folder(entry: os.DirEntry[str]) -> bool | None:
    """Return True for a folder, False for a file, None for anything else, such as a broken link."""
    try:
        return True if entry.is_dir() else False if entry.is_file() else None
    except OSError:  # a link to itself
        return None


def _is_ignored(path: Path, specs: Specs, *, as_folder: bool) -> bool:
    ignored = False
    for root, spec in specs:  # the innermost .gitignore takes precedence
        if spec is not None:
            relative = os.path.relpath(path, root).replace(os.sep, "/") + ("/" if as_folder else "")
            include = spec.check_file(relative).include
            ignored = ignored if include is None else include
    return ignored


def _parent_specs(folder: Path) -> list[tuple[Path, GitIgnoreSpec | None]]:
    """Return the patterns in the folder's parents up to the repository root; [] if they exclude the folder itself."""
    specs: list[tuple[Path, GitIgnoreSpec | None]] = []
    resolved = folder.resolve()
    if path_exists(resolved / ".git"):
        return specs
    for parent in resolved.parents:
        if is_file(parent / ".gitignore"):
            specs.insert(0, (parent, _read_spec(parent / ".gitignore")))
        if path_exists(parent / ".git"):
            parents_below = resolved.parents[: resolved.parents.index(parent)]
            excluded = any(_is_ignored(path, specs, as_folder=True) for path in (resolved, *parents_below))
            return [] if excluded else specs
    return []  # not in a repository


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
    """Return the text of a Python file as Python reads it, with unchanged line ends.

    Raises:
        Unreadable: the file is too large or binary, or its bytes do not match its declared encoding.
    """
    if len(content) > MAX_FILE_BYTES:
        raise Unreadable(f"{len(content) / 2**20:.0f} MB is more than the limit of {MAX_FILE_BYTES // 2**20} MB")
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
        raise Unreadable(f"{encoding} is not a text encoding") from error
    bom = encoding == "utf-8-sig"
    return Decoded(text, "utf-8" if bom else encoding, bom)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        Unreadable: the file does not exist, or permission to read it is missing.
    """
    try:
        return path.read_bytes()
    except IsADirectoryError as error:
        raise Unreadable("a link to an enclosing folder: skipped") from error
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error


def read_text(path: str) -> str:
    """Return the text of an imported file; "" if it cannot be read, which is reported when it is checked itself."""
    try:
        return decode(read_bytes(Path(path))).text
    except Unreadable:
        return ""
