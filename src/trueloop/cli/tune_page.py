"""Prints the results of `trueloop tune`, and writes the settings file."""

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


class TunePage:
    """Prints each trial when it ends, and then the best settings.

    Args:
        quiet: True to print nothing.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(highlight=False, quiet=quiet)
        self._first: float | None = None

    def trial_done(self, trial: Trial) -> None:
        """Print the line of one trial."""
        what = f"{trial.setting} {_word(trial.value)}" if trial.setting else "unchanged"
        if trial.throughput is None:
            self._console.print(Text.assemble(f"{what:18}", (replace_unprintable(trial.problem), "yellow")))
            return
        self._first = self._first or trial.throughput.examples_per_s
        ratio = trial.throughput.examples_per_s / self._first
        self._console.print(
            f"{what:18}{trial.throughput.examples_per_s:>12,.0f} examples/s  {ratio:5.2f} x  "
            f"{format_duration(trial.throughput.update_s)} per update, waiting {100 * trial.throughput.waiting:.0f} %",
            soft_wrap=True,
        )

    def end(self, tuned: TuningResult, spec: str, path: Path | None) -> None:
        """Print the best settings, and the command that uses them."""
        for setting, reason in tuned.not_tried.items():
            self._console.print(Text(f"{setting} stays unchanged: {reason}.", "dim"))
        if tuned.largest_micro_batch is not None and "micro_batch" not in tuned.not_tried:
            self._console.print(
                f"The largest tried micro-batch that fits into memory is {tuned.largest_micro_batch}.", style="dim"
            )
        if not tuned.chosen:
            self._console.print("\nNo other setting is measurably faster: keep the settings.")
            return
        flags = [word for name, value in tuned.chosen.items() for word in _flag(name, value)]
        words = ["--config", str(path)] if path else flags
        self._console.print(f"\n{_gain(tuned)} in a second measurement; except for rounding, the run is the same:")
        self._console.print(Text(shlex.join(["trueloop", "train", spec, *words]), "bold"), soft_wrap=True)


def _gain(tuned: TuningResult) -> str:
    if tuned.before is None:
        return f"{tuned.after.examples_per_s:,.0f} examples/s; the original settings did not fit into memory"
    return f"{tuned.after.examples_per_s / tuned.before.examples_per_s:.2f} times as fast"


def print_json(tuned: TuningResult) -> None:
    """Print one JSON object with every trial."""
    print(json.dumps(asdict(tuned), allow_nan=False))


def as_toml(typed: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """Format settings as TOML: the settings that the user passed, with the best values instead of theirs."""
    lines = [f"{name} = {_toml(value)}" for name, value in {**typed, **chosen}.items() if value is not None]
    return "# Written by trueloop tune: measured on this machine, for this recipe.\n" + "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)  # numbers, strings and booleans are written as in JSON


def _flag(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, _word(value)]


def _word(value: Any) -> str:
    return "" if value is True else str(value)
