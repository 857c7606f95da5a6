"""`trueloop arena board`: the leaderboard of each track."""

from dataclasses import asdict
from json import loads

from trueloop.app.option_types import Flag
from trueloop.cli.arena import BoardPath
from trueloop.cli.arena_entry_text import ranking_table
from trueloop.cli.columns import print_line
from trueloop.lab.arena.leaderboard import open_leaderboard
from trueloop.lab.arena.ranking import Criterion, Standing, standings
from trueloop.lab.arena.tracks import TRACKS, find_track
from trueloop.runs.journal_lines import encode_line


def board_command(
    *, track: str | None = None, by: Criterion = "updates", board: BoardPath = None, json: Flag = False
) -> None:
    """Show the leaderboard: the median score over all seeds, with the lowest and the highest.

    Entries with the same configuration are ranked as one. Only those that reached the target on every seed get a
    rank. Rows that were changed after they were written are listed as refused.

    Args:
        track: Show only this track; by default all.
        by: Score to rank by. Time is the training time per example, relative to the track's reference loop.
        board: File of the leaderboard; by default the user's own.
        json: Print one JSON object and nothing else.
    """
    tracks = list(TRACKS.values()) if track is None else [find_track(track)]
    leaderboard = open_leaderboard(board)
    rows = {each.name: standings(leaderboard.judged_entries(each.name, each.fingerprint), by) for each in tracks}
    if json:
        boards = {name: [as_record(row) for row in standing] for name, standing in rows.items()}
        record = {"board": str(leaderboard.path), "by": by, "waiting": leaderboard.count_waiting(), "tracks": boards}
        refused = [asdict(row) for each in tracks for row in leaderboard.damaged_rows(each.name)]
        print(encode_line(record | {"refused": refused}), end="")
        return
    for each in tracks:
        print_line(f"{each.name}: {each.title}")
        print_line(f"{ranking_table(rows[each.name], by)}\n" if rows[each.name] else "No entries yet.\n")
        for row in leaderboard.damaged_rows(each.name):
            print_line(f"Refused: {row.why}\n")
    waiting = leaderboard.count_waiting()
    print_line(f"{leaderboard.path}{f': {waiting} waiting to be judged' if waiting else ''}")


def as_record(row: Standing) -> dict[str, object]:
    """Return the `--json` record of a row."""
    return {**asdict(row), "config": loads(row.config)}
