"""What `trueloop tune` prints, and the settings file it writes."""

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
    """Tells each attempt as it ends, and then what is best.

    Args:
        quiet: print nothing.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(highlight=False, quiet=quiet)
        self._first: float | None = None

    def trial_done(self, trial: Trial) -> None:
        """Print a line."""
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
        """Print what is best, and the command that uses it."""
        for setting, why in tuned.not_tried.items():
            self._console.print(Text(f"{setting} stays unchanged: {why}.", "dim"))
        if tuned.largest_micro_batch is not None and "micro_batch" not in tuned.not_tried:
            self._console.print(
                f"The largest micro-batch that fits, of those tried, is {tuned.largest_micro_batch}.", style="dim"
            )
        if not tuned.chosen:
            self._console.print("\nNothing is faster by more than the noise: keep the settings.")
            return
        flags = [word for name, value in tuned.chosen.items() for word in _flag(name, value)]
        words = ["--config", str(path)] if path else flags
        self._console.print(f"\n{_gain(tuned)}, measured once more; the same run but for rounding:")
        self._console.print(Text(shlex.join(["trueloop", "train", spec, *words]), "bold"), soft_wrap=True)


def _gain(tuned: TuningResult) -> str:
    if tuned.before is None:
        return f"{tuned.after.examples_per_s:,.0f} examples/s where nothing could be trained"
    return f"{tuned.after.examples_per_s / tuned.before.examples_per_s:.2f} times as fast"


def print_json(tuned: TuningResult) -> None:
    """Print one JSON object with every attempt."""
    print(json.dumps(asdict(tuned), allow_nan=False))


def as_toml(given: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """Write settings as TOML: those that were typed, and over them those that are best."""
    lines = [f"{name} = {_toml(value)}" for name, value in {**given, **chosen}.items() if value is not None]
    return "# Written by trueloop tune: measured on this machine, for this recipe.\n" + "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)  # numbers, words and truth are the same in both


def _flag(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, _word(value)]


def _word(value: Any) -> str:
    return "" if value is True else str(value)
