import shutil


def test_run_epoch_update_value_and_checkpoint(made, ask):
    made.run("a", checkpoints=(4, 6))
    code, out, err = ask("best", "--metric", "val/loss")
    assert (code, err) == (0, "")
    assert out == (
        "val/loss    0.300000\nrun         a\nepoch       2\nupdate      4\nstate       finished\n"
        f"checkpoint  {made.root}/a/checkpoints/update-000000004\nchecksums   verified, every byte\n"
    )


def test_a_deleted_one_is_named_and_the_next_is_offered(made, ask, ask_json):
    made.run("a", checkpoints=(2, 4, 6))
    shutil.rmtree(made.root / "a" / "checkpoints" / "update-000000004")
    code, out, _ = ask("best")
    assert code == 0
    assert "it is missing: it was removed, or never saved" in out
    assert "The best evaluation with an intact checkpoint:" in out
    code, told = ask_json("best")
    assert code == 0
    assert (told["best"]["update"], told["best"]["verified"]) == (4, False)
    assert (told["alternative"]["update"], told["alternative"]["value"], told["alternative"]["verified"]) == (
        6,
        0.4,
        True,
    )


def test_without_any_checkpoint_the_exit_code_says_so(made, ask):
    made.run("a")
    code, out, _ = ask("best")
    assert code == 1
    assert "No other evaluation of this metric has an intact checkpoint either." in out


def test_mode_and_recipe(made, ask_json):
    made.run("a", checkpoints=(2, 4, 6))
    made.run("b", losses=(0.1,), checkpoints=(2,), facts={"recipe": "text"})
    assert ask_json("best")[1]["best"]["run"] == "b"
    assert ask_json("best", "--recipe", "digits")[1]["best"]["run"] == "a"
    told = ask_json("best", "--mode", "max")[1]
    assert (told["mode"], told["best"]["value"]) == ("max", 0.5)


def test_an_unknown_metric_names_those_that_exist(made, ask):
    made.run("a")
    code, out, err = ask("best", "--metric", "val/accuracy")
    assert (code, out) == (1, "")
    assert err == "error: No run has measured 'val/accuracy'.\nfix: Measured metrics: val/loss.\n"


def test_no_runs_at_all_is_an_error(made, ask):
    assert ask("best")[2].startswith("error: There are no runs in ")
    made.run("a")
    assert ask("best", "--recipe", "text")[2] == (
        f"error: There are no runs of the recipe 'text' in '{made.root}'.\nfix: Recipes of these runs: digits.\n"
    )
