"""`trueloop runs ...` over a folder of made-up runs."""

import json

import pytest

from trueloop.cli.app import main


@pytest.fixture
def call(fake_runs, capsys):
    """Run a command on the made-up runs; return the exit code, standard output and standard error."""

    def invoke(*arguments):
        code = main(["runs", *arguments, "--root", str(fake_runs.root)])
        return code, *capsys.readouterr()

    return invoke


@pytest.fixture
def call_json(call):
    """Run a command with --json, which must print one line of strict JSON; return the exit code and the object."""

    def invoke(*arguments):
        code, out, err = call(*arguments, "--json")
        assert (out.count("\n"), err) == (1, "")
        return code, json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))

    return invoke
