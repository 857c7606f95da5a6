"""`trueloop explain`: a page by code or name, and a helpful word where there is none."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from trueloop.cli.app import main

pytestmark = pytest.mark.usefixtures("made_up")


@pytest.mark.parametrize("word", ["GRD901", "grd901", "made-up-error"])
def test_a_page_has_every_section(word: str, capsys: pytest.CaptureFixture[str]):
    assert main(["explain", word]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:8] == [
        "GRD901 A made-up-error",
        "error · gradient/made-up-error · found by trueloop run",
        "",
        "Something made up happens.",
        "",
        "What you see",
        "  None: it is made up.",
        "",
    ]
    for heading in (
        "Why it happens",
        "Fix",
        "When this is fine",
        "How it is detected",
        "References",
        "A program with it",
    ):
        assert heading in lines
    assert "  bad = 1" in lines
    assert lines[-1] == "In short: Do otherwise."


def test_an_unknown_name_gets_a_suggestion(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "GRD910"]) == 1
    assert capsys.readouterr().err.startswith(
        "error: 'GRD910' is not a failure of the catalogue.\nfix: Did you mean GR"
    )


SHAPES = """\
Traceback (most recent call last):
  File "train.py", line 12, in forward
    return self.fc(x)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x4 and 8x2)
"""


def piped(monkeypatch: pytest.MonkeyPatch, text: str, *, terminal: bool = False) -> None:
    stream = io.StringIO(text)
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdin", stream)


@pytest.mark.parametrize(("text", "terminal"), [("", False), ("  \n", False), (SHAPES, True)])
def test_a_missing_name_and_text_are_wrong_usage(
    text: str, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    piped(monkeypatch, text, terminal=terminal)
    assert main(["explain"]) == 2
    assert "trueloop explain --help" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["explain"], ["explain", "-"]])
def test_a_piped_traceback_is_explained_with_the_users_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    piped(monkeypatch, SHAPES)
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x4 and 8x2)",
        "Tensor shapes do not match · train.py:12 in forward · shape-mismatch",
    ]
    assert any(line.startswith("  fix: ") for line in lines)
    assert "  The shapes of two tensors do not match in an operation." in lines, "the page"


def test_echo_prints_the_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    piped(monkeypatch, SHAPES)
    assert main(["explain", "-", "--echo"]) == 0
    assert capsys.readouterr().out.startswith(SHAPES + "RuntimeError: mat1")
    piped(monkeypatch, SHAPES)
    assert main(["explain", "--echo", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == SHAPES
    assert json.loads(out)["errors"][0]["location"] == {"path": "train.py", "line": 12, "function": "forward"}


def test_a_message_a_file_and_a_kind_are_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["explain", "CUDA out of memory. Tried to allocate 2.00 GiB."]) == 0
    assert "2.00 GiB were requested" in capsys.readouterr().out
    (tmp_path / "train.log").write_text(SHAPES)
    assert main(["explain", str(tmp_path / "train.log")]) == 0
    assert "train.py:12" in capsys.readouterr().out
    assert main(["explain", "out_of_memory"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "Out of memory",
        "OutOfMemoryError or RuntimeError · raised by PyTorch · out-of-memory",
    ]


def test_file_names_with_spaces_and_long_messages_are_distinguished(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "my run.log").write_text(SHAPES)
    assert main(["explain", str(tmp_path / "my run.log")]) == 0
    assert "train.py:12" in capsys.readouterr().out
    assert main(["explain", f"CUDA out of memory. {'x' * 5000} \0"]) == 0
    assert "Out of memory" in capsys.readouterr().out


def test_undecodable_input_is_searched(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n" + SHAPES.encode()), encoding="utf-8"))
    assert main(["explain"]) == 0
    assert "train.py:12" in capsys.readouterr().out


def test_an_unknown_error_exits_with_1_and_names_similar_errors(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "RuntimeError: the mat1 shapes cannot be multiplied with mat2"]) == 1
    out = capsys.readouterr().out
    assert "trueloop has no page on this error" in out
    assert "Similar: Tensor shapes do not match (trueloop explain shape-mismatch)" in out
    assert main(["explain", "all is well"]) == 1
    assert "contains no error that trueloop knows" in capsys.readouterr().out


def test_a_finding_of_trueloop_leads_to_its_page(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "trueloop: error GRD001 train.py:3: made up"]) == 0
    assert capsys.readouterr().out.startswith("GRD001 Gradients are never cleared\n")


def test_a_page_as_json(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "GRD901", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["code"], record["bad"]) == ("GRD901", "bad = 1\n")
    assert record["page"].startswith("Something made up happens.")
    assert record["site"] == "failures/made-up-error.html"
    assert main(["explain", "shape-mismatch", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "shape-mismatch"


def test_control_characters_are_not_printed(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "RuntimeError: size mismatch, got \x07 [bold]3[/]\x9b2J"]) == 0
    out = capsys.readouterr().out
    assert "[bold]3[/]" in out
    assert not {"\x07", "\x9b"} & set(out)
