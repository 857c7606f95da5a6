"""Recipes are found without a list, listed without torch, and a user's own are loaded from their file."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trueloop.core.errors import InvalidConfig, MissingExtra
from trueloop.recipes import registry

MINE = """
from dataclasses import dataclass, replace
from beside import NAME
from trueloop.recipes import tabular

@dataclass(frozen=True)
class Options:
    width: int = 3
    \"\"\"Of it.\"\"\"

def build():
    return replace(tabular.build(), name=NAME, options=Options())

def other():
    return replace(build(), name="other")

def wrong():
    return {"epochs": 3}

number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    path = tmp_path / "my_recipe.py"
    path.write_text(MINE)
    modules, paths = dict(sys.modules), list(sys.path)
    yield path
    sys.path[:] = paths
    for name in set(sys.modules) - set(modules):
        if name in {"beside", "my_recipe", "my_recipe_recipe"}:
            del sys.modules[name]


def test_the_built_in_recipes():
    assert [listing.name for listing in registry.listings()] == ["digits", "tabular", "text"]


@pytest.mark.parametrize("listing", registry.listings(), ids=lambda listing: listing.name)
def test_each_listing_describes_its_recipe(listing: registry.Listing):
    recipe = registry.load(listing.name)
    assert (recipe.name, recipe.summary) == (listing.name, listing.summary)
    parts = recipe.assemble(recipe.options)
    size = sum(parameter.numel() for parameter in parts.model.parameters())
    assert f"{size:,} parameters" in listing.model
    assert listing.data
    assert re.search(r"second|minute", listing.time)


def test_an_unknown_name_is_corrected_and_the_others_are_named():
    with pytest.raises(InvalidConfig) as caught:
        registry.load("tabula")
    assert caught.value.what == "There is no recipe 'tabula'. Did you mean 'tabular'?"
    assert "digits, tabular, text" in caught.value.fix


@pytest.mark.parametrize("name", ["registry", "recipe", "bounds", "", "os"])
def test_a_module_without_build_is_no_recipe(name: str):
    with pytest.raises(InvalidConfig, match="There is no recipe"):
        registry.load(name)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtra, match=r"trueloop\[train\]"):
        registry.load("digits")


def test_a_users_recipe_imports_modules_from_its_folder(mine: Path):
    assert registry.load(f"{mine}:build").name == "beside"


def test_the_function_name_may_be_omitted(mine: Path):
    assert registry.load(str(mine)).name == "beside"


def test_another_function_of_the_file_is_called(mine: Path):
    assert registry.load(f"{mine}:other").name == "other"


def test_a_changed_file_is_read_again(mine: Path):
    assert registry.load(str(mine)).name == "beside"
    mine.write_text(MINE.replace("name=NAME", "name='changed'"))
    assert registry.load(str(mine)).name == "changed"


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InvalidConfig, match=r"There is no recipe file '.*nowhere\.py'"):
        registry.load(f"{tmp_path}/nowhere.py:build")


@pytest.mark.parametrize("function", ["biuld", "number"])
def test_a_missing_function_is_named(mine: Path, function: str):
    with pytest.raises(InvalidConfig, match=f"has no function '{function}'"):
        registry.load(f"{mine}:{function}")


def test_a_mistyped_function_is_corrected(mine: Path):
    with pytest.raises(InvalidConfig) as caught:
        registry.load(f"{mine}:biuld")
    assert caught.value.fix == f"Did you mean {mine}:build?"


def test_a_function_that_returns_something_else_is_refused(mine: Path):
    with pytest.raises(InvalidConfig, match="wrong returned dict, not a Recipe"):
        registry.load(f"{mine}:wrong")


def test_a_function_with_required_arguments_is_refused(mine: Path):
    with mine.open("a") as file:
        file.write("\ndef wants(width, depth=2):\n    return width\n")
    with pytest.raises(
        InvalidConfig, match=r"wants cannot be called without arguments: missing a required argument: 'width'"
    ):
        registry.load(f"{mine}:wants")


def test_an_unreadable_file_is_named(mine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InvalidConfig, match=r"The recipe file '.*' cannot be read"):
        registry.load(str(mine))


def test_an_error_in_the_users_file_keeps_its_location(mine: Path):
    mine.write_text("def build():\n    return 1 / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        registry.load(str(mine))
    assert caught.traceback[-1].path == mine
