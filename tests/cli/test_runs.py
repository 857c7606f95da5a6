"""All `trueloop runs` commands: without torch, and in concurrent processes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest

from trueloop.cli.app import main
from trueloop.cli.runs import SUBCOMMANDS

WITHOUT = """
import sys
for name in ("torch", "numpy", "matplotlib", "safetensors", "sklearn"):
    sys.modules[name] = None
from trueloop.cli.app import main
sys.exit(main())
"""


def without_torch(fake_runs, *arguments: str) -> str:
    command = [sys.executable, "-c", WITHOUT, "runs", *arguments, "--root", str(fake_runs.root)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--filter", "val/loss<1"],
        ["show", "a"],
        ["best"],
        ["compare", "a", "b"],
        ["plot", "a"],
        ["rollback", "a", "--to", "best"],
        ["export", "a", "--json"],
        ["gc", "--keep-best", "1", "--yes"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_queries_need_no_torch(fake_runs, arguments):
    fake_runs.run("a", checkpoints=(2, 4, 6))
    fake_runs.run("b")
    assert without_torch(fake_runs, *arguments).strip()


def test_a_png_needs_matplotlib_and_names_the_extra(fake_runs):
    fake_runs.run("a")
    command = [sys.executable, "-c", WITHOUT, "runs", "plot", "a", "--png", "x.png", "--root", str(fake_runs.root)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=fake_runs.root)
    assert process.returncode == 1
    assert "pip install 'trueloop[train]'" in process.stderr
    assert not (fake_runs.root / "x.png").exists()


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["show", "é"], ["best"], ["compare", "é", "é"], ["plot", "é", "é"], ["gc", "--keep-best", "1"]],
)
def test_an_ascii_output_gets_every_command(fake_runs, arguments):
    fake_runs.run("é漢", losses=(0.5, 0.3, 0.4), checkpoints=(2, 4, 6))
    command = [sys.executable, "-m", "trueloop", "runs", *arguments, "--root", str(fake_runs.root)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "40"}
    process = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert (process.returncode, process.stderr) == (0, b"")
    assert process.stdout.isascii()


def test_help_is_printed_without_a_subcommand(capsys):
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in SUBCOMMANDS)
    assert main(["runs", "lst"]) == 2
    assert 'Unknown command "lst". Did you mean "list"?' in capsys.readouterr().err


def test_two_removals_and_a_list_may_run_concurrently(fake_runs):
    for k in range(6):
        fake_runs.run(f"r{k}", losses=(0.5, 0.3, 0.4), checkpoints=(2, 4, 6))
    arguments = [["gc", "--keep-best", "1", "--yes"], ["gc", "--keep-best", "1", "--yes"], ["list"]]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "trueloop", "runs", *each, "--root", str(fake_runs.root), "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for each in arguments
    ]  # fmt: skip
    records = []
    for process in processes:
        out, err = process.communicate()
        assert (process.returncode, err) == (0, "")
        records.append(json.loads(out))
    removed = [item["path"] for plan in records[:2] for item in plan["items"]]
    assert len(removed) == len(set(removed)), "nothing is removed twice"
    assert [run["state"] for run in records[2]] == ["finished"] * 6
    main(["runs", "gc", "--keep-best", "1", "--yes", "--root", str(fake_runs.root)])
    assert sorted(path.name for path in fake_runs.root.glob("*/checkpoints/*")) == sorted(
        ["update-000000004", "update-000000006"] * 6
    )


CORRUPT_VALUES = [None, True, -1, 10**30, 1e308, "x", "nan", [], {}, {"a": {"b": 1}}, "\x1b[31m", "../../x", "9" * 5000]


def corrupt(value: object, draw: random.Random) -> object:
    """Replace one value at any depth by another."""
    if isinstance(value, dict) and value and draw.random() < 0.75:
        key = draw.choice(list(value))
        return {**value, key: corrupt(value[key], draw)}
    return draw.choice(CORRUPT_VALUES)


@pytest.mark.parametrize("seed", range(30))
def test_no_corrupt_journal_crashes_a_query(fake_runs, capsys, seed):
    draw = random.Random(seed)
    path = fake_runs.run("a", checkpoints=(2, 4, 6), accuracies=(0.1, 0.2, 0.3)) / "journal.jsonl"
    fake_runs.run("b", checkpoints=(2,))
    lines = path.read_text().splitlines()
    index = draw.randrange(len(lines))
    lines[index] = json.dumps(corrupt(json.loads(lines[index]), draw))
    path.write_text("\n".join(lines) + "\n")
    for arguments in (
        ["list"], ["list", "--json", "--sort", "val/loss"], ["list", "--sort", "duration", "--filter", "started>1"],
        ["gc", "--keep-best", "1", "--unfinished"],
    ):  # fmt: skip
        assert main(["runs", *arguments, "--root", str(fake_runs.root)]) == 0, arguments
    for arguments in (
        ["show", "a"], ["show", "a", "--json"], ["best"], ["compare", "a", "b"], ["plot", "a", "b"],
        ["export", "a", "--json"], ["export", "a", "--csv", "-"], ["rollback", "a", "--to", "4"],
    ):  # fmt: skip
        assert main(["runs", *arguments, "--root", str(fake_runs.root)]) in (0, 1), arguments
    out = capsys.readouterr().out
    assert all(char == "\n" or char.isprintable() for char in out)
