"""Questions about a board need no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trueloop.cli.app import main
from trueloop.cli.arena import SUBCOMMANDS
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.leaderboard import Leaderboard, Submission
from trueloop.lab.arena.tracks import DEEP
from trueloop.lab.arena.trial import Trial

WITHOUT = """
import sys
for name in ("torch", "numpy", "matplotlib", "safetensors", "sklearn"):
    sys.modules[name] = None
from trueloop.cli.app import main
sys.exit(main())
"""


@pytest.fixture
def board(tmp_path: Path) -> Path:
    board = Leaderboard(tmp_path / "arena.sqlite3")
    entry = Entry(lr=0.02).as_json()
    board.submit(
        Submission(track="deep", track_fingerprint=DEEP.fingerprint, name="ada", config=entry, seeds=(1,)), 0.0
    )
    board.claim_next()
    board.record_result(1, [Trial(seed=1, end="reached", updates=12, examples=384)], {}, versions={}, now=1.0)
    return board.path


@pytest.mark.parametrize("words", [["tracks"], ["board"], ["show", "1"], ["show", "1", "--script"]], ids=" ".join)
def test_leaderboard_commands_need_no_torch(words: list[str], board: Path):
    arguments = [*words, *([] if words == ["tracks"] else ["--board", str(board)])]
    command = [sys.executable, "-c", WITHOUT, "arena", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    assert "deep" in process.stdout


def test_a_replay_needs_torch_and_names_the_extra(board: Path):
    command = [sys.executable, "-c", WITHOUT, "arena", "replay", "1", "--board", str(board)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert "pip install 'trueloop[train]'" in process.stderr


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]):
    assert main(["arena", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"│ {name} " in out for name in SUBCOMMANDS)
