"""Keeps the results of checked files in ``.trueloop_cache/``, so that an unchanged file is not checked again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from trueloop.core.findings import Finding, Severity, SourceLocation
from trueloop.core.json_text import parse_json_object
from trueloop.core.source_text import Edit, Fix
from trueloop.lint.check_file import FileResult

FOLDER: Final = ".trueloop_cache"
MIN_FILES: Final = 16  # fewer files are checked in less time than the program takes to start
MAX_CALLS: Final = 8  # sets of paths and rules whose results are kept
PACKAGE: Final = Path(__file__).parent.parent
CODE: Final = ("analysis", "core", "failures", "lint")
"""Packages of trueloop that decide what is found."""


class LintCache:
    """Results of an earlier call with the same paths and rules.

    A result is used again if its file, and each file that was read to check it, has the same content as then. The
    cache is JSON; loading it runs no code, and a damaged one is ignored.

    Args:
        folder: the folder for `FOLDER`.
        files: paths of all files of this call.
        settings: what decides which rules are applied.
    """

    def __init__(self, folder: Path, files: Sequence[Path], settings: Iterable[str]) -> None:
        self._path = folder / FOLDER / f"lint-{_fingerprint(files, settings)}.json"
        self._digests: dict[str, str] = {}
        self._earlier: dict[str, Any] = {}
        self._results: dict[str, Any] = {}
        with suppress(OSError):
            self._earlier = parse_json_object(self._path.read_bytes())

    def result(self, path: str) -> FileResult | None:
        """Return the result of an unchanged file; None if it must be checked again."""
        entry: Any = self._earlier.get(path)
        try:
            if any(self._digest(file) != digest for file, digest in entry["read"].items()):
                return None
            found = _decode_result(path, entry)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
        self._results[path] = entry
        return found

    def add(self, result: FileResult, read_files: Iterable[str]) -> None:
        """Keep the result of a file.

        Args:
            result: the result.
            read_files: absolute paths of the other files that were read.
        """
        read = {file: self._digest(file) for file in (os.path.abspath(result.path), *sorted(read_files))}  # noqa: PTH100
        self._results[result.path] = {"read": read, **_encode_result(result)}

    def save(self) -> None:
        """Write the results of this call; do nothing if the folder cannot be written to."""
        if self._results == self._earlier:
            return
        folder = self._path.parent
        temporary = self._path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            folder.mkdir(exist_ok=True)
            (folder / ".gitignore").write_text("*\n")
            temporary.write_text(json.dumps(self._results), encoding="utf-8")
            temporary.replace(self._path)
            by_age = sorted(folder.glob("lint-*.json"), key=lambda each: each.stat().st_mtime)
            for each in by_age[:-MAX_CALLS]:
                each.unlink()

    def _digest(self, file: str) -> str:
        if file not in self._digests:
            self._digests[file] = ""
            with suppress(OSError):
                self._digests[file] = blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
        return self._digests[file]


def _fingerprint(files: Sequence[Path], settings: Iterable[str]) -> str:
    """Return a name for a call: for the version of trueloop and Python, the settings, and the paths of the files."""
    code = sorted(path for name in CODE for path in (PACKAGE / name).rglob("*.py"))
    versions = [f"{each.relative_to(PACKAGE)} {(stat := each.stat()).st_size} {stat.st_mtime_ns}" for each in code]
    parts = [sys.version, *versions, *sorted(settings), *map(str, files)]
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _encode_result(result: FileResult) -> dict[str, Any]:
    return {
        "findings": [{**asdict(each), "severity": str(each.severity)} for each in result.findings],
        "suppressed": result.suppressed,
        "unused_pragmas": result.unused_pragmas,
        "used_elsewhere": sorted(result.used_elsewhere),
        "problem": result.problem,
    }


def _decode_result(path: str, entry: Mapping[str, Any]) -> FileResult:
    return FileResult(
        path=path,
        findings=tuple(map(_decode_finding, entry["findings"])),
        suppressed=int(entry["suppressed"]),
        unused_pragmas=tuple((SourceLocation(*place), codes) for place, codes in entry["unused_pragmas"]),
        used_elsewhere=frozenset((file, line) for file, line in entry["used_elsewhere"]),
        problem=str(entry["problem"]),
    )


def _decode_finding(record: dict[str, Any]) -> Finding:
    location, end, fix = record["location"], record["end"], record["autofix"]
    fields: dict[str, Any] = {
        **record,
        "severity": Severity(record["severity"]),
        "location": SourceLocation(*location) if location else None,
        "related": tuple((SourceLocation(*place), text) for place, text in record["related"]),
        "end": tuple(end) if end else None,
        "autofix": fix and Fix(tuple(Edit(*each) for each in fix["edits"]), fix["safe"], fix["description"]),
    }
    return Finding(**fields)
