"""Test settings as flags: recipe defaults, overrides, and parsing of formatted flags."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args, get_origin

import pytest
from cyclopts import CycloptsError
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trueloop.app.training.recipe_settings import apply_overrides, collect_settings, format_flags, format_value
from trueloop.cli.recipe_line import RecipeCommandLine, recipe_app
from trueloop.core.errors import InvalidConfig
from trueloop.recipes.recipe import Parts, Recipe
from trueloop.training.config import OptimConfig, ScheduleConfig, TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last layer."""

    bias: bool = True
    """Whether it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The network.

    More is said here.
    """

    width: int = 8
    """Units of
    each layer."""
    kind: Literal["relu", "gelu"] = "relu"
    name: str = "net"
    levels: tuple[int, ...] = (1, 2)
    head: Head = field(default_factory=Head)


def a_recipe(**changes: Any) -> Recipe:
    train = TrainConfig(epochs=7, optim=OptimConfig(lr=0.5), schedule=ScheduleConfig(name="linear"))
    recipe = Recipe(
        name="mine",
        summary="Mine.",
        train=train,
        options=Options(width=99),
        assemble=lambda _options: Parts(model=nn.Linear(1, 1), objective=nn.MSELoss(), train=[]),
    )
    return replace(recipe, **changes)


RECIPE = a_recipe()
SETTINGS = collect_settings(RECIPE)


def typed(arguments: list[str]) -> dict[str, Any]:
    """Parse words as `trueloop train mine WORDS` does and return the typed settings."""
    lines: list[RecipeCommandLine] = []

    def act(line: RecipeCommandLine) -> int:
        lines.append(line)
        return 0

    assert recipe_app(RECIPE, "mine", act)(arguments, exit_on_error=False, print_error=False) == 0
    return dict(lines[0].overrides)


def leaves(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= leaves(value, f"{above}{name}.") if isinstance(value, dict) else {f"{above}{name}": value}
    return found


def test_every_leaf_is_a_setting_with_the_recipes_own_value():
    expected = {**leaves(asdict(RECIPE.train)), **leaves(asdict(RECIPE.options), "options.")}
    assert {key: setting.value for key, setting in SETTINGS.items()} == expected
    assert SETTINGS["optim.lr"].value == 0.5, "the instance's, not the class's 1e-3"


def test_docs_come_from_field_and_class_docstrings():
    assert SETTINGS["options.width"].doc == "Units of each layer."
    assert SETTINGS["options.kind"].doc == ""
    assert SETTINGS["options.width"].table == "The network."
    assert SETTINGS["options.head.bias"].table == "The last layer."
    assert SETTINGS["optim.lr"].doc == "Peak learning rate, per update."
    assert all(setting.doc for key, setting in SETTINGS.items() if not key.startswith("options."))


def test_a_class_without_a_docstring_has_no_title():
    @dataclass(frozen=True)
    class Bare:
        width: int = 3

    assert collect_settings(a_recipe(options=Bare()))["options.width"].table == ""


def test_a_flag_is_the_key_with_dashes():
    assert SETTINGS["optim.weight_decay"].flag == "--optim.weight-decay"


def test_no_setting_hides_a_flag_of_the_run():
    assert not {"run_dir", "config", "fresh", "smoke", "json", "help"} & set(SETTINGS)


def test_overrides_change_only_the_given_settings():
    changed = apply_overrides(RECIPE, {"epochs": 3, "optim.lr": 0.25, "options.head.bias": False})
    assert changed.train == replace(RECIPE.train, epochs=3, optim=replace(RECIPE.train.optim, lr=0.25))
    assert changed.options == replace(RECIPE.options, head=Head(bias=False))
    assert changed.assemble is RECIPE.assemble
    assert RECIPE.train.epochs == 7


def test_overriding_with_its_own_values_is_the_same_recipe():
    assert apply_overrides(RECIPE, {key: setting.value for key, setting in SETTINGS.items()}) == RECIPE
    assert apply_overrides(RECIPE, {}) == RECIPE


def test_a_recipe_without_options_has_only_training_settings():
    bare = a_recipe(options=None)
    assert list(collect_settings(bare)) == [key for key in SETTINGS if not key.startswith("options.")]
    assert apply_overrides(bare, {"epochs": 2}).options is None


def test_options_that_are_not_a_dataclass_are_refused():
    with pytest.raises(InvalidConfig, match=r"options is \{'width': 3\}"):
        collect_settings(a_recipe(options={"width": 3}))


def test_an_option_of_an_unsupported_type_is_refused():
    @dataclass(frozen=True)
    class Layers:
        sizes: dict[str, int] = field(default_factory=dict)

    with pytest.raises(InvalidConfig, match=r"options\.sizes has the type dict\[str, int\]"):
        collect_settings(a_recipe(options=Layers()))


def test_only_typed_flags_are_passed():
    assert typed([]) == {}
    assert typed(["--epochs", "3", "--optim.lr=1e-2"]) == {"epochs": 3, "optim.lr": 0.01}


@pytest.mark.parametrize(
    ("arguments", "given_"),
    [
        ("--clip none", {"clip": None}),
        ("--micro-batch none", {"micro_batch": None}),
        ("--micro-batch 8", {"micro_batch": 8}),
        ("--no-drop-last", {"drop_last": False}),
        ("--drop-last", {"drop_last": True}),
        ("--guard.no-locate", {"guard.locate": False}),
        ("--optim.betas 0.5 0.75", {"optim.betas": (0.5, 0.75)}),
        ("--freeze a.* --freeze b", {"freeze": ("a.*", "b")}),
        ("--empty-freeze", {"freeze": ()}),
        ("--schedule.name constant", {"schedule.name": "constant"}),
        ("--options.levels 4 --options.levels 5", {"options.levels": (4, 5)}),
        ("--options.head.no-bias", {"options.head.bias": False}),
        ("--seed -3", {"seed": -3}),
    ],
)
def test_flags_have_the_settings_types(arguments: str, given_: dict[str, Any]):
    parsed = typed(arguments.split())
    assert parsed == given_
    assert [type(value) for value in parsed.values()] == [type(value) for value in given_.values()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--epochs 2.7", "Invalid value for --epochs: '2.7' is not a whole number."),
        ("--micro-batch 2.7", "Invalid value for --micro-batch: '2.7' is not a whole number."),
        ("--options.levels 2.7", "Invalid value for --options.levels: '2.7' is not a whole number."),
        ("--optim.lr fast", 'Invalid value for --optim.lr: unable to convert "fast" into float.'),
        ("--drop-last=maybe", 'Invalid value for --drop-last: unable to convert "maybe" into bool.'),
        ("--schedule.name cosin", 'Did you mean "cosine"?'),
        ("--optim.lrr 1", "Unknown option: --optim.lrr. Did you mean --optim.lr?"),
        ("--optim.betas 0.5", "Parameter --optim.betas requires 2 positional arguments. Only got 1."),
        ("--epochs", "Parameter --epochs requires an argument."),
        ("3", "Unused Tokens: ['3']."),
    ],
)
def test_an_invalid_value_is_named(arguments: str, message: str):
    with pytest.raises(CycloptsError) as caught:
        typed(arguments.split())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "none"), (True, "true"), ((0.9, 0.999), "0.9 0.999"), ((), "empty"), (1e-3, "0.001")]
)
def test_values_are_formatted_for_the_command_line(value: Any, text: str):
    assert format_value(value) == text


# A value that starts with a dash would be parsed as a flag.
arguments = st.text(st.characters(categories=("L", "N"), include_characters=".*_"), min_size=1)
numbers = st.floats(allow_nan=False)
KINDS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    float: numbers,
    bool: st.booleans(),
    str: arguments,
    int | None: st.none() | st.integers(),
    float | None: st.none() | numbers,
    str | None: st.none() | arguments.filter(lambda text: text.lower() != "none"),
    tuple[float, float]: st.tuples(numbers, numbers),
    tuple[str, ...]: st.lists(arguments).map(tuple),
    tuple[int, ...]: st.lists(st.integers()).map(tuple),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(kind)) if get_origin(kind) is Literal else KINDS[kind]


some_settings = st.fixed_dictionaries({}, optional={key: values_of(each.kind) for key, each in SETTINGS.items()})


@given(some_settings)
def test_formatted_flags_parse_back_to_the_settings(values: dict[str, Any]):
    assert typed(format_flags(values, SETTINGS)) == values
