import ast

import pytest

from trueloop.lab.arena.leaderboard import Leaderboard


@pytest.fixture
def entry(ask, config):
    ask("submit", config('track = "digits"\nname = "ada"\nlr = 0.02\nbatch = 64\n'))
    return "2"


def test_everything_about_one_entry(ask, board_path, entry):
    code, out, err = ask("show", entry)
    assert (code, err) == (0, "")
    told = {" ".join(line.split()) for line in out.splitlines()}
    assert {"track digits", "name ada", "settings sgd lr 0.02 batch 64", "versions torch 2.0"} <= told
    row = Leaderboard(board_path).entry(2)
    assert all(f"{seed} reached 20 640 97.0% 0.500 ab" in told for seed in row.seeds)


def test_its_script_is_written_out_alone(ask, board_path, entry):
    code, out, err = ask("show", entry, "--script")
    assert (code, err) == (0, "")
    ast.parse(out)
    assert f"SEED = {Leaderboard(board_path).entry(2).seeds[0]}\n" in out
    assert "batch_size=64" in out


def test_json_is_the_row(ask_json, entry):
    _, told = ask_json("show", entry)
    assert (told["id"], told["state"], told["config"]["batch"], len(told["trials"])) == (2, "reached", 64, 5)


@pytest.mark.parametrize("number", ["99", "-1", str(2**63), str(-(2**63) - 1)])
def test_an_unknown_entry(ask, entry, number):
    code, _, err = ask("show", number)
    assert code in (1, 2)
    assert number in err
