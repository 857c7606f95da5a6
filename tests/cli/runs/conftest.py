"""`trueloop runs ...` over a folder of made-up runs."""

import json

import pytest

from trueloop.cli.app import main


@pytest.fixture
def ask(made, capsys):
    """Ask a question; returns the exit code, standard output and standard error."""

    def asked(*words):
        code = main(["runs", *words, "--root", str(made.root)])
        return code, *capsys.readouterr()

    return asked


@pytest.fixture
def ask_json(ask):
    """Ask a question with --json; returns what is said, which must be one line of strict JSON and nothing else."""

    def asked(*words):
        code, out, err = ask(*words, "--json")
        assert (out.count("\n"), err) == (1, "")
        return code, json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))

    return asked
