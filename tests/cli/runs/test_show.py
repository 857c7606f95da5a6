from trueloop.core.protocols import Notice


def test_everything_on_one_page(made, ask):
    path = made.run("digits-1", checkpoints=(4, 6), end="")
    made.write("digits-1", [Notice(update=6, kind="save_blocking", message="Training waits.", details={})])
    (path / "checkpoints" / "update-000000004" / "state.json").unlink()
    code, out, err = ask("show", "digits-1")
    assert (code, err) == (0, "")
    told = {" ".join(line.split()) for line in out.splitlines()}
    assert {
        "state killed", "update 6/6, epoch 3/3", "best val/loss 0.3000 @ 4", "val/loss 0.3000 @ 4 0.4000 @ 6",
        "6 save_blocking Training waits.", "config.optim.lr 0.001", "config.checkpoint.mirror none",
        "versions.torch 2.13.0", "code.recipe.py aa/bb", "6 3 val/loss 0.4000 update-000000006",
    } <= told  # fmt: skip
    assert "state.json is missing" in out
    assert "class_names" not in out


def test_json_holds_checkpoints_notes_and_facts(made, ask_json):
    made.run("a", checkpoints=(4,))
    code, told = ask_json("show", "a")
    assert code == 0
    assert [(each["update"], each["metrics"]) for each in told["checkpoints"]] == [(4, {"val/loss": 0.3})]
    assert told["facts"]["config"]["optim"]["lr"] == 0.001
    assert (told["notes"], told["problems"], told["state"]) == ([], [], "finished")


def test_a_beginning_is_enough_and_an_unknown_one_names_the_nearest(made, ask):
    made.run("digits-1")
    assert ask("show", "dig")[0] == 0
    code, out, err = ask("show", "digts-1")
    assert (code, out) == (1, "")
    assert err.endswith("fix: Did you mean 'digits-1'?\n")


def test_path_traversal_is_refused(made, ask, tmp_path):
    made.run("a")
    for word in ("../../etc", "/etc", ".."):
        code, out, err = ask("show", word)
        assert (code, out) == (1, "")
        assert "leads out of" in err


def test_a_damaged_run_is_an_error_that_names_the_line(made, ask, made_runs_module):
    made_runs_module.damage(made.run("a"), 4)
    code, out, err = ask("show", "a")
    assert (code, out) == (1, "")
    assert err.startswith("error: Line 4 of ")


def test_nothing_steers_the_terminal(made, ask):
    path = made.hostile()
    made.save(path, 2)
    code, out, _ = ask("show", path.name)
    assert code == 0
    assert "<script>" in out
    assert all(char == "\n" or char.isprintable() for char in out)
