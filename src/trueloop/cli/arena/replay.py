"""`trueloop arena replay`: run an entry again from what the board says of it."""

from dataclasses import asdict

from trueloop.app.option_types import Count, Flag
from trueloop.cli.arena import BoardPath
from trueloop.cli.columns import print_line
from trueloop.lab.arena.judge_client import JudgeClient, check_installed
from trueloop.lab.arena.judging import SeedReplay, replay_entry
from trueloop.lab.arena.leaderboard import open_leaderboard
from trueloop.lab.arena.tracks import find_track
from trueloop.runs.journal_lines import encode_line


def replay_command(entry: Count, *, board: BoardPath = None, json: Flag = False) -> int:
    """Run every seed of an entry again: does it come to the same updates and, bit by bit, to the same weights?

    Exit code: 0 where it does, else 1. On another machine or version of torch the bits may differ honestly.

    Args:
        entry: Its number on the board.
        board: The board's file; by default the user's own.
        json: Print one JSON object and nothing else.
    """
    row = open_leaderboard(board).entry(entry)
    check_installed(find_track(row.track))

    def print_seed(seed: SeedReplay) -> None:
        if not json:
            print_line(line(seed))

    with JudgeClient() as judge:
        again = replay_entry(row, judge, print_seed)
    if json:
        seeds = [{**asdict(seed), "same": seed.same} for seed in again.seeds]
        print(encode_line({"entry": row.id, "same": again.same, "seeds": seeds, "differing": again.differing}), end="")
        return 0 if again.same else 1
    for name, (then, now) in again.differing.items():
        print_line(f"{name} was {then} then and is {now} now.")
    print_line("The same, bit by bit." if again.same else "Not the same as then.")
    return 0 if again.same else 1


def line(seed: SeedReplay) -> str:
    """Say how one seed compares."""
    then, now = seed.then, seed.now
    if seed.same:
        return f"seed {then.seed}: {then.end} at update {then.updates} again, weights {then.digest or '-'}"
    return (
        f"seed {then.seed}: {then.end} at update {then.updates} with weights {then.digest or '-'} then, "
        f"{now.end} at update {now.updates} with weights {now.digest or '-'} now"
    )
