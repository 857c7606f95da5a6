def test_without_yes_nothing_is_removed(fake_runs, call, call_json):
    path = fake_runs.run("a", losses=(0.5, 0.3, 0.4), checkpoints=(2, 4, 6))
    doomed = path / "checkpoints" / "update-000000002"
    code, out, err = call("gc", "--keep-best", "1")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("Nothing was changed. To remove 1 item, ")
    assert doomed.is_dir()
    record = call_json("gc", "--keep-best", "1")[1]
    assert (record["removed"], record["items"][0]["path"], record["items"][0]["kind"]) == (
        False,
        str(doomed),
        "checkpoint",
    )
    assert record["bytes"] == sum(file.stat().st_size for file in doomed.iterdir())
    code, out, _ = call("gc", "--keep-best", "1", "--yes")
    assert code == 0
    assert out.splitlines()[-1].startswith("Removed 1 item, ")
    assert not doomed.exists()
    assert call("gc", "--keep-best", "1")[1] == "Nothing would be removed.\n"


def test_only_the_named_runs_are_cleaned(fake_runs, call_json):
    for name in "ab":
        fake_runs.run(name, losses=(0.5,), end="failed")
    record = call_json("gc", "a", "--unfinished", "--yes")[1]
    assert [item["path"] for item in record["items"]] == [str(fake_runs.root / "a")]
    assert (fake_runs.root / "b").is_dir()


def test_invalid_options_are_refused(fake_runs, call):
    fake_runs.run("a")
    assert call("gc")[2].startswith("error: Nothing is selected for removal.")
    assert call("gc", "--keep-best", "0")[2].startswith("error: --keep-best is 0.")
    assert call("gc", "--unfinished", "--older-than", "-3")[0] in (1, 2)
    assert call("gc", "../x", "--unfinished", "--yes")[0] == 1


def test_skipped_runs_are_named(fake_runs, call, fake_runs_module):
    fake_runs_module.damage(fake_runs.run("a", checkpoints=(2, 4, 6)))
    out = call("gc", "--keep-best", "1")[1]
    assert out.startswith(f"not removed  {fake_runs.root / 'a'}: Line 2 of ")
