"""`trueloop train RECIPE`: a recipe's settings as flags, one run, and a summary."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from trueloop.app.diagnosis.diagnose_command import diagnose_recipe
from trueloop.cli.outcomes import report_outcome
from trueloop.cli.recipe_help import print_recipe_help
from trueloop.cli.recipe_line import RUN_FLAGS, RecipeCommandLine, load_named_recipe, recipe_app
from trueloop.core.errors import InvalidConfig

if TYPE_CHECKING:
    from trueloop.recipes.recipe import Recipe


def train_command(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Train the recipe that the first word names; the other words are options. Return the exit code."""
    if print_recipe_help(
        tokens,
        "train",
        "Train a recipe, and save the run in one folder.",
        RUN_FLAGS,
        "Without --run-dir, an interrupted run with the same settings is resumed.",
        "Exit code: 0 done, 1 error, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM (run saved).",
    ):
        return 0

    def train() -> int:
        if "--diagnose" in tokens:  # before PyTorch is imported
            return diagnose_recipe(tokens)
        spec, recipe, options = load_named_recipe(tokens, "train")
        app = recipe_app(recipe, spec, lambda line: _train(recipe, line, tokens))
        return app(options, exit_on_error=False, print_error=False)

    return report_outcome(train)


def _train(recipe: Recipe, line: RecipeCommandLine, tokens: Sequence[str]) -> int:
    from trueloop.cli.configfile import read_config
    from trueloop.cli.torchrun import launch_from_options, run_launch
    from trueloop.training.distributed.launcher_env import was_restarted

    from_file = read_config(line.config, line.settings) if line.config else {}
    recipe = line.from_arguments(recipe, tokens[0], from_file)
    if launch := launch_from_options(line.processes, line.nodes, line.rendezvous, line.max_restarts):
        silent = line.json or line.log_format == "json"
        return run_launch(launch, recipe.train, ["train", *tokens], silent=silent)
    return _run(recipe, replace(line, fresh=line.fresh and not was_restarted()), tokens[0])  # a restart resumes the run


def _run(recipe: Recipe, line: RecipeCommandLine, spec: str) -> int:
    from trueloop.app.training.run_recipe import run_recipe
    from trueloop.cli.display import Display
    from trueloop.cli.json_lines import JsonLines
    from trueloop.cli.summary import print_json, print_summary
    from trueloop.training.distributed.launcher_env import read_launch_info
    from trueloop.training.interrupt import EXIT_CODES

    launch = read_launch_info()
    is_first = launch is None or launch.rank == 0  # only one of several processes prints
    json_lines = line.log_format == "json" and not line.json and is_first
    mode = "quiet" if line.json or not is_first else line.log_format if line.log_format in ("live", "plain") else None
    display = JsonLines() if json_lines else Display(mode)
    flags = {"fresh": line.fresh, "smoke": line.smoke, "allow_change": line.allow_change}
    store = line.store or os.environ.get("TRUELOOP_STORE") or None
    folder = _choose_folder(recipe.name, line, silent=json_lines or mode == "quiet")
    summary = run_recipe(recipe, run_dir=folder, reporters=[display], store=store, **flags)
    if is_first and (line.json or json_lines):
        print_json(summary, again=line.resume_command(spec, summary.run_dir), event="summary" if json_lines else None)
    elif is_first:
        print_summary(summary, recipe, again=line.resume_command(spec, summary.run_dir))
    return EXIT_CODES.get(summary.reason, 0)


def _choose_folder(name: str, line: RecipeCommandLine, *, silent: bool) -> Path | Callable[[Any], Path]:
    from trueloop.app.training.run_target import RunFolderChooser

    if line.run_dir:
        return line.run_dir
    if line.allow_change:
        raise InvalidConfig("--allow-change needs --run-dir.", fix="Name the run to resume: --run-dir RUN.")
    return RunFolderChooser(name, lambda sentence: None if silent else print(sentence), fresh=line.fresh)
