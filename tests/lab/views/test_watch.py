"""The requests of the watch page are bounded, and the shown code runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import parse_record
from trueloop.lab.views.watch import Query, answer
from trueloop.lab.visible_runs import VisibleRuns
from trueloop.runs.live.writer import LiveWriter


@pytest.fixture
def visible_runs(fake_runs, tmp_path):
    fake_runs.run("a'b{0}")
    return VisibleRuns(fake_runs.root, tmp_path / "live")


def text(reply) -> str:
    return "\n".join("".join(piece for _, piece in line) for line in reply["code"])


def test_runs_are_listed_and_polled(visible_runs):
    assert [each["name"] for each in answer(parse_record(Query, {"what": "list"}), visible_runs)["runs"]] == ["a'b{0}"]
    reply = answer(parse_record(Query, {"what": "poll", "runs": ["runs/a'b{0}"]}), visible_runs)
    assert (reply["runs"][0]["update"], reply["poll_interval_ms"]) == (6, 1000)


def test_the_shown_code_reads_the_run(visible_runs):
    code = text(answer(parse_record(Query, {"what": "code", "runs": ["runs/a'b{0}"]}), visible_runs))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "2 val {'loss': 0.5}"


def test_the_shown_code_of_a_program_reads_its_report(visible_runs, tmp_path):
    writer = LiveWriter(tmp_path / "live", {"name": "x.py", "command": "x.py\nimport os"})
    code = text(answer(parse_record(Query, {"what": "code", "runs": [f"live/{writer.name}"]}), visible_runs))
    assert code.splitlines()[0] == "# trueloop run --json report.json x.py import os", "a comment, on one line"
    compile(code, "shown", "exec")


@pytest.mark.parametrize(
    "fields",
    [
        {"what": "delete"}, {"runs": ["a"] * 7}, {"runs": ["x" * 301]}, {"runs": [3]}, {"runs": "a"},
        {"search": "x" * 81}, {"path": "/etc"}, {"versions": [None]},
    ],
)  # fmt: skip
def test_an_invalid_request_is_refused(fields):
    with pytest.raises(InvalidConfig):
        parse_record(Query, fields)
