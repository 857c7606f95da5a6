def test_a_dry_run_first(made, ask, ask_json):
    path = made.run("a", losses=(0.5, 0.3, 0.4), checkpoints=(2, 4, 6))
    doomed = path / "checkpoints" / "update-000000002"
    code, out, err = ask("gc", "--keep-best", "1")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("Nothing was changed. To remove 1 item, ")
    assert doomed.is_dir()
    told = ask_json("gc", "--keep-best", "1")[1]
    assert (told["removed"], told["items"][0]["path"], told["items"][0]["kind"]) == (False, str(doomed), "checkpoint")
    assert told["bytes"] == sum(file.stat().st_size for file in doomed.iterdir())
    code, out, _ = ask("gc", "--keep-best", "1", "--yes")
    assert code == 0
    assert out.splitlines()[-1].startswith("Removed 1 item, ")
    assert not doomed.exists()
    assert ask("gc", "--keep-best", "1")[1] == "Nothing would be removed.\n"


def test_only_the_named_runs(made, ask_json):
    for name in "ab":
        made.run(name, losses=(0.5,), end="failed")
    told = ask_json("gc", "a", "--unfinished", "--yes")[1]
    assert [item["path"] for item in told["items"]] == [str(made.root / "a")]
    assert (made.root / "b").is_dir()


def test_wishes_that_cannot_be_meant(made, ask):
    made.run("a")
    assert ask("gc")[2].startswith("error: Nothing is selected for removal.")
    assert ask("gc", "--keep-best", "0")[2].startswith("error: --keep-best is 0.")
    assert ask("gc", "--unfinished", "--older-than", "-3")[0] in (1, 2)
    assert ask("gc", "../x", "--unfinished", "--yes")[0] == 1


def test_what_is_left_alone_is_said(made, ask, made_runs_module):
    made_runs_module.damage(made.run("a", checkpoints=(2, 4, 6)))
    out = ask("gc", "--keep-best", "1")[1]
    assert out.startswith(f"not removed  {made.root / 'a'}: Line 2 of ")
