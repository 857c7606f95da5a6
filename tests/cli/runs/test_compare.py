import pytest
from PIL import Image


@pytest.fixture
def two_runs(fake_runs):
    fake_runs.run("a")
    fake_runs.run("b", losses=(0.6, 0.2), facts={"options": {"width": 64}, "code": {"recipe.py": "cc/dd"}})


def test_differences_and_metrics_are_printed(two_runs, call):
    code, out, err = call("compare", "a", "b")
    assert (code, err) == (0, "")
    assert out == (
        "metric          a           b\n"
        "val/loss  best  0.3000 @ 4  0.2000 @ 4\n"
        "val/loss  last  0.4000 @ 6  0.2000 @ 4\n\n"
        "config         a  b\noptions.width  8  64\n\n"
        "code            a      b\ncode.recipe.py  aa/bb  cc/dd\n\n"
    )


def test_a_run_compared_with_itself_has_no_differences(two_runs, call):
    out = call("compare", "a", "a")[1]
    assert "a (2)" in out
    assert out.endswith("Nothing differs in settings, code, data or environment.\n")


def test_json_and_files_are_written(two_runs, call_json, tmp_path):
    png, html = tmp_path / "both.png", tmp_path / "both.html"
    code, record = call_json("compare", "a", "b", "--png", str(png), "--html", str(html))
    assert code == 0
    assert record["differences"][0] == {"group": "config", "name": "options.width", "values": [8, 64]}
    assert record["metrics"][0]["best"] == [
        {"value": 0.3, "update": 4, "epoch": 2},
        {"value": 0.2, "update": 4, "epoch": 2},
    ]
    assert record["files"] == [str(png), str(html)]
    assert "options.width" in html.read_text()
    with Image.open(png) as image:
        assert image.format == "PNG"


@pytest.mark.parametrize("arguments", [[], ["a"]])
def test_one_run_is_too_few(two_runs, call, arguments):
    code, _, err = call("compare", *arguments)
    assert (code, err.splitlines()[0]) == (1, "error: A comparison needs at least two runs.")
