import ast

import pytest

from trueloop.lab.arena.leaderboard import Leaderboard


@pytest.fixture
def entry(call, config):
    call("submit", config('track = "digits"\nname = "ada"\nlr = 0.02\nbatch = 64\n'))
    return "2"


def test_everything_about_one_entry_is_shown(call, board_path, entry):
    code, out, err = call("show", entry)
    assert (code, err) == (0, "")
    record = {" ".join(line.split()) for line in out.splitlines()}
    assert {"track digits", "name ada", "settings sgd lr 0.02 batch 64", "versions torch 2.0"} <= record
    row = Leaderboard(board_path).entry(2)
    assert all(f"{seed} reached 20 640 97.0% 0.500 ab" in record for seed in row.seeds)


def test_the_script_of_an_entry_is_printed_alone(call, board_path, entry):
    code, out, err = call("show", entry, "--script")
    assert (code, err) == (0, "")
    ast.parse(out)
    assert f"SEED = {Leaderboard(board_path).entry(2).seeds[0]}\n" in out
    assert "batch_size=64" in out


def test_json_is_the_row(call_json, entry):
    _, record = call_json("show", entry)
    assert (record["id"], record["state"], record["config"]["batch"], len(record["trials"])) == (2, "reached", 64, 5)


@pytest.mark.parametrize("number", ["99", "-1", str(2**63), str(-(2**63) - 1)])
def test_an_unknown_entry_is_refused(call, entry, number):
    code, _, err = call("show", number)
    assert code in (1, 2)
    assert number in err
