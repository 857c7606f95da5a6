"""Print the result of `trueloop profile`: phases of an update, slowest operations, bottleneck of backward."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trueloop.core.formatting import format_count, format_duration, replace_unprintable
from trueloop.training.profiling.profile import Operation, Profile

MAX_OPERATIONS: Final = 10
BAR_WIDTH: Final = 30  # columns of the longest bar
COLOURS: Final = {"data": "magenta", "forward": "blue", "backward": "yellow", "update": "green", "the rest": "dim"}


def print_json(profile: Profile) -> None:
    """Print one JSON object with every operation."""
    body = {**asdict(profile), "trace": str(profile.trace) if profile.trace else None, "bottleneck": profile.bottleneck}
    print(json.dumps(body, allow_nan=False))


def print_profile(profile: Profile, name: str, console: Console | None = None) -> None:
    """Print the phases, the slowest operations, the bottleneck and the path of the trace."""
    console = console or Console(highlight=False)
    profiled, slowdown = format_duration(profile.profiled_s), profile.profiled_s / profile.update_s
    console.print(
        Text.assemble(
            (replace_unprintable(name), "bold"),
            f" on {profile.device}: {format_duration(profile.update_s)} per update, mean of {profile.updates}; "
            f"the shares below are of the {profiled} that an update takes under the profiler ({slowdown:.1f} times as "
            f"long).",
        )
    )
    console.print("", _phase_table(profile), "")
    console.print(_operation_table(profile, profile.operations, "operation, without nested operations"), "")
    if profile.backward:
        console.print(_operation_table(profile, profile.backward, "node of the backward pass"), "")
        share = _share(profile.backward[0], profile.backward)
        console.print(
            Text.assemble("The bottleneck of the backward pass is ", (profile.bottleneck, "bold"), f": {share} of it.")
        )
    if profile.trace:
        console.print(
            f"trace  {replace_unprintable(str(profile.trace))}  (chrome://tracing, ui.perfetto.dev)", soft_wrap=True
        )


def _phase_table(profile: Profile) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    largest = max(profile.split.values()) or 1.0
    for phase, share in profile.split.items():
        bar = "█" * round(BAR_WIDTH * share / largest)
        table.add_row(phase, f"{100 * share:.1f} %", Text(bar, COLOURS.get(phase, "")))
    return table


def _operation_table(profile: Profile, operations: Sequence[Operation], title: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(title, overflow="fold")
    for name in ("share", "per update", "calls per update"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in operations[:MAX_OPERATIONS]:
        calls = each.calls / profile.updates
        table.add_row(
            replace_unprintable(each.name),
            _share(each, operations),
            format_duration(each.seconds / profile.updates),
            f"{calls:g}",
        )
    if len(operations) > MAX_OPERATIONS:
        table.add_row(Text(f"and {format_count(len(operations) - MAX_OPERATIONS, 'other')}", "dim"))
    return table


def _share(operation: Operation, operations: Sequence[Operation]) -> str:
    total = sum(each.seconds for each in operations)
    return f"{100 * operation.seconds / total:.0f} %" if total else ""
