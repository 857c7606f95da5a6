from trueloop.core.protocols import Notice


def test_everything_about_a_run_is_shown(fake_runs, call):
    path = fake_runs.run("digits-1", checkpoints=(4, 6), end="")
    fake_runs.write("digits-1", [Notice(update=6, kind="save_blocking", message="Training waits.", details={})])
    (path / "checkpoints" / "update-000000004" / "state.json").unlink()
    code, out, err = call("show", "digits-1")
    assert (code, err) == (0, "")
    record = {" ".join(line.split()) for line in out.splitlines()}
    assert {
        "state killed", "update 6/6, epoch 3/3", "best val/loss 0.3000 @ 4", "val/loss 0.3000 @ 4 0.4000 @ 6",
        "6 save_blocking Training waits.", "config.optim.lr 0.001", "config.checkpoint.mirror none",
        "versions.torch 2.13.0", "code.recipe.py aa/bb", "6 3 val/loss 0.4000 update-000000006",
    } <= record  # fmt: skip
    assert "state.json is missing" in out
    assert "class_names" not in out


def test_json_has_checkpoints_notes_and_facts(fake_runs, call_json):
    fake_runs.run("a", checkpoints=(4,))
    code, record = call_json("show", "a")
    assert code == 0
    assert [(each["update"], each["metrics"]) for each in record["checkpoints"]] == [(4, {"val/loss": 0.3})]
    assert record["facts"]["config"]["optim"]["lr"] == 0.001
    assert (record["notes"], record["problems"], record["state"]) == ([], [], "finished")


def test_a_prefix_names_a_run_and_a_typo_gets_a_suggestion(fake_runs, call):
    fake_runs.run("digits-1")
    assert call("show", "dig")[0] == 0
    code, out, err = call("show", "digts-1")
    assert (code, out) == (1, "")
    assert err.endswith("fix: Did you mean 'digits-1'?\n")


def test_path_traversal_is_refused(fake_runs, call, tmp_path):
    fake_runs.run("a")
    for word in ("../../etc", "/etc", ".."):
        code, out, err = call("show", word)
        assert (code, out) == (1, "")
        assert "leads out of" in err


def test_a_damaged_run_is_an_error_that_names_the_line(fake_runs, call, fake_runs_module):
    fake_runs_module.damage(fake_runs.run("a"), 4)
    code, out, err = call("show", "a")
    assert (code, out) == (1, "")
    assert err.startswith("error: Line 4 of ")


def test_control_characters_are_not_printed(fake_runs, call):
    path = fake_runs.hostile()
    fake_runs.save(path, 2)
    code, out, _ = call("show", path.name)
    assert code == 0
    assert "<script>" in out
    assert all(char == "\n" or char.isprintable() for char in out)
