"""`trueloop arena submit`: submit a configuration and wait for its result."""

import sys
from pathlib import Path

from trueloop.app.option_types import Flag
from trueloop.cli.arena import BoardPath
from trueloop.cli.arena_entry_text import as_record, format_outcome, ranking_table
from trueloop.cli.columns import print_line
from trueloop.cli.configfile import read_toml
from trueloop.cli.judging_display import JudgingDisplay
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import safe_repr
from trueloop.lab.arena.entry import parse_entry
from trueloop.lab.arena.judge_client import check_installed
from trueloop.lab.arena.judging import submit_entry
from trueloop.lab.arena.leaderboard import Leaderboard, Row, State, default_leaderboard_path
from trueloop.lab.arena.queue_worker import wait_until_judged
from trueloop.lab.arena.ranking import standings
from trueloop.lab.arena.tracks import TRACKS, find_track
from trueloop.runs.journal_lines import encode_line

NOT_RANKED = 3


def submit_command(
    config: Path, *, track: str | None = None, name: str | None = None, board: BoardPath = None, json: Flag = False
) -> int:
    """Submit a configuration and wait for its result.

    The judge picks new random seeds, trains the configuration on each under the sanitizer, and scores it on held-out
    data. Exit code: 0 if it reached the target on every seed, 3 if it did not or was disqualified.

    Args:
        config: A TOML file: optimizer = "adamw", lr = 0.01 ... `trueloop arena tracks` lists all settings.
        track: Track to compete on; by default the file's `track`.
        name: Name on the leaderboard; by default the file's `name`, or else anonymous.
        board: File of the leaderboard; by default the user's own.
        json: Print one JSON object and nothing else.
    """
    settings = read_toml(config)
    file_track, file_name = settings.pop("track", None), settings.pop("name", "anonymous")
    chosen_track = find_track(_require_text("track", track or file_track))
    entry, author = parse_entry(settings), _require_text("name", name or file_name)
    check_installed(chosen_track)
    leaderboard = Leaderboard(board or default_leaderboard_path())
    entry_id = submit_entry(leaderboard, chosen_track, entry, author)
    with JudgingDisplay(sys.stderr, quiet=json) as display:
        row = wait_until_judged(leaderboard, entry_id, display.show)
    if json:
        print(encode_line(as_record(row)), end="")
    else:
        judged = leaderboard.judged_entries(chosen_track.name, chosen_track.fingerprint)
        print_line(f"Entry {row.id}. {format_outcome(row)}\n")
        print_line(ranking_table(standings(judged, "updates"), "updates"))
    return _exit_code(row)


def _exit_code(row: Row) -> int:
    return {State.REACHED: 0, State.FAILED: 1}.get(row.state, NOT_RANKED)


def _require_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        problem = f"{name} is {safe_repr(value)}." if value is not None else f"The {name} is missing."
        raise InvalidConfig(problem, fix=f"Pass --{name}, or set {name} in the file; tracks: {', '.join(TRACKS)}.")
    return value
