import sqlite3

from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.judging import submit_entry
from trueloop.lab.arena.tracks import DIGITS


def test_who_is_ahead(ask, ask_json, config):
    for lr, name in ((0.02, "ada"), (0.03, "grace"), (9.0, "boom"), (0.0001, "slow")):
        ask("submit", config(f'track = "digits"\nname = "{name}"\nlr = {lr}\n'))
    code, told = ask_json("board", "--track", "digits")
    assert code == 0
    rows = told["tracks"]["digits"]
    assert [(row["rank"], row["name"]) for row in rows] == [
        (1, "ada"), (2, "grace"), (3, "baseline"), (None, "slow"), (None, "boom"),
    ]  # fmt: skip
    assert (rows[0]["updates"]["median"], rows[0]["seeds"], rows[0]["config"]["lr"]) == (20, 5, 0.02)
    assert (rows[3]["missed"], rows[4]["disqualified"]) == (2, "GRD007")
    code, out, _ = ask("board")
    assert "failed on 2 of 2 seeds" in out
    assert "disqualified, GRD007" in out
    assert "20 (20 to 20)" in out
    assert out.count("No entries yet.") == 2


def test_each_board_leads_with_its_own_number(ask, config):
    ask("submit", config('track = "digits"\nlr = 0.02\n'))
    heads = [ask("board", "--track", "digits", "--by", by)[1].splitlines()[1].split() for by in ("updates", "examples")]
    assert [head[1] for head in heads] == ["updates", "examples"]


def test_a_row_that_was_written_by_hand_is_refused_and_the_others_are_shown(ask, ask_json, board_path, config):
    ask("submit", config('track = "digits"\nlr = 0.02\n'))
    with sqlite3.connect(board_path) as base:
        base.execute("UPDATE entries SET trials = '[{}]' WHERE NOT baseline")
    base.close()
    code, told = ask_json("board", "--track", "digits")
    assert code == 0
    assert [row["name"] for row in told["tracks"]["digits"]] == ["baseline"]
    assert "is damaged" in told["refused"][0]["why"]
    assert "Refused: Entry" in ask("board", "--track", "digits")[1]


def test_names_cannot_steer_the_terminal(ask, board_path, config):
    ask("submit", config('track = "digits"\nlr = 0.02\n'))
    with sqlite3.connect(board_path) as base:
        base.execute("UPDATE entries SET name = 'a' || char(27) || '[31mred'")
    base.close()
    assert "\x1b" not in ask("board")[1]


def test_what_waits_is_told(ask, board_path):
    from trueloop.lab.arena.leaderboard import Leaderboard

    submit_entry(Leaderboard(board_path), DIGITS, Entry(), "ada")
    assert ask("board")[1].splitlines()[-1].endswith(": 2 waiting to be judged")


def test_a_board_that_is_not_there_is_not_made(ask, board_path):
    code, out, err = ask("board")
    assert (code, out) == (1, "")
    assert "There is no leaderboard" in err
    assert not board_path.exists()
