"""Loads all failures: those of this package and those of installed packages with an entry point."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
    "learning": "LRN",
    "data": "DAT",
    "checkpoint": "CKP",
    "distributed": "DST",
    "environment": "ENV",
}
PYTORCH_ERRORS: Final = "pytorch_errors"
"""Package of the errors that PyTorch itself raises: one file each, no family."""
ENTRY_POINT_GROUP = "trueloop.failures"
"""Entry points of this group name packages with the same layout as this package."""
SECTIONS: Final = ("What you see", "Why it happens", "Fix", "When this is fine", "How it is detected", "References")
_CODE = re.compile(r"[A-Z]{3}\d{3}")


class Entry(NamedTuple):
    """One failure with the family and the slug of its file."""

    failure: Failure
    family: str
    slug: str
    """Name of the file with hyphens, as used on the command line and in the address of the page."""
    module: str
    """Name of the module that defines the failure."""

    @property
    def code(self) -> str:
        """The code of the failure: "GRD001"."""
        return self.failure.code

    @property
    def page(self) -> str:
        """Path of the failure's page in the documentation: "failures/never-cleared.html"."""
        return f"failures/{self.slug}.html"


@cache
def catalogue() -> Mapping[str, Entry]:
    """Return all failures by code, ordered by family and code.

    Raises:
        ValueError: a duplicate code, a code of another family, or a file without a ``FAILURE``.
    """
    packages = [trueloop.failures, *(entry.load() for entry in entry_points(group=ENTRY_POINT_GROUP))]
    entries: dict[str, Entry] = {}
    for entry in (entry for package in packages for entry in _load_entries(package)):
        if entry.code in entries or entry.slug in {other.slug for other in entries.values()}:
            raise ValueError(f"Two failures have the code {entry.code} or the name {entry.slug}.")
        entries[entry.code] = entry
    families = list(FAMILIES)
    return dict(sorted(entries.items(), key=lambda item: (families.index(item[1].family), item[0])))


def plugin_versions() -> list[str]:
    """Return the installed packages with further failures, with their versions."""
    found = entry_points(group=ENTRY_POINT_GROUP)
    return [f"{each.value} {each.dist.version if each.dist is not None else ''}" for each in found]


def find_failure(code_or_slug: str) -> Entry | None:
    """Return the failure with this code or slug, ignoring case; None if there is none."""
    entries = catalogue()
    return entries.get(code_or_slug.upper()) or next(
        (e for e in entries.values() if e.slug == code_or_slug.lower()), None
    )


def failure_hooks() -> list[Callable[[Any, Any], Any]]:
    """Return the classes of the hooks that only one failure needs: ``HOOK`` in the file ``hook.py`` of its folder.

    The files are imported here, because they import PyTorch. A hook is created with the event stream and the state of
    the program; see `trueloop.tracing.attach.Hook`.
    """
    names = [f"{entry.module}.hook" for entry in catalogue().values() if hasattr(sys.modules[entry.module], "__path__")]
    return [importlib.import_module(name).HOOK for name in names if importlib.util.find_spec(name) is not None]


@cache
def known_errors() -> Mapping[str, KnownError]:
    """Return all PyTorch errors that can be explained, by kind: the name of the file with hyphens.

    Raises:
        ValueError: a file without an ``ERROR``.
    """
    from trueloop.failures.pytorch_error import KnownError

    package = importlib.import_module(f"{trueloop.failures.__name__}.{PYTORCH_ERRORS}")
    errors: dict[str, KnownError] = {}
    for file in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        error = getattr(importlib.import_module(file.name), "ERROR", None)
        if not isinstance(error, KnownError):
            raise ValueError(f"{file.name} has no ERROR.")
        errors[file.name.rpartition(".")[2].replace("_", "-")] = error
    return errors


def error_page(kind: str) -> str:
    """Return the page of a PyTorch error: the docstring of its file.

    Args:
        kind: a key of `known_errors`.
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
        raise ValueError(f"{module.__name__} is in no known family: {family!r} is not one of {', '.join(FAMILIES)}.")
    if not _CODE.fullmatch(failure.code) or failure.code[:3] != FAMILIES[family]:
        raise ValueError(
            f"{module.__name__} has the code {failure.code!r}; codes of {family} start with {FAMILIES[family]}."
        )
    return Entry(
        replace(failure, doc=failure.doc or module.__doc__ or ""), family, name.replace("_", "-"), module.__name__
    )
