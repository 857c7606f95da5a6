"""Failures are found, not registered: in this package, and in those of others that say so in an entry point."""

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
    code="{code}", title="Their own", severity=Severity.NOTE, doc=__doc__, fix="Do it.", bad="x = 1", good="x = 2"
)
'''


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Mapping[str, Entry]]:
    """Find the catalogue anew with a package of somebody else's, of one file."""

    def found(text: str, family: str = "gradient", name: str = "their_own") -> Mapping[str, Entry]:
        folder = tmp_path / "theirs" / family
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text(text)
        for package in (folder, folder.parent):
            (package / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)

        class Theirs:
            load = staticmethod(lambda: importlib.import_module("theirs"))

        monkeypatch.setattr(load, "entry_points", lambda group: [Theirs] if group == load.ENTRY_POINT_GROUP else [])
        return catalogue.__wrapped__()

    yield found
    for each in [each for each in sys.modules if each.partition(".")[0] == "theirs"]:
        del sys.modules[each]


def test_a_failure_of_somebody_elses_stands_among_those_of_its_family(others):
    found = others(FILE.format(code="GRD777"))
    assert set(found) == {*catalogue(), "GRD777"}
    assert (found["GRD777"].slug, found["GRD777"].family) == ("their-own", "gradient")
    codes = list(found)
    assert codes[codes.index("GRD777") - 1].startswith("GRD"), "the last of its family"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("x = 1\n", {}, r"^theirs\.gradient\.their_own has no FAILURE\.$"),
        (FILE.format(code="OPT777"), {}, "has the code 'OPT777'; in gradient it begins GRD"),
        (FILE.format(code="GRD77"), {}, "has the code 'GRD77'; in gradient it begins GRD"),
        (FILE.format(code="GRD001"), {}, "Two failures are called GRD001 or their-own"),
        (FILE.format(code="GRD777"), {"name": "never_cleared"}, "Two failures are called GRD777 or never-cleared"),
        (FILE.format(code="GRD777"), {"family": "gradients"}, "'gradients' is no family.*gradient, "),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(others, text, place, message):
    with pytest.raises(ValueError, match=message):
        others(text, **place)


def test_a_failure_is_found_by_code_or_name_in_any_case():
    entry = catalogue()["GRD001"]
    assert find_failure("grd001") is find_failure("GRD001") is find_failure("Never-Cleared") is entry
    assert find_failure("never cleared") is None


def test_every_error_has_a_page_and_a_file_without_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert len(known_errors()) > 10
    assert all(error_page(kind).strip() for kind in known_errors())
    (tmp_path / "nothing_known.py").touch()
    raised = importlib.import_module("trueloop.failures.pytorch_errors")
    monkeypatch.setattr(raised, "__path__", [*raised.__path__, str(tmp_path)])
    with pytest.raises(ValueError, match=r"^trueloop\.failures\.pytorch_errors\.nothing_known has no ERROR\.$"):
        known_errors.__wrapped__()
    del sys.modules["trueloop.failures.pytorch_errors.nothing_known"], raised.nothing_known
