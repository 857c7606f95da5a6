"""`trueloop train RECIPE`: a recipe's settings as flags, one run, and a summary."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from trueloop.faces.cli.recipe_help import print_overview
from trueloop.faces.cli.recipe_line import RUN_FLAGS, Line, named_recipe, recipe_app
from trueloop.ground.errors import InvalidConfig

if TYPE_CHECKING:
    from trueloop.faces.cli.display import Mode
    from trueloop.recipes.recipe import Recipe


def train_command(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Train the recipe that the first word names; the other words are its settings.

    Returns:
        The exit code: 0, or 130 (Ctrl-C) and 143 (SIGTERM) where the run was stopped and is saved.
    """
    if tokens and tokens[0] in ("--help", "-h"):
        print_overview(
            "train",
            "Train a recipe and keep everything that belongs to the run in one folder.",
            RUN_FLAGS,
            "Without --run-dir, the same run goes on where it was cut off.",
            "Exit code: 0 done, 1 error, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM (run saved).",
        )
        return 0
    spec, recipe, words = named_recipe(tokens, "train")
    app = recipe_app(recipe, spec, lambda line: _train(recipe, spec, line))
    return app(words, exit_on_error=False, print_error=False)


def _train(recipe: Recipe, spec: str, line: Line) -> int:
    from trueloop.engines.train.interrupt import EXIT_CODES
    from trueloop.faces.cli.configfile import read_config
    from trueloop.faces.cli.display import Display
    from trueloop.faces.cli.json_lines import JsonLines
    from trueloop.faces.cli.summary import print_json, print_summary
    from trueloop.faces.run import run_recipe

    from_file = read_config(line.config, line.settings) if line.config else {}
    logs = line.log_format == "json" and not line.json
    recipe = line.asks_for(recipe, spec, from_file)
    display = JsonLines() if logs else Display(_mode(line))
    flags = {"fresh": line.fresh, "smoke": line.smoke, "allow_change": line.allow_change}
    store = line.store or os.environ.get("TRUELOOP_STORE") or None
    summary = run_recipe(recipe, run_dir=_folder(recipe.name, line), reporters=[display], store=store, **flags)
    again = line.again(spec, summary.run_dir)
    if line.json or logs:
        print_json(summary, again=again, event="summary" if logs else None)
    else:
        print_summary(summary, recipe, again=again)
    return EXIT_CODES.get(summary.reason, 0)


def _mode(line: Line) -> Mode | None:
    if line.json:
        return "quiet"
    return cast("Mode", line.log_format) if line.log_format in ("live", "plain") else None


def _folder(name: str, line: Line) -> Path | Callable[[Any], Path]:
    """Return the folder that was typed, or what chooses one."""
    from trueloop.faces.run_choice import RunChoice

    if line.run_dir:
        return line.run_dir
    if line.allow_change:
        raise InvalidConfig("--allow-change needs --run-dir.", fix="Say which run is to go on changed.")
    silent = line.json or line.log_format == "json"
    return RunChoice(name, lambda sentence: None if silent else print(sentence), fresh=line.fresh)
