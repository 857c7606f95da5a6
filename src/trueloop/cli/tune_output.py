"""Print the results of `trueloop tune`, and format the settings file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from trueloop.app.training.tuning import Trial, TuningResult
from trueloop.core.formatting import format_duration, replace_unprintable


class TunePrinter:
    """Prints each trial when it ends, and then the best settings.

    Args:
        quiet: True to print nothing.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(highlight=False, quiet=quiet)
        self._baseline: float | None = None

    def print_trial(self, trial: Trial) -> None:
        """Print the line of one trial."""
        label = f"{trial.setting} {_format_value(trial.value)}" if trial.setting else "unchanged"
        throughput = trial.throughput
        if throughput is None:
            self._console.print(Text.assemble(f"{label:18}", (replace_unprintable(trial.problem), "yellow")))
            return
        self._baseline = self._baseline or throughput.examples_per_s
        ratio, waiting = throughput.examples_per_s / self._baseline, f"{100 * throughput.waiting:.0f} %"
        self._console.print(
            f"{label:18}{throughput.examples_per_s:>12,.0f} examples/s  {ratio:5.2f} x  "
            f"{format_duration(throughput.update_s)} per update, {waiting} of it waiting for data",
            soft_wrap=True,
        )

    def print_best(self, tuned: TuningResult, recipe: str, path: Path | None) -> None:
        """Print the command that trains with the best settings.

        Args:
            tuned: the result.
            recipe: name of the recipe, as in `trueloop train RECIPE`.
            path: the TOML file with the best settings; None = pass them as flags.
        """
        for setting, reason in tuned.not_tried.items():
            self._console.print(Text(f"{setting} stays unchanged: {reason}.", "dim"))
        if tuned.largest_micro_batch is not None and "micro_batch" not in tuned.not_tried:
            self._console.print(
                f"The largest tried micro-batch that fits into memory is {tuned.largest_micro_batch}.", style="dim"
            )
        if not tuned.chosen:
            self._console.print("\nNo other setting is measurably faster: keep the settings.")
            return
        flags = [part for name, value in tuned.chosen.items() for part in _flag(name, value)]
        arguments = ["--config", str(path)] if path else flags
        self._console.print(
            f"\n{_format_gain(tuned)}, confirmed by a second measurement. The trained model stays the same except for "
            "rounding. Use:",
            soft_wrap=True,
        )
        self._console.print(Text(shlex.join(["trueloop", "train", recipe, *arguments]), "bold"), soft_wrap=True)


def _format_gain(tuned: TuningResult) -> str:
    if tuned.before is None:
        return f"{tuned.after.examples_per_s:,.0f} examples/s (the original settings did not fit into memory)"
    return f"{tuned.after.examples_per_s / tuned.before.examples_per_s:.2f} times as fast"


def print_json(tuned: TuningResult) -> None:
    """Print one JSON object with every trial."""
    print(json.dumps(asdict(tuned), allow_nan=False))


def as_toml(passed: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """Format as TOML the settings that the user passed, replaced and completed by the best settings."""
    lines = [f"{name} = {_toml(value)}" for name, value in {**passed, **chosen}.items() if value is not None]
    return "# Written by trueloop tune: measured on this machine, for this recipe.\n" + "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)  # numbers, strings and booleans are written as in JSON


def _flag(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, _format_value(value)]


def _format_value(value: Any) -> str:
    return "" if value is True else str(value)
