"""`trueloop arena show`: one entry with the results of its seeds, or its script."""

import json as json_format
from datetime import UTC, datetime

from trueloop.app.option_types import Count, Flag
from trueloop.cli.arena import BoardPath
from trueloop.cli.arena_entry_text import as_record, format_entry_settings, format_outcome, seeds_table
from trueloop.cli.columns import align_columns, print_line
from trueloop.core.errors import BoardError
from trueloop.lab.arena.entry import parse_entry
from trueloop.lab.arena.leaderboard import open_leaderboard
from trueloop.lab.arena.script import write_script
from trueloop.lab.arena.tracks import find_track
from trueloop.runs.journal_lines import encode_line


def show_command(entry: Count, *, script: Flag = False, board: BoardPath = None, json: Flag = False) -> None:
    """Show everything about one entry.

    Args:
        entry: Number of the entry on the leaderboard.
        script: Print the script that the judge ran on the first seed, and nothing else.
        board: File of the leaderboard; by default the user's own.
        json: Print one JSON object and nothing else.
    """
    row = open_leaderboard(board).entry(entry)
    config = parse_entry(json_format.loads(row.config))
    if script:
        track = find_track(row.track)
        if track.fingerprint != row.track_fingerprint:
            raise BoardError(f"The track {row.track!r} has changed since entry {row.id} was submitted.")
        print(write_script(track, config, row.seeds[0]), end="")
        return
    if json:
        print(encode_line(as_record(row)), end="")
        return
    submitted = datetime.fromtimestamp(row.submitted, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    rows = [
        ["track", row.track],
        ["name", row.name],
        ["submitted", submitted],
        ["settings", format_entry_settings(config)],
        ["versions", ", ".join(f"{name} {version}" for name, version in row.versions.items())],
    ]
    print_line(f"Entry {row.id}. {format_outcome(row)}\n")
    print_line("\n".join(align_columns(["", ""], rows)))
    if row.trials:
        print_line(f"\n{seeds_table(row)}")
