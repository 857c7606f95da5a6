"""A TOML file of settings: every value reads back; a typo, a wrong type or a broken file is one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from trueloop.app.training.recipe_settings import collect_settings
from trueloop.cli.configfile import read_config
from trueloop.core.errors import InvalidConfig
from trueloop.recipes.recipe import Parts, Recipe
from trueloop.recipes.text import TextOptions
from trueloop.training.config import TrainConfig

RECIPE = Recipe(
    name="mine",
    summary="Mine.",
    train=TrainConfig(),
    options=TextOptions(),
    assemble=lambda _options: Parts(model=nn.Linear(1, 1), objective=nn.MSELoss(), train=[]),
)
SETTINGS = collect_settings(RECIPE)


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return read_config(path, SETTINGS)


def error_of(tmp_path: Path, text: str) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        read(tmp_path, text)
    return caught.value


def test_tables_and_keys_are_those_of_the_settings(tmp_path: Path):
    text = """
    epochs = 3
    effective-batch = 32      # dashes as on the command line
    clip = "none"
    micro_batch = 4
    freeze = ["a.*"]
    [optim]
    lr = 1                    # a whole number where any will do
    betas = [0.5, 0.75]
    [schedule]
    name = "linear"
    [options]
    width = 64
    """
    values = read(tmp_path, text)
    assert values == {
        "epochs": 3,
        "effective_batch": 32,
        "clip": None,
        "micro_batch": 4,
        "freeze": ("a.*",),
        "optim.lr": 1.0,
        "optim.betas": (0.5, 0.75),
        "schedule.name": "linear",
        "options.width": 64,
    }
    assert type(values["optim.lr"]) is float


def test_an_empty_file_sets_nothing(tmp_path: Path):
    assert read(tmp_path, "# nothing") == {}


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("epoch = 3", "sets 'epoch', which is not a setting.", "Did you mean 'epochs'?"),
        ("[optimm]\nlr = 1.0", "sets 'optimm.lr'", "Did you mean 'optim.lr'?"),
        ("lr = 0.1", "sets 'lr'", "Did you mean 'optim.lr'?"),
        ("[guard]\nxyz = 1", "sets 'guard.xyz'", "The settings are guard.enabled, guard.max_in_a_row, guard.locate."),
    ],
)
def test_a_typo_is_corrected(tmp_path: Path, text: str, what: str, fix: str):
    error = error_of(tmp_path, text)
    assert what in error.what
    assert error.fix == fix


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('epochs = "three"', "sets epochs = 'three', which is not a whole number."),
        ("epochs = 3.0", "sets epochs = 3.0, which is not a whole number."),
        ("epochs = true", "sets epochs = True, which is not a whole number."),
        ("epochs = [3]", "sets epochs = [3], which is not a whole number."),
        ("drop_last = 1", "sets drop_last = 1, which is not true or false."),
        ("clip = false", 'sets clip = False, which is not a number or "none".'),
        ("device = 1", "sets device = 1, which is not text."),
        ("optim = 3", "sets 'optim', which is not a setting."),
        ("[optim]\nbetas = [0.9]", "sets optim.betas = [0.9], which is not a list of 2 items, each a number."),
        ('freeze = "a"', "sets freeze = 'a', which is not a list of items, each text."),
        ('[schedule]\nname = "cosin"', "sets schedule.name = 'cosin', which is not one of 'constant', 'step',"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(tmp_path: Path, text: str, what: str):
    assert what in error_of(tmp_path, text).what


def test_the_recipes_default_is_suggested(tmp_path: Path):
    assert error_of(tmp_path, "[optim]\nlr = []").fix == "The recipe's default is 0.001."


def test_invalid_toml_is_reported_with_its_line(tmp_path: Path):
    error = error_of(tmp_path, "epochs = 3\nlr 0.1\n")
    assert "is not TOML" in error.what
    assert "line 2" in error.what


def test_bytes_that_are_not_text_are_not_toml(tmp_path: Path):
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidConfig, match="is not TOML"):
        read_config(path, SETTINGS)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InvalidConfig, match=r"nowhere\.toml'"):
        read_config(tmp_path / "nowhere.toml", SETTINGS)


def test_a_folder_is_refused(tmp_path: Path):
    with pytest.raises(InvalidConfig, match="Cannot read the settings file"):
        read_config(tmp_path, SETTINGS)


words = st.text(st.characters(exclude_categories=("Cs", "Cc")))
whole = st.integers(-(2**63), 2**63 - 1)
numbers = st.floats(allow_nan=False)
KINDS: dict[Any, st.SearchStrategy[Any]] = {
    int: whole,
    float: numbers,
    bool: st.booleans(),
    str: words,
    int | None: st.none() | whole,
    float | None: st.none() | numbers,
    str | None: st.none() | words.filter(lambda text: text.lower() != "none"),
    tuple[float, float]: st.tuples(numbers, numbers),
    tuple[str, ...]: st.lists(words).map(tuple),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(kind)) if get_origin(kind) is Literal else KINDS[kind]


some_settings = st.fixed_dictionaries({}, optional={key: values_of(each.kind) for key, each in SETTINGS.items()})


def toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(toml(part) for part in value) + "]"
    if isinstance(value, float):
        return repr(value)  # 1e-08, inf: as TOML writes them
    return json.dumps("none" if value is None else value, ensure_ascii=False)


@given(values=some_settings)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_setting_round_trips(tmp_path: Path, values: dict[str, Any]):
    assert read(tmp_path, "\n".join(f"{key} = {toml(value)}" for key, value in values.items())) == values
