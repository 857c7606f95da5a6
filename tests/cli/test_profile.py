"""`trueloop profile`: the words and the numbers."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from trueloop.cli.app import main
from trueloop.training.profiling.profile import PARTS


def profile(line: str) -> int:
    return main(["profile", *shlex.split(line)])


def test_the_page_has_the_phases_and_the_bottleneck(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert profile("tabular --updates 2 --trace trace.json") == 0
    out = capsys.readouterr().out
    assert out.startswith("tabular on cpu: ")
    assert all(f"\n{part} " in out for part in PARTS)
    assert re.search(r"The bottleneck of the backward pass is \w+Backward0: \d+ % of it", out)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"], "nothing of a run is written"


def test_json_is_one_object(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert profile("tabular --updates 1 --effective-batch 16 --json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["updates"], record["device"], record["trace"]) == (1, "cpu", None)
    assert sum(record["split"].values()) == pytest.approx(1)
    assert record["bottleneck"] == record["backward"][0]["name"]
    assert list(tmp_path.iterdir()) == []


def test_help_lists_the_recipes_and_the_flags(capsys: pytest.CaptureFixture[str]):
    assert profile("--help") == 0
    out = capsys.readouterr().out
    assert "Usage: trueloop profile RECIPE [OPTIONS]" in out
    assert all(word in out for word in ("digits", "FILE.py:FUNCTION", "--config", "--json"))
    assert profile("digits --help") == 0
    assert "--optim.lr" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("", 2, "Name the recipe first: trueloop profile RECIPE."),
        ("digit", 1, "There is no recipe 'digit'. Did you mean 'digits'?"),
        ("tabular --updates 0", 1, "updates is 0."),
        ("tabular --trace here", 1, "A trace cannot be written to 'here'."),
        ("tabular --run-dir here", 2, "--run-dir"),
    ],
)
def test_bad_input_is_one_message(capsys: pytest.CaptureFixture[str], line: str, code: int, message: str):
    assert profile(line) == code
    out, err = capsys.readouterr()
    assert (out, err.count("error:")) == ("", 1)
    assert message in err
