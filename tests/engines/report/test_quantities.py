from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trueloop.engines.report.quantities import duration, percent, printable, sentence, short, shown, when
from trueloop.ground.findings import Finding


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0"), (0.2134, "0.213"), (12.34, "12.3"), (1234.5, "1234"), (6.85e-9, "6.85e-09"), (-2.5, "-2.50"),
     (float("nan"), "nan"), (float("-inf"), "-inf")],
)  # fmt: skip
def test_short(value: float, words: str):
    assert short(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (4.1e-4, "410 µs"),
        (0.0034, "3.40 ms"),
        (12.34, "12.3 s"),
        (185, "3 min 05 s"),
        (7380, "2 h 03 min"),
    ],
)
def test_duration(seconds: float, words: str):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "0 %"),
        (1e-6, "below 0.01 %"),
        (0.0086, "0.86 %"),
        (0.0143, "1.4 %"),
        (0.07, "7 %"),
        (0.41, "41 %"),
        (1, "100 %"),
    ],
)
def test_percent(share: float, words: str):
    assert percent(share) == words


def test_nothing_that_steers_a_terminal_is_left():
    assert printable("a\x1b[2Jb\udcff") == "a\ufffd[2Jb\ufffd"
    assert sentence("two\n   lines\tand a bell\a") == "two lines and a bell\ufffd"


def test_paths_are_relative_to_the_folder_they_are_in(tmp_path: Path):
    assert shown(str(tmp_path / "a" / "train.py"), tmp_path) == str(Path("a") / "train.py")
    assert shown("/elsewhere/train.py", tmp_path) == "/elsewhere/train.py"
    assert shown("<ipython-input-1>", tmp_path) == "<ipython-input-1>"


def test_when(finding: Finding):
    assert when(finding) == "since update 1, 1199 times"
    assert when(replace(finding, count=1)) == "at update 1"
    assert when(replace(finding, first_update=None)) == "1199 times"
    assert when(replace(finding, first_update=None, count=1)) == ""
