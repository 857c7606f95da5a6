import pytest
from PIL import Image


@pytest.fixture
def two(made):
    made.run("a")
    made.run("b", losses=(0.6, 0.2))


def test_in_the_terminal_without_a_file(two, ask):
    code, out, err = ask("plot", "a", "b")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    at = lines.index("val/loss  (updates 1 to 6)")
    assert lines[at + 1].startswith("  a  ")
    assert lines[at + 1].endswith("0.3000 to 0.5000, last 0.4000")
    assert lines[at + 2].endswith("0.2000 to 0.6000, last 0.2000")
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("Learning rate")]


def test_into_files(two, ask, tmp_path):
    code, out, _ = ask("plot", "a", "--png", str(tmp_path / "a.png"), "--html", str(tmp_path / "a.html"))
    assert (code, out) == (0, f"png  {tmp_path / 'a.png'}\nhtml  {tmp_path / 'a.html'}\n")
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")


def test_json_holds_the_points(two, ask_json):
    code, told = ask_json("plot", "a", "b")
    (panel,) = [each for each in told["panels"] if each["name"] == "metric_val/loss"]
    assert code == 0
    assert panel["curves"][1] == {"label": "b", "update": [2, 4], "value": [0.6, 0.2]}


def test_no_run_is_named_and_a_folder_that_is_not_there(two, ask, tmp_path):
    assert ask("plot")[2].startswith("error: No run is named.")
    code, _, err = ask("plot", "a", "--png", str(tmp_path / "nowhere" / "a.png"))
    assert (code, "cannot be written" in err) == (1, True)


def test_a_run_that_has_only_begun(made, ask):
    made.run("a", losses=(), end="")
    assert ask("plot", "a")[1] == "These runs have no curves yet.\n"


def test_nothing_steers_the_terminal(made, ask):
    path = made.hostile()
    out = ask("plot", path.name)[1]
    assert all(char == "\n" or char.isprintable() for char in out)
