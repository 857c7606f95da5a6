"""`trueloop profile RECIPE`: measure where the time of an update is spent."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from trueloop.app.training.recipe_settings import Setting, apply_overrides
from trueloop.cli.recipe_help import print_recipe_help
from trueloop.cli.recipe_line import flag, load_named_recipe, settings_app

FLAGS = (
    flag("updates", int, 20, "Number of updates to measure, after a few warm-up updates."),
    flag("trace", Path | None, None, "Write a trace for Chrome or Perfetto to this .json or .json.gz file."),
    flag("config", Path | None, None, "TOML file of settings; flags override the file."),
    flag("json", bool, False, "Print one JSON object instead of the page."),
)


def profile_command(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Train a recipe for a few updates, and print where their time was spent."""
    if print_recipe_help(
        tokens,
        "profile",
        "Train a recipe for a few updates, and print where their time was spent.",
        FLAGS,
        "No run folder is written.",
    ):
        return 0
    spec, recipe, options = load_named_recipe(tokens, "profile")

    def run(flags: dict[str, Any], overrides: dict[str, Any], settings: Mapping[str, Setting]) -> int:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would log to standard error
        from trueloop.app.training.profiling import profile_recipe
        from trueloop.cli.configfile import read_config
        from trueloop.cli.profile_output import print_json, print_profile

        from_file = read_config(flags["config"], settings) if flags["config"] else {}
        configured = apply_overrides(recipe, {**from_file, **overrides})
        profile = profile_recipe(configured, updates=flags["updates"], trace=flags["trace"])
        if flags["json"]:
            print_json(profile)
        else:
            print_profile(profile, configured.name)
        return 0

    return settings_app(f"trueloop profile {spec}", recipe, FLAGS, run)(options, exit_on_error=False, print_error=False)
