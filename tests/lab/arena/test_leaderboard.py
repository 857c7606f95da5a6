"""The leaderboard stores the queue and the results in one file, which several processes can use."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from trueloop.core.errors import BoardError
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.leaderboard import (
    MAX_ATTEMPTS,
    MAX_WAITING,
    Leaderboard,
    State,
    Submission,
    default_leaderboard_path,
    open_leaderboard,
    verdict,
)
from trueloop.lab.arena.ranking import standings
from trueloop.lab.arena.trial import Trial, TrialFinding


def test_the_default_path_depends_on_the_system():
    assert default_leaderboard_path({"XDG_DATA_HOME": "/data"}, platform="linux") == Path(
        "/data/trueloop/arena.sqlite3"
    )
    assert default_leaderboard_path({}, platform="linux") == Path.home() / ".local/share/trueloop/arena.sqlite3"
    assert default_leaderboard_path({}, platform="darwin").parts[-5:-2] == (
        Path.home().name,
        "Library",
        "Application Support",
    )
    assert default_leaderboard_path({"LOCALAPPDATA": "/local"}, platform="win32") == Path(
        "/local/trueloop/arena.sqlite3"
    )


def test_a_missing_leaderboard_is_not_created(tmp_path: Path):
    with pytest.raises(BoardError, match="There is no leaderboard"):
        open_leaderboard(tmp_path / "typo.sqlite3")
    assert list(tmp_path.iterdir()) == []


def test_the_default_leaderboard_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "trueloop.lab.arena.leaderboard.default_leaderboard_path", lambda: tmp_path / "a" / "arena.sqlite3"
    )
    assert open_leaderboard(None).count_waiting() == 0


FOUND = TrialFinding(code="GRD007", title="t", severity="error", message="the loss is nan")


@pytest.fixture
def board(tmp_path: Path) -> Leaderboard:
    return Leaderboard(tmp_path / "arena.sqlite3")


def submission(name: str = "ada", *, baseline: bool = False, config: str = "{}") -> Submission:
    return Submission(track="digits", track_fingerprint="m", name=name, config=config, seeds=(3, 4), baseline=baseline)


def reached(seed: int, updates: int = 10) -> Trial:
    return Trial(seed=seed, end="reached", updates=updates, examples=32 * updates, accuracy=0.97, time=1.0, digest="d")


def test_an_entry_goes_from_the_queue_to_the_leaderboard(board: Leaderboard):
    number = board.submit(submission(), 100.0)
    assert (board.entry(number).state, board.entry(number).seeds, board.count_waiting()) == (State.QUEUED, (3, 4), 1)
    claimed = board.claim_next()
    assert claimed is not None
    assert claimed.id == number
    board.set_progress(number, {"seed": 1, "of": 2})
    assert (board.entry(number).state, board.entry(number).progress) == (State.JUDGING, {"seed": 1, "of": 2})
    assert board.judged_entries("digits", "m") == []
    curve = [(1, 32, 0.5), (2, 64, 0.97)]
    state = board.record_result(number, [reached(3), reached(4, 20)], {3: curve}, versions={"torch": "2"}, now=101.0)
    row = board.entry(number)
    assert state == row.state == State.REACHED
    assert (row.is_open, row.ended, row.progress, row.versions) == (False, 101.0, {}, {"torch": "2"})
    assert row.trials == (reached(3), reached(4, 20))
    assert board.curves(number) == {3: curve}
    assert [each.id for each in board.judged_entries("digits", "m")] == [number]
    assert (board.count_waiting(), board.claim_next()) == (0, None)


def test_entries_are_judged_in_order_and_a_baseline_first(board: Leaderboard):
    first, second = board.submit(submission("a"), 1.0), board.submit(submission("b"), 2.0)
    assert (board.count_ahead(first), board.count_ahead(second)) == (0, 1)
    baseline = board.submit(submission("baseline", baseline=True), 3.0)
    assert [board.count_ahead(entry) for entry in (first, second, baseline)] == [1, 2, 0]
    claimed = board.claim_next()
    assert claimed is not None
    assert claimed.id == baseline
    assert [row.name for row in board.open_entries()] == ["baseline", "a", "b"]


def test_an_entry_of_a_killed_judge_is_claimed_again_but_not_endlessly(board: Leaderboard):
    number = board.submit(submission(), 1.0)
    claimed = [board.claim_next() for _ in range(MAX_ATTEMPTS)]
    assert [row and row.id for row in claimed] == [number] * MAX_ATTEMPTS
    assert board.claim_next() is None
    row = board.entry(number)
    assert (row.state, str(MAX_ATTEMPTS) in row.why) == (State.FAILED, True)


def test_a_judging_ended_on_purpose_does_not_count_as_an_attempt(board: Leaderboard):
    number = board.submit(submission(), 1.0)
    for _ in range(3 * MAX_ATTEMPTS):
        assert board.claim_next() is not None
        board.uncount_attempt(number)
    assert board.entry(number).state == State.JUDGING


def test_a_failed_entry_counts_if_its_progress_may_have_been_seen(board: Leaderboard):
    failed = Trial(seed=3, end="failed", why="It raised.")
    for runs in ([reached(3), reached(4)], [failed]):
        board.record_result(board.submit(submission(), 1.0), runs, {}, versions={}, now=2.0)
    (row,) = standings(board.judged_entries("digits", "m"), "updates")
    assert (row.seeds, row.missed, row.rank, row.ids) == (3, 1, None, (1, 2))
    for update in (0, 7):  # the judge is killed each time: before any progress was stored, and after
        number = board.submit(submission(), 3.0)
        for _ in range(MAX_ATTEMPTS):
            board.claim_next()
            board.set_progress(number, {"seed": 0, "of": 2, "done": [], "update": update})
        board.claim_next()
    (row,) = standings(board.judged_entries("digits", "m"), "updates")
    assert (row.seeds, row.missed, row.ids) == (5, 3, (1, 2, 4))


def test_a_failed_baseline_does_not_count(board: Leaderboard):
    failed = Trial(seed=3, end="failed", why="The data could not be read.")
    board.record_result(board.submit(submission("baseline", baseline=True), 1.0), [failed], {}, versions={}, now=2.0)
    assert board.judged_entries("digits", "m") == []
    assert not board.has_baseline("digits", "m")


def test_the_length_of_the_queue_is_limited(board: Leaderboard):
    for _ in range(MAX_WAITING):
        board.submit(submission(), 1.0)
    with pytest.raises(BoardError, match=f"{MAX_WAITING} entries are waiting"):
        board.submit(submission(), 1.0)


def test_a_withdrawn_entry_is_deleted(board: Leaderboard):
    number = board.submit(submission(), 1.0)
    assert board.withdraw(number)
    assert board.claim_next() is None
    with pytest.raises(BoardError, match=f"no entry {number}"):
        board.entry(number)
    assert not board.withdraw(number)


@pytest.mark.parametrize("entry", [7, -1, 2**63, -(2**70)])
def test_an_unknown_entry_number_is_an_error(board: Leaderboard, entry: int):
    with pytest.raises(BoardError, match=f"There is no entry {entry}"):
        board.entry(entry)


def test_an_entry_cannot_be_withdrawn_once_judging_has_started(board: Leaderboard):
    number = board.submit(submission(), 1.0)
    board.claim_next()
    assert not board.withdraw(number)
    board.record_result(number, [reached(3)], {}, versions={}, now=2.0)
    assert not board.withdraw(number)


def test_another_version_of_a_track_has_its_own_leaderboard(board: Leaderboard):
    board.submit(submission(baseline=True), 1.0)
    assert board.has_baseline("digits", "m")
    assert not board.has_baseline("digits", "other")


@pytest.mark.parametrize(
    ("trials", "state", "word"),
    [
        ([reached(1), reached(2)], State.REACHED, ""),
        ([reached(1), Trial(seed=2, end="not reached")], State.NOT_REACHED, "1 of 2 seeds"),
        ([Trial(seed=2, end="stopped", why="It took more than 60 s.")], State.NOT_REACHED, "more than 60 s"),
        ([reached(1), Trial(seed=2, end="found", found=FOUND)], State.DISQUALIFIED, "GRD007: the loss is nan"),
        ([Trial(seed=2, end="failed", why="It ended.")], State.FAILED, "It ended."),
        ([], State.FAILED, "not run"),
    ],
)
def test_the_verdict_follows_from_the_runs(trials, state, word):
    assert verdict(trials)[0] == state
    assert word in verdict(trials)[1]


def test_entries_submitted_by_many_threads_are_all_stored(board: Leaderboard):
    threads = [threading.Thread(target=board.submit, args=(submission(f"n{k}"), 1.0)) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row.name for row in board.open_entries()) == sorted(f"n{k}" for k in range(12))


def test_a_name_with_sql_is_stored_as_text(board: Leaderboard):
    name = "'; DROP TABLE entries; --"
    assert board.entry(board.submit(submission(name), 1.0)).name == name


def test_a_file_that_is_no_leaderboard_is_refused_and_unchanged(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all, but long enough to look at" * 10)
    with pytest.raises(BoardError, match=r"notes\.txt"):
        Leaderboard(path)
    assert path.read_text().startswith("not a database")


def test_the_error_names_a_damaged_row(board: Leaderboard):
    number = board.submit(submission(), 1.0)
    with sqlite3.connect(board.path) as connection:
        connection.execute('UPDATE entries SET trials = \'[{"seed": 1, "end": "won"}]\'')
    connection.close()
    with pytest.raises(BoardError, match=f"Entry {number} of the leaderboard is damaged"):
        board.entry(number)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("name", "\u202enobody\x1b[2J"),
        ("name", b"\xff"),
        ("config", "{"),
        ("config", "[" * 5000),
        ("seeds", "[]"),
        ("seeds", "[2147483649]"),  # more than MAX_SEED
        ("seeds", str(list(range(1000)))),
        ("trials", '{"a":' * 5000),
        ("trials", '[{"seed": 2147483649, "end": "reached"}]'),
        ("versions", "[1]"),
        ("submitted", "yesterday"),
        ("state", "first"),
        ("why", "x" * (2 << 20)),
    ],
)
def test_a_damaged_row_is_refused(board: Leaderboard, column: str, value: object):
    number = board.submit(submission(), 100.0)
    with sqlite3.connect(board.path) as connection:
        connection.execute(f"UPDATE entries SET {column} = ?", (value,))
    connection.close()
    with pytest.raises(BoardError, match="Entry 1 of the leaderboard is damaged") as refused:
        board.entry(number)
    assert len(str(refused.value)) < 400


def test_equal_settings_are_equal_entries_in_any_notation(board: Leaderboard):
    configs = ('{"lr":0.2}', '{ "lr": 2e-1, "batch": 32}')
    numbers = [board.submit(submission(config=config), 100.0) for config in configs]
    first, second = (board.entry(number).config for number in numbers)
    assert first == second == Entry(lr=0.2).as_json()


def test_a_damaged_curve_is_refused(board: Leaderboard):
    number = board.submit(submission(), 100.0)
    with sqlite3.connect(board.path) as connection:
        connection.execute("INSERT INTO curves VALUES (?, 3, '[[1, 1e400, 0.5]]')", (number,))
    connection.close()
    with pytest.raises(BoardError, match="is damaged"):
        board.curves(number)


def test_damaged_rows_are_reported_and_ignored(board: Leaderboard):
    numbers = [board.submit(submission(name), 100.0) for name in ("ada", "eve", "grace")]
    for number in numbers:
        board.claim_next()
        board.record_result(number, [reached(3), reached(4)], {}, versions={}, now=101.0)
    waiting, next_entry = board.submit(submission("mallory"), 102.0), board.submit(submission("dan"), 103.0)
    with sqlite3.connect(board.path) as connection:
        connection.execute("UPDATE entries SET config = '{\"lr\": 1e400}' WHERE id IN (?, ?)", (numbers[1], waiting))
    connection.close()
    assert [row.name for row in board.judged_entries("digits", "m")] == ["ada", "grace"]
    assert [row.name for row in board.open_entries()] == ["dan"]
    assert [(each.id, "is damaged: lr is inf" in each.why) for each in board.damaged_rows("digits")] == [
        (numbers[1], True), (waiting, True),
    ]  # fmt: skip
    assert board.damaged_rows("another") == []
    claimed = board.claim_next()
    assert claimed is not None
    assert claimed.id == next_entry  # the damaged entry is skipped
    assert board.count_waiting() == 1
    assert len(board.damaged_rows("digits")) == 2
