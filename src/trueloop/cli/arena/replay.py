"""`trueloop arena replay`: run an entry of the leaderboard again."""

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
    """Run every seed of an entry again, and compare the number of updates and, bit by bit, the weights.

    Exit code: 0 if they are the same, else 1. Another machine or torch version may legitimately give other weights;
    with the same versions, an entry with another result is no longer ranked.

    Args:
        entry: Number of the entry on the leaderboard.
        board: File of the leaderboard; by default the user's own.
        json: Print one JSON object and nothing else.
    """
    leaderboard = open_leaderboard(board)
    row = leaderboard.entry(entry)
    check_installed(find_track(row.track))

    def print_seed(seed: SeedReplay) -> None:
        if not json:
            print_line(format_seed(seed))

    with JudgeClient() as judge:
        replayed = replay_entry(row, judge, print_seed)
    replayed.record(leaderboard, row.id)
    if json:
        seeds = [{**asdict(seed), "same": seed.same} for seed in replayed.seeds]
        record = {"entry": row.id, "same": replayed.same, "seeds": seeds, "differing": replayed.differing}
        print(encode_line(record), end="")
        return 0 if replayed.same else 1
    for name, (stored, current) in replayed.differing.items():
        print_line(f"{name} was {stored} originally and is {current} now.")
    print_line("The weights are the same, bit by bit." if replayed.same else "The original result was different.")
    return 0 if replayed.same else 1


def format_seed(seed: SeedReplay) -> str:
    """Return a line that compares the two runs of a seed."""
    stored, repeated = seed.stored, seed.repeated
    if seed.same:
        return f"seed {stored.seed}: {stored.end} at update {stored.updates} again, weights {stored.digest or '-'}"
    return (
        f"seed {stored.seed}: {stored.end} at update {stored.updates} with weights {stored.digest or '-'} originally, "
        f"{repeated.end} at update {repeated.updates} with weights {repeated.digest or '-'} now"
    )
