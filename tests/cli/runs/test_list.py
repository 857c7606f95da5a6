import math
from functools import partial

import pytest


def column(out, k=0):
    return [line.split()[k] for line in out.splitlines()[1:-1]]


def test_runs_are_listed_newest_first(fake_runs, call):
    fake_runs.run("a", at=1_700_000_000.0)
    fake_runs.run("b", at=1_700_000_100.0, losses=(0.5, 0.25), end="failed")
    code, out, err = call("list")
    assert (code, err) == (0, "")
    head, first, second, last = out.splitlines()
    assert head.split() == ["run", "state", "started", "update", "time", "best"]
    assert first.split()[:2] + first.split()[4:] == ["b", "failed", "4/4", "1.5", "s", "val/loss", "0.2500", "@", "4"]
    assert second.split()[:2] == ["a", "finished"]
    assert last == f"2 runs of 2 in {fake_runs.root}."


def test_runs_are_filtered_sorted_and_limited(fake_runs, call):
    for k, loss in enumerate((0.4, 0.1, 0.3, 0.2)):
        fake_runs.run(f"r{k}", losses=(loss,), end="failed" if k == 1 else "finished", at=k)
    assert column(call("list", "--sort", "val/loss")[1]) == ["r1", "r3", "r2", "r0"]
    assert column(call("list", "--sort", "name", "--reverse")[1]) == ["r3", "r2", "r1", "r0"]
    assert column(call("list", "--filter", "val/loss<0.35", "--filter", "name!=r1", "--sort", "name")[1]) == [
        "r2",
        "r3",
    ]
    _, out, _ = call("list", "--state", "finished", "--limit", "1")
    assert column(out) == ["r3"]
    assert out.endswith(" 2 more runs: --limit 0.\n")
    assert len(column(call("list", "--limit", "0")[1])) == 4
    assert column(call("list", "--state", "f*", "--sort", "name")[1]) == ["r0", "r1", "r2", "r3"]
    assert call("list", "--state", "running")[1] == f"0 runs of 4 in {fake_runs.root}.\n"


def test_a_setting_in_a_filter_gets_a_column(fake_runs, call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    fake_runs.run("a")
    out = call("list", "--sort", "config.optim.lr", "--filter", "options.width>4")[1]
    assert out.splitlines()[0].split()[5:7] == ["config.optim.lr", "options.width"]
    assert "0.001000" in out


def test_skipped_updates_get_a_column(fake_runs, call, fake_runs_module, monkeypatch):
    monkeypatch.setattr(fake_runs_module, "row", partial(fake_runs_module.row, skipped=True))
    fake_runs.run("a")
    head, row, _ = call("list")[1].splitlines()
    assert head.split() == ["run", "state", "started", "update", "time", "skipped", "best"]
    assert row.split()[5:8] == ["1.5", "s", "6"]


def test_json_has_all_runs_and_problems(fake_runs, call_json, fake_runs_module):
    fake_runs.run("a", losses=(0.5, math.nan))
    fake_runs_module.damage(fake_runs.run("b"))
    code, record = call_json("list", "--sort", "name")
    assert code == 0
    assert [(run["name"], run["state"]) for run in record] == [("a", "finished"), ("b", "damaged")]
    assert record[0]["last"]["val/loss"] == {"value": "nan", "update": 4, "epoch": 2}
    assert "Line 2 of" in record[1]["problem"]


def test_a_damaged_run_is_a_row_with_the_reason(fake_runs, call, fake_runs_module, monkeypatch):
    fake_runs.run("a")
    fake_runs_module.damage(fake_runs.run("b"))
    monkeypatch.setenv("COLUMNS", "400")
    code, out, err = call("list")
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("b ")]
    assert "damaged" in line
    assert "Line 2 of" in line


def test_no_line_is_wider_than_the_terminal(fake_runs, call, monkeypatch):
    fake_runs.run("a-name-that-is-longer-than-anybody-should-ever-give-to-a-run-of-theirs-however-important-it-may-be")
    fake_runs.run("漢字" * 40)
    for width in ("60", "80", "120"):
        monkeypatch.setenv("COLUMNS", width)
        from rich.cells import cell_len

        lines = call("list")[1].splitlines()[:-1]
        assert max(map(cell_len, lines)) <= int(width)


def test_control_characters_are_not_printed(fake_runs, call):
    fake_runs.hostile()
    fake_runs.hostile("\x1b]0;title\x07")
    out = call("list")[1]
    assert out.isascii() or "\ufffd" in out
    assert all(char == "\n" or char.isprintable() for char in out)


def test_an_empty_or_missing_folder_is_no_error(fake_runs, call, call_json):
    assert call("list") == (0, f"0 runs of 0 in {fake_runs.root}.\n", "")
    assert call_json("list") == (0, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--filter", "nonsense"], "The filter 'nonsense' has no comparison."),
        (["--filter", "val/los<1"], "No run has 'val/los'.\nfix: Did you mean 'val/loss'?"),
        (["--state", "finishd"], "There is no state 'finishd'.\nfix: Did you mean 'finished'?"),
        (["--sort", "val/acc"], "No run has 'val/acc'."),
    ],
)
def test_an_invalid_filter_or_state_is_one_message(fake_runs, call, arguments, message):
    fake_runs.run("a")
    code, out, err = call("list", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {message}")


def test_wrong_usage_names_the_whole_command(call):
    code, _, err = call("list", "--limit", "3.5")
    assert code == 2
    assert err.endswith("fix: trueloop runs list --help\n")
