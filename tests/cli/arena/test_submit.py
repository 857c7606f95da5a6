import pytest

from trueloop.lab.arena.leaderboard import Leaderboard

GOOD = 'track = "digits"\nname = "ada"\noptimizer = "adamw"\nlr = 0.02\nbatch = 64\n'


def test_an_entry_is_judged_and_ranked(call, config, fake_judge):
    code, out, _ = call("submit", config(GOOD))
    assert code == 0
    assert "Entry 2. Reached the target on all 5 seeds; median: 20 updates." in out
    assert [line.split()[:2] for line in out.splitlines() if line[:1].isdigit()] == [["1", "ada"], ["2", "baseline"]]
    assert {job.track for job in fake_judge} == {"digits"}
    assert len(fake_judge) == 10


def test_options_override_the_file(call_json, config):
    code, record = call_json("submit", config(GOOD), "--track", "deep", "--name", "grace")
    assert (code, record["track"], record["name"], record["state"]) == (0, "deep", "grace", "reached")
    assert record["config"]["optimizer"] == "adamw"
    assert [trial["updates"] for trial in record["trials"]] == [20] * 5


@pytest.mark.parametrize(
    ("line", "says"),
    [("lr = 9.0", "Disqualified: the sanitizer found GRD007: the loss is nan"), ("lr = 0.0001", "did not reach")],
)
def test_an_entry_that_is_not_ranked_exits_with_3(call, config, line, says):
    code, out, _ = call("submit", config(f'track = "digits"\n{line}\n'))
    assert code == 3
    assert says in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('track = "digits"\nlearning_rate = 0.1', "Unknown field 'learning_rate'"),
        ('track = "digits"\nlr = nan', "lr is nan"),
        ('track = "digits"\nbatch = 1000000000', "batch is 1000000000"),
        ('track = "mnist"', "There is no track 'mnist'"),
        ("lr = 0.1", "The track is missing"),
        ("track = 5", "track is 5"),
        (f"track = 0x{'f' * 5000}", "too large to print"),
        (f'track = "digits"\noptimizer = 0x{"f" * 5000}', "too large to print"),
        (f"lr = {'9' * 5000}", "is not TOML"),
        (f"lr = {'[' * 3000}", "is not TOML"),
        ('track = "digits"\nname = "a\\nb"', "name is 'a\\nb'"),
        ('track = "digits"\nlr = ', "is not TOML"),
    ],
)
def test_an_invalid_entry_is_refused_and_not_run(call, config, board_path, fake_judge, text, says):
    code, out, err = call("submit", config(text))
    assert (code, out) == (1, "")
    assert says in err
    assert "fix: " in err
    assert fake_judge == []
    assert not board_path.exists() or Leaderboard(board_path).count_waiting() == 0


def test_a_missing_file_is_refused(call, tmp_path):
    code, _, err = call("submit", str(tmp_path / "none.toml"))
    assert code == 1
    assert "Cannot read" in err


def test_progress_goes_to_standard_error(call, config):
    _, out, err = call("submit", config(GOOD))
    assert out.startswith("Entry 2. ")
    assert err
    assert all(line.startswith(("in the queue", "the judge", "seed ")) for line in err.splitlines())
