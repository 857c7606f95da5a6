"""The command line of one recipe: where to run and how, and every setting with the recipe's own default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App, Group, Parameter

from trueloop.faces.cli.settings import (
    Setting,
    as_flags,
    flag_parameters,
    given_settings,
    keyword,
    override,
    settings_of,
)

if TYPE_CHECKING:
    from trueloop.recipes.recipe import Recipe

LogFormat = Literal["auto", "live", "plain", "json"]

_RUN = Group("run", sort_key=1)


def _run_flag(name: str, kind: Any, default: Any, text: str) -> inspect.Parameter:
    flag = Parameter(name=f"--{name.replace('_', '-')}", help=text, group=_RUN, negative=(), show_default=False)
    return keyword(name, kind, default, flag)


RUN_FLAGS = (
    _run_flag("run_dir", Path | None, None, "Where the run lies; a run there is continued."),
    _run_flag("config", Path | None, None, "TOML file of settings; flags override it."),
    _run_flag("fresh", bool, False, "Start over: in a new folder, or in --run-dir, whose run is removed."),
    _run_flag("allow_change", bool, False, "Continue the run in --run-dir although settings, code or data changed."),
    _run_flag("smoke", bool, False, "A handful of batches only: does it train at all?"),
    _run_flag("log_format", LogFormat, "auto", "auto, live, plain (whole lines), or json (a line for each event)."),
    _run_flag("json", bool, False, "Print one JSON object instead of progress and summary."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What was typed after `trueloop train RECIPE`."""

    run_dir: Path | None
    config: Path | None
    fresh: bool
    allow_change: bool
    smoke: bool
    log_format: LogFormat
    json: bool
    overrides: Mapping[str, Any]
    """Settings given as flags, by key; those not given are absent."""
    settings: Mapping[str, Setting]
    """Every setting there is, by key."""

    def asks_for(self, recipe: Recipe, spec: str, from_file: Mapping[str, Any]) -> Recipe:
        """Return the recipe with the settings of the file and, over them, of this line; it knows how to be asked again.

        Args:
            recipe: with its own defaults.
            spec: how the user named it.
            from_file: settings by key.
        """
        asked = override(recipe, {**from_file, **self.overrides})  # at once: two options may only fit together
        return replace(asked, command=tuple(self.again(spec, None)))

    def again(self, spec: str, run_dir: Path | None) -> list[str]:
        """Return the words that start this run again in ``run_dir``, where it goes on."""
        where = ["--run-dir", str(run_dir)] if run_dir else []
        config = ["--config", str(self.config)] if self.config else []
        return [
            *("trueloop", "train", spec, *where),
            *config,
            *as_flags(self.overrides, self.settings),
        ]


def recipe_app(recipe: Recipe, spec: str, act: Callable[[Line], int]) -> App:
    """Return the command line of a recipe.

    Args:
        recipe: whose settings become flags.
        spec: how the user named it.
        act: called with what was typed; returns the exit code.
    """
    settings = settings_of(recipe)
    parameters = [*RUN_FLAGS, *flag_parameters(settings)]

    def command(**given: Any) -> int:  # only what was typed is in `given`
        run = {flag.name: given.pop(flag.name, flag.default) for flag in RUN_FLAGS}
        return act(Line(**run, overrides=given_settings(given), settings=settings))

    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = App(
        name=f"trueloop train {spec}",
        help=recipe.summary,
        version_flags=[],
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    app.default(command)
    return app
