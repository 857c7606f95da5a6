import pytest
from PIL import Image


@pytest.fixture
def two_runs(fake_runs):
    fake_runs.run("a")
    fake_runs.run("b", losses=(0.6, 0.2))


def test_curves_are_drawn_in_the_terminal(two_runs, call):
    code, out, err = call("plot", "a", "b")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    at = lines.index("val/loss  (updates 1 to 6)")
    assert lines[at + 1].startswith("  a  ")
    assert lines[at + 1].endswith("0.3000 to 0.5000, last 0.4000")
    assert lines[at + 2].endswith("0.2000 to 0.6000, last 0.2000")
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("Learning rate")]


def test_curves_are_written_to_files(two_runs, call, tmp_path):
    code, out, _ = call("plot", "a", "--png", str(tmp_path / "a.png"), "--html", str(tmp_path / "a.html"))
    assert (code, out) == (0, f"png  {tmp_path / 'a.png'}\nhtml  {tmp_path / 'a.html'}\n")
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")


def test_json_has_the_points(two_runs, call_json):
    code, record = call_json("plot", "a", "b")
    (panel,) = [each for each in record["panels"] if each["name"] == "metric_val/loss"]
    assert code == 0
    assert panel["curves"][1] == {"label": "b", "update": [2, 4], "value": [0.6, 0.2]}


def test_a_missing_run_and_a_missing_folder_are_refused(two_runs, call, tmp_path):
    assert call("plot")[2].startswith("error: The run is missing.")
    code, _, err = call("plot", "a", "--png", str(tmp_path / "nowhere" / "a.png"))
    assert (code, "cannot be written" in err) == (1, True)


def test_a_run_without_updates_has_no_curves(fake_runs, call):
    fake_runs.run("a", losses=(), end="")
    assert call("plot", "a")[1] == "These runs have no curves yet.\n"


def test_control_characters_are_not_printed(fake_runs, call):
    path = fake_runs.hostile()
    out = call("plot", path.name)[1]
    assert all(char == "\n" or char.isprintable() for char in out)
