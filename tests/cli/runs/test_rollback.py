import json


def test_in_words_and_as_json(made, ask, ask_json):
    made.run("a", checkpoints=(2, 4), facts={"command": ["trueloop", "train", "digits", "--epochs", "3"]})
    new = made.root / "new"
    code, out, err = ask("rollback", "a", "--to", "last", "--run-dir", str(new))
    assert (code, err) == (0, "")
    assert out == (
        f"New run in {new}, at update 4 of {made.root / 'a'}.\n"
        f"Resume     trueloop train digits --run-dir {new} --epochs 3\n"
    )
    code, told = ask_json("rollback", "a", "--to", "2", "--run-dir", str(made.root / "json"))
    assert code == 0
    assert (told["update"], told["source"], told["notes"]) == (2, str(made.root / "a"), [])
    assert told["command"] == f"trueloop train digits --run-dir {made.root / 'json'} --epochs 3"
    assert (
        json.loads((made.root / "json" / "journal.jsonl").read_text().splitlines()[0])["facts"]["run_id"]
        == told["run_id"]
    )


def test_where_to_is_needed(made, ask):
    made.run("a", checkpoints=(2,))
    assert ask("rollback", "a")[0] == 2
    code, _, err = ask("rollback", "a", "--to", "4")
    assert code == 1
    assert err.endswith("fix: The nearest is --to 2.\n")


def test_a_command_of_a_journal_is_printed_as_one_line_that_steers_nothing(made, ask):
    command = ["trueloop", "train", "x.py; rm -rf ~", "\x1b[2J\n"]
    made.run("a", checkpoints=(2,), facts={"command": command})
    out = ask("rollback", "a", "--to", "2")[1]
    assert "'x.py; rm -rf ~'" in out
    assert out.count("\n") == 2
    assert "\x1b" not in out
