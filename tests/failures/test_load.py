"""Tests of `failures.load`: failures are discovered in this package and in packages with an entry point."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from trueloop.failures import load
from trueloop.failures.load import Entry, catalogue, error_page, find_failure, known_errors

FILE = '''"""A page."""
from trueloop.failures.failure import Failure
from trueloop.core.findings import Severity

FAILURE = Failure(
    code="{code}", title="External", severity=Severity.NOTE, doc=__doc__, fix="Do it.", bad="x = 1", good="x = 2"
)
'''


@pytest.fixture
def load_with_external(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Mapping[str, Entry]]:
    """Load the catalogue with an external package of one file."""

    def found(text: str, family: str = "gradient", name: str = "external") -> Mapping[str, Entry]:
        folder = tmp_path / "external_package" / family
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text(text)
        for package in (folder, folder.parent):
            (package / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)

        class External:
            load = staticmethod(lambda: importlib.import_module("external_package"))

        monkeypatch.setattr(load, "entry_points", lambda group: [External] if group == load.ENTRY_POINT_GROUP else [])
        return catalogue.__wrapped__()

    yield found
    for each in [each for each in sys.modules if each.partition(".")[0] == "external_package"]:
        del sys.modules[each]


def test_an_external_failure_is_listed_in_its_family(load_with_external):
    found = load_with_external(FILE.format(code="GRD777"))
    assert set(found) == {*catalogue(), "GRD777"}
    assert (found["GRD777"].slug, found["GRD777"].family) == ("external", "gradient")
    codes = list(found)
    assert codes[codes.index("GRD777") - 1].startswith("GRD"), "the last code of its family"


@pytest.mark.parametrize(
    ("text", "location", "message"),
    [
        ("x = 1\n", {}, r"^external_package\.gradient\.external has no FAILURE\.$"),
        (FILE.format(code="OPT777"), {}, "has the code 'OPT777'; codes of gradient start with GRD"),
        (FILE.format(code="GRD77"), {}, "has the code 'GRD77'; codes of gradient start with GRD"),
        (FILE.format(code="GRD001"), {}, "Two failures have the code GRD001 or the name external"),
        (
            FILE.format(code="GRD777"),
            {"name": "never_cleared"},
            "Two failures have the code GRD777 or the name never-cleared",
        ),
        (FILE.format(code="GRD777"), {"family": "gradients"}, "'gradients' is not one of gradient, "),
    ],
)
def test_an_invalid_file_is_refused_by_name(load_with_external, text, location, message):
    with pytest.raises(ValueError, match=message):
        load_with_external(text, **location)


def test_find_failure_ignores_case():
    entry = catalogue()["GRD001"]
    assert find_failure("grd001") is find_failure("GRD001") is find_failure("Never-Cleared") is entry
    assert find_failure("never cleared") is None


def test_every_error_has_a_page_and_a_file_without_error_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert len(known_errors()) > 10
    assert all(error_page(kind).strip() for kind in known_errors())
    (tmp_path / "without_error.py").touch()
    package = importlib.import_module("trueloop.failures.pytorch_errors")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    with pytest.raises(ValueError, match=r"^trueloop\.failures\.pytorch_errors\.without_error has no ERROR\.$"):
        known_errors.__wrapped__()
    del sys.modules["trueloop.failures.pytorch_errors.without_error"], package.without_error
