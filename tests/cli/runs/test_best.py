import shutil


def test_the_best_run_is_printed_with_its_checkpoint(fake_runs, call):
    fake_runs.run("a", checkpoints=(4, 6))
    code, out, err = call("best", "--metric", "val/loss")
    assert (code, err) == (0, "")
    assert out == (
        "val/loss    0.300000\nrun         a\nepoch       2\nupdate      4\nstate       finished\n"
        f"checkpoint  {fake_runs.root}/a/checkpoints/update-000000004\nchecksums   verified, every byte\n"
    )


def test_a_deleted_checkpoint_is_named_and_the_next_best_is_offered(fake_runs, call, call_json):
    fake_runs.run("a", checkpoints=(2, 4, 6))
    shutil.rmtree(fake_runs.root / "a" / "checkpoints" / "update-000000004")
    code, out, _ = call("best")
    assert code == 0
    assert "it is missing: it was removed, or never saved" in out
    assert "The best evaluation with an intact checkpoint:" in out
    code, record = call_json("best")
    assert code == 0
    assert (record["best"]["update"], record["best"]["verified"]) == (4, False)
    assert (record["alternative"]["update"], record["alternative"]["value"], record["alternative"]["verified"]) == (
        6,
        0.4,
        True,
    )


def test_without_any_checkpoint_the_exit_code_is_1(fake_runs, call):
    fake_runs.run("a")
    code, out, _ = call("best")
    assert code == 1
    assert "No other evaluation of this metric has an intact checkpoint either." in out


def test_mode_and_recipe_select_the_best_run(fake_runs, call_json):
    fake_runs.run("a", checkpoints=(2, 4, 6))
    fake_runs.run("b", losses=(0.1,), checkpoints=(2,), facts={"recipe": "text"})
    assert call_json("best")[1]["best"]["run"] == "b"
    assert call_json("best", "--recipe", "digits")[1]["best"]["run"] == "a"
    record = call_json("best", "--mode", "max")[1]
    assert (record["mode"], record["best"]["value"]) == ("max", 0.5)


def test_an_unknown_metric_lists_the_measured_metrics(fake_runs, call):
    fake_runs.run("a")
    code, out, err = call("best", "--metric", "val/accuracy")
    assert (code, out) == (1, "")
    assert err == "error: No run has measured 'val/accuracy'.\nfix: Measured metrics: val/loss.\n"


def test_a_folder_without_runs_is_an_error(fake_runs, call):
    assert call("best")[2].startswith("error: There are no runs in ")
    fake_runs.run("a")
    assert call("best", "--recipe", "text")[2] == (
        f"error: There are no runs of the recipe 'text' in '{fake_runs.root}'.\nfix: Recipes of these runs: digits.\n"
    )
