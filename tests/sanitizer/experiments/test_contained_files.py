"""A rerun sees the files that it writes, and the user's files stay as they are."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

START = """
import os, sys
from pathlib import Path
from trueloop.sanitizer.experiments.contained_files import ContainedFiles
files = ContainedFiles(Path(sys.argv[1]))
files.install()
"""


@pytest.fixture
def contained(tmp_path: Path):
    """Run lines in a process whose writes are contained; return their output and the user's files afterwards."""
    folder, user = tmp_path / "contained", tmp_path / "user"
    folder.mkdir()
    user.mkdir()
    (user / "mine.txt").write_text("mine")
    (user / "data").mkdir()
    (user / "data" / "x").write_text("x")

    def run(lines: str) -> tuple[str, dict[str, str]]:
        command = [sys.executable, "-c", START + textwrap.dedent(lines), str(folder)]
        done = subprocess.run(command, cwd=user, capture_output=True, text=True, check=True, env={**os.environ})
        kept = {str(path.relative_to(user)): path.read_text() for path in user.rglob("*") if path.is_file()}
        return done.stdout, kept

    return run


USER = {"mine.txt": "mine", "data/x": "x"}


@pytest.mark.parametrize(
    ("lines", "output"),
    [
        ("open('mine.txt', 'w').write('new'); print(open('mine.txt').read())", "new\n"),
        ("open('mine.txt', 'a').write('+'); print(open('mine.txt').read())", "mine+\n"),
        ("os.makedirs('new/er'); Path('new/er/f').write_text('1'); print(os.listdir('new/er'))", "['f']\n"),
        ("os.makedirs('data', exist_ok=True); open('data/y', 'w'); print(os.path.exists('data/y'))", "True\n"),
        ("os.replace('mine.txt', 'other.txt'); print(open('other.txt').read())", "mine\n"),
        ("os.remove('mine.txt'); os.rmdir(os.mkdir('e') or 'e'); print('ok')", "ok\n"),
        ("import shutil; shutil.rmtree('data'); shutil.copy('mine.txt', 'c'); print(open('c').read())", "mine\n"),
        ("import tempfile; f = tempfile.NamedTemporaryFile(); f.write(b'1'); f.close(); print('ok')", "ok\n"),
        ("handle = os.open('low', os.O_WRONLY | os.O_CREAT); os.write(handle, b'1'); print(open('low').read())", "1\n"),
        ("open(os.devnull, 'w').write('x'); print('ok')", "ok\n"),
        ("open('f', 'w').write('1'); files.add_layer('n'); open('f', 'a').write('2'); print(open('f').read())", "12\n"),
    ],
)  # fmt: skip
def test_writes_are_seen_by_the_program_only(contained, lines: str, output: str):
    assert contained(lines) == (output, USER)


def test_an_existing_folder_cannot_be_made_again(contained):
    lines = """
    for name in "data", "new", "new":
        try:
            os.mkdir(name)
            print("made")
        except FileExistsError:
            print("exists")
    """
    assert contained(lines) == ("exists\nmade\nexists\n", USER)


def test_python_refuses_what_is_written_past_these_functions(contained):
    lines = """
    import sqlite3
    try:
        sqlite3.connect("base.db")
    except PermissionError as error:
        print(error)
    """
    output, kept = contained(lines)
    assert "trueloop diagnose keeps experiments from changing 'base.db'" in output
    assert kept == USER


def test_the_kernel_refuses_writes_of_child_processes_where_it_has_landlock(contained):
    lines = "print(files.kernel_refuses, os.system('echo 1 > mine.txt 2> /dev/null') != 0)"
    output, kept = contained(lines)
    assert (output, kept["mine.txt"]) in [("True True\n", "mine"), ("False False\n", "1\n")]
