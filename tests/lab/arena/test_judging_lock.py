"""One judge at a time, and a dead one keeps nobody waiting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trueloop.lab.arena.judging_lock import turn

HOLD = """
import sys
from pathlib import Path
from trueloop.lab.arena.judging_lock import turn
with turn(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


def test_the_turn_is_one_processs_until_it_ends(tmp_path: Path):
    board = tmp_path / "arena.sqlite3"
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(board)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"True\n"
    with turn(board) as mine:
        assert not mine
    other.kill()
    other.communicate()
    with turn(board) as mine:
        assert mine
        with turn(board) as again:
            assert not again
    with turn(board) as mine:
        assert mine
