import pytest
from PIL import Image


@pytest.fixture
def two(made):
    made.run("a")
    made.run("b", losses=(0.6, 0.2), facts={"options": {"width": 64}, "code": {"recipe.py": "cc/dd"}})


def test_what_differs_and_how_far_each_came(two, ask):
    code, out, err = ask("compare", "a", "b")
    assert (code, err) == (0, "")
    assert out == (
        "metric          a           b\n"
        "val/loss  best  0.3000 @ 4  0.2000 @ 4\n"
        "val/loss  last  0.4000 @ 6  0.2000 @ 4\n\n"
        "config         a  b\noptions.width  8  64\n\n"
        "code            a      b\ncode.recipe.py  aa/bb  cc/dd\n\n"
    )


def test_the_same_run_twice_differs_in_nothing(two, ask):
    out = ask("compare", "a", "a")[1]
    assert "a (2)" in out
    assert out.endswith("Nothing differs in settings, code, data or environment.\n")


def test_json_and_files(two, ask_json, tmp_path):
    png, html = tmp_path / "both.png", tmp_path / "both.html"
    code, told = ask_json("compare", "a", "b", "--png", str(png), "--html", str(html))
    assert code == 0
    assert told["differences"][0] == {"group": "config", "name": "options.width", "values": [8, 64]}
    assert told["metrics"][0]["best"] == [
        {"value": 0.3, "update": 4, "epoch": 2},
        {"value": 0.2, "update": 4, "epoch": 2},
    ]
    assert told["files"] == [str(png), str(html)]
    assert "options.width" in html.read_text()
    with Image.open(png) as image:
        assert image.format == "PNG"


@pytest.mark.parametrize("words", [[], ["a"]])
def test_one_run_is_too_few(two, ask, words):
    code, _, err = ask("compare", *words)
    assert (code, err.splitlines()[0]) == (1, "error: Fewer than two runs are named.")
