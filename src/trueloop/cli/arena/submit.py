"""`trueloop arena submit`: submit a configuration and wait for its result."""

import sys
import tomllib
from pathlib import Path
from typing import Any

from trueloop.app.option_types import Flag
from trueloop.cli.arena import BoardPath
from trueloop.cli.arena_entry_text import as_record, format_outcome, ranking_table
from trueloop.cli.columns import print_line
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

    The judge draws fresh seeds, runs the configuration on each under the sanitizer, and judges it by held-out
    data. Exit code: 0 where it reached the target on every seed, 3 where it did not or was disqualified.

    Args:
        config: A TOML file: optimizer = "adamw", lr = 0.01 ... `trueloop arena tracks` lists what may be set.
        track: Which track; else as the file's `track` says.
        name: Whose entry it is; else as the file's `name` says.
        board: The board's file; by default the user's own.
        json: Print one JSON object and nothing else.
    """
    given = _read(config)
    words = given.pop("track", None), given.pop("name", "anonymous")
    on = find_track(_text("track", track or words[0]))
    entry, who = parse_entry(given), _text("name", name or words[1])
    check_installed(on)
    where = Leaderboard(board or default_leaderboard_path())
    number = submit_entry(where, on, entry, who)
    with JudgingDisplay(sys.stderr, quiet=json) as display:
        row = wait_until_judged(where, number, display.show)
    if json:
        print(encode_line(as_record(row)), end="")
    else:
        print_line(f"Entry {row.id}. {format_outcome(row)}\n")
        print_line(ranking_table(standings(where.judged_entries(on.name, on.fingerprint), "updates"), "updates"))
    return _code(row)


def _code(row: Row) -> int:
    return {State.REACHED: 0, State.FAILED: 1}.get(row.state, NOT_RANKED)


def _read(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"Cannot read {str(config)!r}: {error.strerror}.", fix="Name a TOML file.") from error
    except (ValueError, RecursionError) as error:  # what is no TOML, no UTF-8, too big a number or too deeply nested
        raise InvalidConfig(f"{config} is not TOML: {error}.", fix='Write settings: optimizer = "adam".') from error


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        said = f"{name} is {safe_repr(value)}." if value is not None else f"No {name} is named."
        raise InvalidConfig(said, fix=f"--{name}, or {name} = ... in the file; tracks are {', '.join(TRACKS)}.")
    return value
