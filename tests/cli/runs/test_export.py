import pytest


def test_csv_is_written_to_standard_output_or_to_a_file(fake_runs, call, tmp_path):
    fake_runs.run("a", losses=(0.5,))
    code, out, err = call("export", "a", "--csv", "-")
    assert (code, err) == (0, "")
    assert out == (
        "update,epoch,loss,grad_norm,lr,examples,wait_s,total_s,skipped,val/loss\n"
        "1,1,0.6,0.5,0.001,8,0.001,0.01,false,\n2,1,0.5,0.5,0.001,8,0.001,0.01,false,0.5\n"
    )
    path = tmp_path / "a.csv"
    path.write_text("old")
    assert call("export", "a", "--csv", str(path)) == (0, f"csv  {path}\n", "")
    assert path.read_text() == out
    assert not list(tmp_path.glob("*.part"))


def test_json_is_one_object(fake_runs, call_json):
    fake_runs.run("a", losses=(0.5, float("nan")))
    code, record = call_json("export", "a")
    assert (code, len(record["updates"]), record["evaluations"][1]["metrics"]["loss"]) == (0, 4, "nan")


@pytest.mark.parametrize("arguments", [[], ["--csv", "x", "--json"], ["--csv", "--json"]])
def test_exactly_one_format_is_required(fake_runs, call, arguments):
    fake_runs.run("a")
    code, out, err = call("export", "a", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("error: Exactly one output format is needed.")


def test_an_unwritable_file_is_refused(fake_runs, call, tmp_path):
    fake_runs.run("a")
    code, _, err = call("export", "a", "--csv", str(tmp_path / "nowhere" / "a.csv"))
    assert (code, "cannot be written" in err) == (1, True)
