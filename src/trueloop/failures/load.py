"""Finds every failure there is: in this package, and in installed packages that offer more."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

import trueloop.failures
from trueloop.failures.failure import Failure

if TYPE_CHECKING:
    from trueloop.failures.pytorch_error import KnownError

FAMILIES: Final[Mapping[str, str]] = {
    "gradient": "GRD",
    "precision": "PRC",
    "evaluation": "EVL",
    "memory": "MEM",
    "model": "MDL",
    "optimizer": "OPT",
    "schedule": "SCH",
    "loss": "LOS",
    "data": "DAT",
    "checkpoint": "CKP",
    "distributed": "DST",
    "environment": "ENV",
}
PYTORCH_ERRORS: Final = "pytorch_errors"
"""The folder of the errors that torch itself raises: one file each, no family."""
ENTRY_POINT_GROUP = "trueloop.failures"
"""Entry points of this group name a package laid out like this one."""
SECTIONS: Final = ("What you see", "Why it happens", "Fix", "When this is fine", "How it is detected", "References")
_CODE = re.compile(r"[A-Z]{3}\d{3}")


class Entry(NamedTuple):
    """One failure, and where its file lies."""

    failure: Failure
    family: str
    slug: str
    """The file's name with hyphens: the word on the command line and in the address of its page."""

    @property
    def code(self) -> str:
        """Its code: "GRD001"."""
        return self.failure.code

    @property
    def page(self) -> str:
        """Where its page lies in the documentation: "failures/never-cleared.html"."""
        return f"failures/{self.slug}.html"


@cache
def catalogue() -> Mapping[str, Entry]:
    """Return every failure by its code, in the order of families and codes.

    Raises:
        ValueError: a code twice, or one that does not fit its folder; a file without a ``FAILURE``.
    """
    packages = [trueloop.failures, *(entry.load() for entry in entry_points(group=ENTRY_POINT_GROUP))]
    found: dict[str, Entry] = {}
    for entry in (entry for package in packages for entry in _load_entries(package)):
        if entry.code in found or entry.slug in {other.slug for other in found.values()}:
            raise ValueError(f"Two failures are called {entry.code} or {entry.slug}.")
        found[entry.code] = entry
    families = list(FAMILIES)
    return dict(sorted(found.items(), key=lambda item: (families.index(item[1].family), item[0])))


def find_failure(code_or_slug: str) -> Entry | None:
    """Return the failure with this code or slug, in any case; None where there is none."""
    entries = catalogue()
    return entries.get(code_or_slug.upper()) or next(
        (e for e in entries.values() if e.slug == code_or_slug.lower()), None
    )


@cache
def known_errors() -> Mapping[str, KnownError]:
    """Return every error of torch's that can be explained, by its kind: the file's name with hyphens.

    Raises:
        ValueError: a file without an ``ERROR``.
    """
    from trueloop.failures.pytorch_error import KnownError

    package = importlib.import_module(f"{trueloop.failures.__name__}.{PYTORCH_ERRORS}")
    found: dict[str, KnownError] = {}
    for file in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        error = getattr(importlib.import_module(file.name), "ERROR", None)
        if not isinstance(error, KnownError):
            raise ValueError(f"{file.name} has no ERROR.")
        found[file.name.rpartition(".")[2].replace("_", "-")] = error
    return found


def error_page(kind: str) -> str:
    """Return the page of an error of torch's: the docstring of its file.

    Args:
        kind: as `known_errors` names it.
    """
    module = importlib.import_module(f"{trueloop.failures.__name__}.{PYTORCH_ERRORS}.{kind.replace('-', '_')}")
    return module.__doc__ or ""


def _load_entries(package: ModuleType) -> Iterator[Entry]:
    for folder in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not folder.ispkg or folder.name == f"{trueloop.failures.__name__}.{PYTORCH_ERRORS}":
            continue
        family = folder.name.rpartition(".")[2]
        paths = importlib.import_module(folder.name).__path__
        for file in pkgutil.iter_modules(paths, f"{folder.name}."):
            yield _load_entry(importlib.import_module(file.name), family)


def _load_entry(module: ModuleType, family: str) -> Entry:
    failure = getattr(module, "FAILURE", None)
    name = module.__name__.rpartition(".")[2]
    if not isinstance(failure, Failure):
        raise ValueError(f"{module.__name__} has no FAILURE.")
    if family not in FAMILIES:
        raise ValueError(
            f"{module.__name__} cannot be placed: {family!r} is no family. The families are {', '.join(FAMILIES)}."
        )
    if not _CODE.fullmatch(failure.code) or failure.code[:3] != FAMILIES[family]:
        raise ValueError(f"{module.__name__} has the code {failure.code!r}; in {family} it begins {FAMILIES[family]}.")
    return Entry(failure, family, name.replace("_", "-"))
