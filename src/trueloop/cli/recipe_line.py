"""Build the command line of a recipe: flags for the run, and a flag per setting with the recipe's default."""

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


def flag(name: str, kind: Any, default: Any, help_text: str) -> inspect.Parameter:
    """Return a flag that is not a setting of a recipe."""
    flag_name = f"--{name.replace('_', '-')}"
    parameter = Parameter(name=flag_name, help=help_text, group=_RUN, negative=(), show_default=False)
    return keyword_parameter(name, kind, default, parameter)


RUN_FLAGS = (
    flag("run_dir", Path | None, None, "Folder of the run; a run in this folder is resumed."),
    flag("config", Path | None, None, "TOML file of settings; flags override the file."),
    flag("fresh", bool, False, "Start over in a new folder; with --run-dir, remove the run in it first."),
    flag("allow_change", bool, False, "Resume the run in --run-dir even if settings, code or data changed."),
    flag("store", str | None, None, "Copy the run to MLflow, TensorBoard or W&B: sqlite, a URL, tensorboard:DIR."),
    flag("smoke", bool, False, "Only train on a few batches, and check that the loss falls."),
    flag("diagnose", bool, False, "With --smoke: then try changes for a minute, and say which one makes it learn."),
    flag("log_format", LogFormat, "auto", "auto, live, plain (one line per message), or json (one line per event)."),
    flag("json", bool, False, "Print one JSON object instead of progress and summary."),
    flag("processes", Count | None, None, "Number of processes to start on this machine with torchrun; one per GPU."),
    flag("nodes", Count | None, None, "Number of machines that train together; run the same command on each."),
    flag("rendezvous", str | None, None, "host:port of one machine, at which all machines connect."),
    flag("max_restarts", Count | None, None, "Largest number of restarts after a process was lost; 3 by default."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeCommandLine:
    """The parsed command line after `trueloop train RECIPE`."""

    run_dir: Path | None
    config: Path | None
    fresh: bool
    allow_change: bool
    store: str | None
    smoke: bool
    diagnose: bool
    log_format: LogFormat
    json: bool
    processes: int | None
    nodes: int | None
    rendezvous: str | None
    max_restarts: int | None
    overrides: Mapping[str, Any]
    """Values of the settings that were passed as flags, by key."""
    settings: Mapping[str, Setting]
    """All settings of the recipe, by key."""

    def from_arguments(self, recipe: Recipe, spec: str, from_file: Mapping[str, Any]) -> Recipe:
        """Return the recipe with the settings of the file and of this command line, which take precedence.

        The result also has the command that starts it again.

        Args:
            recipe: the recipe with its defaults.
            spec: the recipe as the user named it.
            from_file: settings from the file, by key.
        """
        # All overrides are applied together: two options may be valid only in combination.
        configured = apply_overrides(recipe, {**from_file, **self.overrides})
        return replace(configured, command=tuple(self.resume_command(spec, None)))

    def resume_command(self, spec: str, run_dir: Path | None) -> list[str]:
        """Return the command that resumes this run in ``run_dir``."""
        folder = ["--run-dir", str(run_dir)] if run_dir else []
        config = ["--config", str(self.config)] if self.config else []
        return [
            *("trueloop", "train", spec, *folder),
            *config,
            *self._store_flags(),
            *self._process_flags(),
            *format_flags(self.overrides, self.settings),
        ]

    def _process_flags(self) -> list[str]:
        values = {
            "--processes": self.processes,
            "--nodes": self.nodes,
            "--rendezvous": self.rendezvous,
            "--max-restarts": self.max_restarts,
        }
        return [word for flag, value in values.items() if value is not None for word in (flag, str(value))]

    def _store_flags(self) -> list[str]:
        """Return the flag of the store; [] if its address contains a password, which must not reach the journal."""
        from trueloop.runs.tracking.target import mask_secrets

        return ["--store", self.store] if self.store and mask_secrets(self.store) == self.store else []


def load_named_recipe(
    tokens: Sequence[str], command: str, load: Callable[[str], Any] = registry.load
) -> tuple[str, Any, list[str]]:
    """Load the recipe that the first word names; return that word, the recipe, and the other words.

    Args:
        tokens: arguments after the command.
        command: name of the command.
        load: function that loads what a word names; by default a `Recipe`.

    Raises:
        CycloptsError: the first word is missing.
        InvalidConfig: there is no recipe of this name.
    """
    if not tokens or tokens[0].startswith("-"):
        names = ", ".join(listing.name for listing in registry.listings())
        raise CycloptsError(
            msg=f"Name the recipe first: trueloop {command} RECIPE. Built in are {names}.",
            app=App(name=f"trueloop {command}"),
        )
    spec, *remaining = tokens
    return spec, load(spec), remaining


def recipe_app(recipe: Recipe, spec: str, run: Callable[[RecipeCommandLine], int]) -> App:
    """Return the command line of `trueloop train RECIPE`.

    Args:
        recipe: the recipe, whose settings become flags.
        spec: the recipe as the user named it.
        run: function that receives the parsed command line and returns the exit code.
    """

    def run_parsed(flags: dict[str, Any], overrides: dict[str, Any], settings: Mapping[str, Setting]) -> int:
        return run(RecipeCommandLine(**flags, overrides=overrides, settings=settings))

    return settings_app(f"trueloop train {spec}", recipe, RUN_FLAGS, run_parsed)


def settings_app(
    name: str,
    recipe: Recipe | None,
    flags: Sequence[inspect.Parameter],
    run: Callable[[dict[str, Any], dict[str, Any], Mapping[str, Setting]], int],
) -> App:
    """Return a command line with a recipe's settings and some flags.

    Args:
        name: name of the command with the recipe.
        recipe: the recipe, whose settings become flags; None = only ``flags``.
        flags: flags from `flag`.
        run: function that receives the values of the flags by name, the values of the settings that were passed by key,
            and all settings by key, and returns the exit code.
    """
    settings = collect_settings(recipe) if recipe is not None else {}

    def command(**arguments: Any) -> int:  # cyclopts passes only the arguments that were typed
        flag_values = {each.name: arguments.pop(each.name, each.default) for each in flags}
        return run(flag_values, settings_from_arguments(arguments), settings)

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
