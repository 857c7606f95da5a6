"""What a program printed, read from a stream, a log, or a notebook's file."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from trueloop.cli import program_output
from trueloop.cli.program_output import read_file, read_stream
from trueloop.core.errors import InvalidConfig


def test_lines_are_echoed_and_the_last_ones_returned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program_output, "MAX_LINES", 2)
    echo = io.StringIO()
    assert read_stream(["a\n", "b\n", "c"], echo) == "b\nc"
    assert echo.getvalue() == "a\nb\nc"


def test_an_undecodable_log_is_read(tmp_path: Path):
    path = tmp_path / "train.log"
    path.write_bytes(b"\xff\xfe bad\nValueError: x\n")
    assert read_file(path).endswith("ValueError: x\n")


def test_an_unreadable_file_is_named(tmp_path: Path):
    with pytest.raises(InvalidConfig, match=r"none\.log' cannot be read: No such file"):
        read_file(tmp_path / "none.log")


def test_the_outputs_of_a_notebook_are_read(tmp_path: Path):
    path = tmp_path / "train.ipynb"
    error = {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["---", "E  Traceback", "E: v"]}
    printed = {"output_type": "stream", "text": ["epoch 1\n"]}
    cells = [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": [printed, error]}]
    path.write_text(json.dumps({"cells": cells}))
    assert read_file(path) == "epoch 1\n\n---\nE  Traceback\nE: v\n"
    path.write_text("ValueError: not a notebook")
    assert read_file(path) == "ValueError: not a notebook"


@pytest.mark.parametrize("text", ["[]", '{"cells": [3]}', '{"cells": 3}', '{"cells": [{"outputs": 3}]}', "[" * 99_999])
def test_an_invalid_notebook_is_read_as_text(tmp_path: Path, text: str):
    path = tmp_path / "train.ipynb"
    path.write_text(text)
    assert read_file(path) == text
