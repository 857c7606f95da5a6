"""The command line of one recipe: where to run and how, and every setting with the recipe's own default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter

from trueloop.app.option_types import Count
from trueloop.app.training.recipe_settings import (
    Setting,
    apply_overrides,
    collect_settings,
    flag_parameters,
    format_flags,
    keyword_parameter,
    settings_from_arguments,
)
from trueloop.recipes import registry

if TYPE_CHECKING:
    from trueloop.recipes.recipe import Recipe

LogFormat = Literal["auto", "live", "plain", "json"]

_RUN = Group("run", sort_key=1)


def flag(name: str, kind: Any, default: Any, text: str) -> inspect.Parameter:
    """Make an option that is no setting of the recipe's."""
    shown = Parameter(name=f"--{name.replace('_', '-')}", help=text, group=_RUN, negative=(), show_default=False)
    return keyword_parameter(name, kind, default, shown)


RUN_FLAGS = (
    flag("run_dir", Path | None, None, "Where the run lies; a run there is continued."),
    flag("config", Path | None, None, "TOML file of settings; flags override it."),
    flag("fresh", bool, False, "Start over: in a new folder, or in --run-dir, whose run is removed."),
    flag("allow_change", bool, False, "Continue the run in --run-dir although settings, code or data changed."),
    flag("store", str | None, None, "Copy the run to MLflow, TensorBoard or W&B: sqlite, a URL, tensorboard:DIR."),
    flag("smoke", bool, False, "A handful of batches only: does it train at all?"),
    flag("log_format", LogFormat, "auto", "auto, live, plain (whole lines), or json (a line for each event)."),
    flag("json", bool, False, "Print one JSON object instead of progress and summary."),
    flag("processes", Count | None, None, "Start so many processes on this machine, with torchrun; one per GPU."),
    flag("nodes", Count | None, None, "Machines that train together; start the same line on each."),
    flag("rendezvous", str | None, None, "host:port on one of the machines, where all meet."),
    flag("max_restarts", Count | None, None, "Restarts after a process was lost, 3 unless said."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeCommandLine:
    """What was typed after `trueloop train RECIPE`."""

    run_dir: Path | None
    config: Path | None
    fresh: bool
    allow_change: bool
    store: str | None
    smoke: bool
    log_format: LogFormat
    json: bool
    processes: int | None
    nodes: int | None
    rendezvous: str | None
    max_restarts: int | None
    overrides: Mapping[str, Any]
    """Settings given as flags, by key; those not given are absent."""
    settings: Mapping[str, Setting]
    """Every setting there is, by key."""

    def from_arguments(self, recipe: Recipe, spec: str, from_file: Mapping[str, Any]) -> Recipe:
        """Return the recipe with the settings of the file and, over them, of this line; it knows how to be asked again.

        Args:
            recipe: with its own defaults.
            spec: how the user named it.
            from_file: settings by key.
        """
        asked = apply_overrides(recipe, {**from_file, **self.overrides})  # at once: two options may only fit together
        return replace(asked, command=tuple(self.resume_command(spec, None)))

    def resume_command(self, spec: str, run_dir: Path | None) -> list[str]:
        """Return the words that start this run again in ``run_dir``, where it goes on."""
        where = ["--run-dir", str(run_dir)] if run_dir else []
        config = ["--config", str(self.config)] if self.config else []
        return [
            *("trueloop", "train", spec, *where),
            *config,
            *self._store_again(),
            *self._processes_again(),
            *format_flags(self.overrides, self.settings),
        ]

    def _processes_again(self) -> list[str]:
        given = {
            "--processes": self.processes,
            "--nodes": self.nodes,
            "--rendezvous": self.rendezvous,
            "--max-restarts": self.max_restarts,
        }
        return [word for flag, value in given.items() if value is not None for word in (flag, str(value))]

    def _store_again(self) -> list[str]:
        """Return the words that name the store, unless they hold a password: what is printed here is also journaled."""
        from trueloop.runs.tracking.target import mask_secrets

        return ["--store", self.store] if self.store and mask_secrets(self.store) == self.store else []


def load_named_recipe(
    tokens: Sequence[str], command: str, made: Callable[[str], Any] = registry.load
) -> tuple[str, Any, list[str]]:
    """Take the first word for the recipe; return the word as typed, the recipe, and the other words.

    Args:
        tokens: what was typed.
        command: its name.
        made: gives what a word means; a `Recipe` unless the command takes more.

    Raises:
        CycloptsError: there is no such word.
        InvalidConfig: no recipe is called so.
    """
    if not tokens or tokens[0].startswith("-"):
        names = ", ".join(listing.name for listing in registry.listings())
        raise CycloptsError(
            msg=f"Name the recipe first: trueloop {command} RECIPE. Built in are {names}.",
            app=App(name=f"trueloop {command}"),
        )
    spec, *words = tokens
    return spec, made(spec), words


def recipe_app(recipe: Recipe, spec: str, act: Callable[[RecipeCommandLine], int]) -> App:
    """Return the command line of `trueloop train RECIPE`.

    Args:
        recipe: whose settings become flags.
        spec: how the user named it.
        act: called with what was typed; returns the exit code.
    """

    def typed(flags: dict[str, Any], overrides: dict[str, Any], settings: Mapping[str, Setting]) -> int:
        return act(RecipeCommandLine(**flags, overrides=overrides, settings=settings))

    return settings_app(f"trueloop train {spec}", recipe, RUN_FLAGS, typed)


def settings_app(
    name: str,
    recipe: Recipe | None,
    flags: Sequence[inspect.Parameter],
    act: Callable[[dict[str, Any], dict[str, Any], Mapping[str, Setting]], int],
) -> App:
    """Return a command line of a recipe's settings plus some flags.

    Args:
        name: of the command, with the recipe.
        recipe: whose settings become flags; None = there are none.
        flags: made by `flag`.
        act: called with the flags by name, the settings that were typed by key, and every setting there is.
    """
    settings = collect_settings(recipe) if recipe is not None else {}

    def command(**given: Any) -> int:  # only what was typed is in `given`
        own = {each.name: given.pop(each.name, each.default) for each in flags}
        return act(own, settings_from_arguments(given), settings)

    parameters = [*flags, *flag_parameters(settings)]
    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = App(
        name=name,
        help=recipe.summary if recipe is not None else "",
        version_flags=[],
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    app.default(command)
    return app
