import json


def test_the_new_run_is_printed_as_text_and_as_json(made, call, call_json):
    made.run("a", checkpoints=(2, 4), facts={"command": ["trueloop", "train", "digits", "--epochs", "3"]})
    new = made.root / "new"
    code, out, err = call("rollback", "a", "--to", "last", "--run-dir", str(new))
    assert (code, err) == (0, "")
    assert out == (
        f"New run in {new}, at update 4 of {made.root / 'a'}.\n"
        f"Resume     trueloop train digits --run-dir {new} --epochs 3\n"
    )
    code, record = call_json("rollback", "a", "--to", "2", "--run-dir", str(made.root / "json"))
    assert code == 0
    assert (record["update"], record["source"], record["notes"]) == (2, str(made.root / "a"), [])
    assert record["command"] == f"trueloop train digits --run-dir {made.root / 'json'} --epochs 3"
    assert (
        json.loads((made.root / "json" / "journal.jsonl").read_text().splitlines()[0])["facts"]["run_id"]
        == record["run_id"]
    )


def test_the_target_is_required_and_must_exist(made, call):
    made.run("a", checkpoints=(2,))
    assert call("rollback", "a")[0] == 2
    code, _, err = call("rollback", "a", "--to", "4")
    assert code == 1
    assert err.endswith("fix: The nearest is --to 2.\n")


def test_a_hostile_command_of_a_journal_is_escaped(made, call):
    command = ["trueloop", "train", "x.py; rm -rf ~", "\x1b[2J\n"]
    made.run("a", checkpoints=(2,), facts={"command": command})
    out = call("rollback", "a", "--to", "2")[1]
    assert "'x.py; rm -rf ~'" in out
    assert out.count("\n") == 2
    assert "\x1b" not in out
