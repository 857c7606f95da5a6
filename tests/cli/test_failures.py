"""`trueloop failures`: the catalogue for people, for programs and for papers."""

from __future__ import annotations

import json

import pytest

from trueloop.cli import failures as module
from trueloop.cli.app import main
from trueloop.failures.load import catalogue


@pytest.fixture(autouse=True)
def listed(made_up: None, monkeypatch: pytest.MonkeyPatch):
    from trueloop.failures import selection

    monkeypatch.setattr(module, "catalogue", selection.catalogue)


def test_failures_are_listed_by_family(capsys: pytest.CaptureFixture[str]):
    assert main(["failures"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == ["gradient", "  GRD901  made-up-error  A made-up-error", ""]
    assert lines[-1] == "4 failures; details of one: trueloop explain GRD901"


def test_json_lists_every_failure(capsys: pytest.CaptureFixture[str]):
    assert main(["failures", "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)
    assert len(others) == 3
    assert first == {
        "code": "GRD901",
        "slug": "made-up-error",
        "family": "gradient",
        "severity": "error",
        "title": "A made-up-error",
        "fix": "Do otherwise.",
        "watched": True,
        "linted": False,
        "checked_by_doctor": False,
        "injected": False,
    }


def test_the_markdown_table_lists_every_failure(capsys: pytest.CaptureFixture[str]):
    assert main(["failures", "--table"]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "| code | failure | severity | run time | linter | lab | title |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| GRD901 | gradient/made-up-error | error | yes | no | no | A made-up-error |",
    ]


def test_the_table_names_how_each_failure_is_found():
    rows = {
        row.split(" | ")[0][2:]: row.split(" | ")[3:6] for row in module.markdown(catalogue().values()).splitlines()
    }
    assert rows["GRD001"] == ["yes", "yes", "yes"]
    assert rows["PRC003"] == ["no", "yes", "no"]
    assert rows["ENV004"] == ["doctor", "no", "no"]
