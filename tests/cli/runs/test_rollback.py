import json


def test_the_new_run_is_printed_as_text_and_as_json(fake_runs, call, call_json):
    fake_runs.run("a", checkpoints=(2, 4), facts={"command": ["trueloop", "train", "digits", "--epochs", "3"]})
    new = fake_runs.root / "new"
    code, out, err = call("rollback", "a", "--to", "last", "--run-dir", str(new))
    assert (code, err) == (0, "")
    assert out == (
        f"New run in {new}, at update 4 of {fake_runs.root / 'a'}.\n"
        f"Resume     trueloop train digits --run-dir {new} --epochs 3\n"
    )
    code, record = call_json("rollback", "a", "--to", "2", "--run-dir", str(fake_runs.root / "json"))
    assert code == 0
    assert (record["update"], record["source"], record["notes"]) == (2, str(fake_runs.root / "a"), [])
    assert record["command"] == f"trueloop train digits --run-dir {fake_runs.root / 'json'} --epochs 3"
    assert (
        json.loads((fake_runs.root / "json" / "journal.jsonl").read_text().splitlines()[0])["facts"]["run_id"]
        == record["run_id"]
    )


def test_the_target_is_required_and_must_exist(fake_runs, call):
    fake_runs.run("a", checkpoints=(2,))
    assert call("rollback", "a")[0] == 2
    code, _, err = call("rollback", "a", "--to", "4")
    assert code == 1
    assert err.endswith("fix: The nearest is --to 2.\n")


def test_a_hostile_command_of_a_journal_is_escaped(fake_runs, call):
    command = ["trueloop", "train", "x.py; rm -rf ~", "\x1b[2J\n"]
    fake_runs.run("a", checkpoints=(2,), facts={"command": command})
    out = call("rollback", "a", "--to", "2")[1]
    assert "'x.py; rm -rf ~'" in out
    assert out.count("\n") == 2
    assert "\x1b" not in out
