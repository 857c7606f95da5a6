"""`trueloop arena board`: who is ahead."""

from dataclasses import asdict
from json import loads

from trueloop.app.option_types import Flag
from trueloop.cli.arena import BoardPath
from trueloop.cli.arena_entry_text import ranking_table
from trueloop.cli.columns import print_line
from trueloop.lab.arena.leaderboard import open_leaderboard
from trueloop.lab.arena.ranking import By, Standing, standings
from trueloop.lab.arena.tracks import TRACKS, find_track
from trueloop.runs.journal_lines import encode_line


def board_command(*, track: str | None = None, by: By = "updates", board: BoardPath = None, json: Flag = False) -> None:
    """Show who is ahead: the median over all seeds, with the lowest and the highest.

    Entries of one configuration count together. Ranked is who reached the target on every seed. Rows that are not as
    they were written are refused: they are named, and count for nothing.

    Args:
        track: One track only.
        by: What to rank by. Time is training time per example, in that of the track's reference loop.
        board: The board's file; by default the user's own.
        json: Print one JSON object and nothing else.
    """
    tracks = list(TRACKS.values()) if track is None else [find_track(track)]
    base = open_leaderboard(board)
    rows = {each.name: standings(base.judged_entries(each.name, each.fingerprint), by) for each in tracks}
    if json:
        boards = {name: [as_record(row) for row in found] for name, found in rows.items()}
        record = {"board": str(base.path), "by": by, "waiting": base.count_waiting(), "tracks": boards}
        print(
            encode_line(
                record | {"refused": [asdict(each) for track in tracks for each in base.damaged_rows(track.name)]}
            ),
            end="",
        )
        return
    for each in tracks:
        print_line(f"{each.name}: {each.title}")
        print_line(f"{ranking_table(rows[each.name], by)}\n" if rows[each.name] else "No entries yet.\n")
        for refused in base.damaged_rows(each.name):
            print_line(f"Refused: {refused.why}\n")
    waiting = base.count_waiting()
    print_line(f"{base.path}{f': {waiting} not judged yet' if waiting else ''}")


def as_record(row: Standing) -> dict[str, object]:
    """Return what `--json` tells of a row."""
    return {**asdict(row), "config": loads(row.config)}
