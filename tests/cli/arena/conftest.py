"""`trueloop arena ...` on a board of its own, with a referee that knows at once."""

import json

import pytest

from trueloop.cli.app import main


@pytest.fixture
def board_path(tmp_path):
    return tmp_path / "arena.sqlite3"


@pytest.fixture
def ask(board_path, made_up_referee, capsys):
    """Give a command; returns the exit code, standard output and standard error."""

    def asked(*words):
        code = main(["arena", *words, *([] if words[0] == "tracks" else ["--board", str(board_path)])])
        return code, *capsys.readouterr()

    return asked


@pytest.fixture
def ask_json(ask):
    """Give a command with --json; what is said must be one line of strict JSON and nothing else."""

    def asked(*words):
        code, out, err = ask(*words, "--json")
        assert (out.count("\n"), err) == (1, "")
        return code, json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))

    return asked


@pytest.fixture
def config(tmp_path):
    """Write a configuration; returns its path."""

    def write(text):
        path = tmp_path / "config.toml"
        path.write_text(text)
        return str(path)

    return write
