import sqlite3

import pytest


@pytest.fixture
def entry(call, config):
    call("submit", config('track = "digits"\nname = "ada"\nlr = 0.02\n'))
    return "2"


def test_a_correct_row_replays_identically(call, entry):
    code, out, _ = call("replay", entry)
    assert code == 0
    assert out.count("reached at update 20 again, weights ab") == 5
    assert out.endswith("The weights are the same, bit by bit.\n")


def test_a_manipulated_number_is_detected(call, call_json, board_path, entry):
    with sqlite3.connect(board_path) as base:
        base.execute("""UPDATE entries SET trials = replace(trials, '"updates":20', '"updates":2') WHERE id = 2""")
    base.close()
    rows = call_json("board", "--track", "digits")[1]["tracks"]["digits"]
    assert [(row["rank"], row["updates"]["median"]) for row in rows] == [(1, 100), (None, 2)]
    code, out, _ = call("replay", entry)
    assert code == 1
    assert "reached at update 2 with weights ab originally, reached at update 20 with weights ab now" in out
    code, record = call_json("replay", entry)
    assert (code, record["same"], [seed["same"] for seed in record["seeds"]]) == (1, False, [False] * 5)


def test_another_version_is_named(call, board_path, entry):
    with sqlite3.connect(board_path) as base:
        base.execute("""UPDATE entries SET versions = '{"torch":"1.9"}'""")
    base.close()
    assert "torch was 1.9 originally and is 2.0 now." in call("replay", entry)[1]
