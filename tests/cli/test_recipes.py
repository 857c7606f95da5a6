"""`trueloop recipes` lists what the package holds."""

from __future__ import annotations

import dataclasses
import json

import pytest

from trueloop.cli.app import main
from trueloop.recipes import registry


def test_every_recipe_is_listed_with_its_facts(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    for listing in registry.listings():
        for text in dataclasses.astuple(listing):
            assert text in page


def test_no_line_is_wider_than_the_terminal(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_json_lists_the_same_recipes(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [dataclasses.asdict(listing) for listing in registry.listings()]
