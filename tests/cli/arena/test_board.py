import sqlite3

from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.judging import submit_entry
from trueloop.lab.arena.tracks import DIGITS


def test_entries_are_ranked_by_their_median(call, call_json, config):
    for lr, name in ((0.02, "ada"), (0.03, "grace"), (9.0, "boom"), (0.0001, "slow")):
        call("submit", config(f'track = "digits"\nname = "{name}"\nlr = {lr}\n'))
    code, record = call_json("board", "--track", "digits")
    assert code == 0
    rows = record["tracks"]["digits"]
    assert [(row["rank"], row["name"]) for row in rows] == [
        (1, "ada"), (2, "grace"), (3, "baseline"), (None, "slow"), (None, "boom"),
    ]  # fmt: skip
    assert (rows[0]["updates"]["median"], rows[0]["seeds"], rows[0]["config"]["lr"]) == (20, 5, 0.02)
    assert (rows[3]["missed"], rows[4]["disqualified"]) == (2, "GRD007")
    code, out, _ = call("board")
    assert "failed on 2 of 2 seeds" in out
    assert "disqualified, GRD007" in out
    assert "20 (20 to 20)" in out
    assert out.count("No entries yet.") == 2


def test_each_leaderboard_starts_with_the_score_it_ranks_by(call, config):
    call("submit", config('track = "digits"\nlr = 0.02\n'))
    heads = [
        call("board", "--track", "digits", "--by", by)[1].splitlines()[1].split() for by in ("updates", "examples")
    ]
    assert [head[1] for head in heads] == ["updates", "examples"]


def test_a_manipulated_row_is_refused_and_the_others_are_shown(call, call_json, board_path, config):
    call("submit", config('track = "digits"\nlr = 0.02\n'))
    with sqlite3.connect(board_path) as base:
        base.execute("UPDATE entries SET trials = '[{}]' WHERE NOT baseline")
    base.close()
    code, record = call_json("board", "--track", "digits")
    assert code == 0
    assert [row["name"] for row in record["tracks"]["digits"]] == ["baseline"]
    assert "is damaged" in record["refused"][0]["why"]
    assert "Refused: Entry" in call("board", "--track", "digits")[1]


def test_names_cannot_control_the_terminal(call, board_path, config):
    call("submit", config('track = "digits"\nlr = 0.02\n'))
    with sqlite3.connect(board_path) as base:
        base.execute("UPDATE entries SET name = 'a' || char(27) || '[31mred'")
    base.close()
    assert "\x1b" not in call("board")[1]


def test_waiting_entries_are_counted(call, board_path):
    from trueloop.lab.arena.leaderboard import Leaderboard

    submit_entry(Leaderboard(board_path), DIGITS, Entry(), "ada")
    assert call("board")[1].splitlines()[-1].endswith(": 2 waiting to be judged")


def test_a_missing_leaderboard_is_not_created(call, board_path):
    code, out, err = call("board")
    assert (code, out) == (1, "")
    assert "There is no leaderboard" in err
    assert not board_path.exists()
