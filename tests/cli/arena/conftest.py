"""`trueloop arena ...` on a temporary leaderboard, with a judge that answers immediately."""

import json

import pytest

from trueloop.cli.app import main


@pytest.fixture
def board_path(tmp_path):
    return tmp_path / "arena.sqlite3"


@pytest.fixture
def call(board_path, fake_judge, capsys):
    """Run an arena command; return the exit code, standard output and standard error."""

    def invoke(*arguments):
        code = main(["arena", *arguments, *([] if arguments[0] == "tracks" else ["--board", str(board_path)])])
        return code, *capsys.readouterr()

    return invoke


@pytest.fixture
def call_json(call):
    """Run an arena command with --json, which must print one line of strict JSON; return exit code and object."""

    def invoke(*arguments):
        code, out, err = call(*arguments, "--json")
        assert (out.count("\n"), err) == (1, "")
        return code, json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))

    return invoke


@pytest.fixture
def config(tmp_path):
    """Write a configuration and return its path."""

    def write(text):
        path = tmp_path / "config.toml"
        path.write_text(text)
        return str(path)

    return write
