"""`trueloop tune RECIPE`: measure on this machine which settings train fastest with the same result."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from trueloop.app.output_file import check_writable, write_output
from trueloop.app.training.recipe_settings import Setting, apply_overrides
from trueloop.cli.recipe_help import print_recipe_help
from trueloop.cli.recipe_line import flag, load_named_recipe, settings_app
from trueloop.core.errors import InvalidConfig
from trueloop.core.paths import path_exists

FLAGS = (
    flag("seconds", float, 2.0, "Seconds to measure each attempt."),
    flag("compiled", bool, False, "Try torch.compile as well, which takes about a minute."),
    flag("write", Path | None, None, "Write the fastest settings to this TOML file, for trueloop train --config."),
    flag("config", Path | None, None, "TOML file of settings; flags override the file."),
    flag("json", bool, False, "Print one JSON object instead of the table."),
)


def tune_command(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Measure a recipe with other threads, micro-batches, loader processes and compilation."""
    if print_recipe_help(
        tokens,
        "tune",
        "Measure a recipe with other threads, micro-batches and loader processes, and print the fastest.",
        FLAGS,
        "The trained model stays the same except for rounding; no run folder is written.",
    ):
        return 0
    spec, recipe, options = load_named_recipe(tokens, "tune")

    def run(flags: dict[str, Any], overrides: dict[str, Any], settings: Mapping[str, Setting]) -> int:
        from trueloop.app.training.tuning import tune_recipe
        from trueloop.cli.configfile import read_config
        from trueloop.cli.tune_output import TunePrinter, as_toml, print_json

        path: Path | None = flags["write"]
        if path is not None and path_exists(check_writable(path, "file of settings")):
            raise InvalidConfig(f"{str(path)!r} already exists.", fix="Name a new file.")
        from_file = read_config(flags["config"], settings) if flags["config"] else {}
        configured = {**from_file, **overrides}
        printer = TunePrinter(quiet=flags["json"])
        tuned = tune_recipe(
            apply_overrides(recipe, configured),
            seconds=flags["seconds"],
            compiled=flags["compiled"],
            on_trial=printer.print_trial,
        )
        if path is not None:
            write_output(path, as_toml(configured, tuned.chosen), "file of settings")
        if flags["json"]:
            print_json(tuned)
        else:
            printer.print_best(tuned, spec, path)
        return 0

    return settings_app(f"trueloop tune {spec}", recipe, FLAGS, run)(options, exit_on_error=False, print_error=False)
